"""A file of samples of a node that stays small however long it is used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from clusterctl.runs.files import Lines, read_lines, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_EVERY = 500  # new samples between two rounds of averaging
_FINENESS = 200  # a sample covers at most this fraction of its age: a week is 2,000 samples, a year 3,000
_PEAKS = frozenset({"memory", "memory_total"})  # a job's needs depend on the maximum, not the mean
_LATEST = frozenset({"ranks", "index", "cpus"})

Sample = dict[str, Any]


class SampleFile:
    """Writes a file that stays small: old samples are averaged into fewer, longer ones.

    Each line is one sample: `time` is its end, `seconds` its duration. From time to time the file is replaced
    atomically, so that a reader sees either the old or the new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines(path, path.parents[3])
        self._new = 0

    def append(self, sample: Sample) -> None:
        """Add the newest sample; its `time` is taken as the current time."""
        self._lines.append(sample)
        self._new += 1
        if self._new >= _EVERY:
            self._new = 0
            kept = thinned(read_lines(self._path), sample["time"])
            write_text(self._path, "".join(json.dumps(one) + "\n" for one in kept))
            self._lines.close()
            self._lines = Lines(self._path, self._path.parents[3])


def thinned(samples: Iterable[Sample], now: float) -> list[Sample]:
    """The samples in order of time; neighbours are merged while the result is short for its age."""
    kept: list[Sample] = []
    for sample in samples:
        if kept and sample["time"] - kept[-1]["time"] + kept[-1]["seconds"] <= (now - sample["time"]) / _FINENESS:
            kept[-1] = joined(kept[-1], sample)
        else:
            kept.append(sample)
    return kept


def joined(before: Sample, after: Sample) -> Sample:
    """Merge two consecutive samples: weighted means, the peak of memory, and the later value of everything else."""
    weights = (before["seconds"], after["seconds"])
    whole = _mean(before, after, weights)
    return {**whole, "time": after["time"], "seconds": round(sum(weights), 1)}


def _mean(before: Any, after: Any, weights: tuple[float, float], key: str = "") -> Any:
    if key in _LATEST:
        return after
    if isinstance(before, dict) and isinstance(after, dict):
        return {name: _mean(before.get(name), value, weights, name) for name, value in after.items()}
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [_mean(one, other, weights) for one, other in zip(before, after, strict=True)]
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return before if after is None else after
    if key in _PEAKS:
        return max(before, after)
    return round((before * weights[0] + after * weights[1]) / (sum(weights) or 1.0), 3)

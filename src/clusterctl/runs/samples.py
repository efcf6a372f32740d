"""A file of samples of a node, which stays small, whatever its age."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from clusterctl.runs.files import Lines, read_lines, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_EVERY = 500  # new samples, until the old ones are averaged
_FINENESS = 200  # a sample lasts at most this part of its age: a week is 2,000 samples, a year 3,000
_PEAKS = frozenset({"memory", "memory_total"})  # what a job needs is its most, not its mean
_LATEST = frozenset({"ranks", "index", "cpus"})

Sample = dict[str, Any]


class SampleFile:
    """Writes one file, which stays small: old samples are averaged into fewer, longer ones.

    Each line holds one sample: `time` is its end, `seconds` how long it lasted. Now and then the file is written anew
    aside and renamed, so that a reader sees the old file or the new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines(path)
        self._new = 0

    def append(self, sample: Sample) -> None:
        """Add the newest sample; its `time` is taken for now."""
        self._lines.append(sample)
        self._new += 1
        if self._new >= _EVERY:
            self._new = 0
            kept = thinned(read_lines(self._path), sample["time"])
            write_text(self._path, "".join(json.dumps(one) + "\n" for one in kept))
            self._lines.close()
            self._lines = Lines(self._path)


def thinned(samples: Iterable[Sample], now: float) -> list[Sample]:
    """The samples in order of time, neighbours joined as long as together they are short for their age."""
    kept: list[Sample] = []
    for sample in samples:
        if kept and sample["time"] - kept[-1]["time"] + kept[-1]["seconds"] <= (now - sample["time"]) / _FINENESS:
            kept[-1] = joined(kept[-1], sample)
        else:
            kept.append(sample)
    return kept


def joined(before: Sample, after: Sample) -> Sample:
    """One sample for two in a row: means weighted by duration, the peak of memory, of everything else the later."""
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

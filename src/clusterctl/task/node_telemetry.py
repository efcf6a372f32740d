"""What a node does while the run goes on: one thread of its local rank 0 writes a sample every few seconds.

`attempts/<n>/telemetry/<node>.jsonl`, one JSON object a line:

    {"time": ..., "seconds": 5.0, "cpu": 3.7, "cpus": 8, "memory": ..., "memory_limit": ..., "disk_read": ...,
     "disk_write": ..., "net_in": ..., "net_out": ..., "gpus": [{"index": 0, "utilisation": 97, ...}],
     "ranks": {"2": {"step": 120, "phase": "training", "step_seconds": 0.031, "busy_seconds": 0.028}}}

`cpu` counts processors in use; memory is in bytes, the rates are in bytes a second, power in watts, temperature in
degrees Celsius, utilisation, sm_activity and memory_activity (the share of the time in which a GPU's memory was read
or written) in percent. `seconds` is how long a sample lasted; `SampleFile`
averages old ones.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.runs.fields import Fields
from clusterctl.runs.files import Lines, open_regular, parse_record, read_lines, write_text
from clusterctl.runs.heartbeats import read_beat
from clusterctl.runs.idleness import GpuReading
from clusterctl.task.gpus import find_gpus
from clusterctl.task.usage import NodeUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place
    from clusterctl.task.gpus import Gpu
    from clusterctl.task.usage import Usage

INTERVAL_SECONDS = 5.0
_FIRST_SECONDS = 1.0  # so that a short run has one too
_RATES = ("disk_read", "disk_write", "net_in", "net_out")
_OF_BEATS = ("step", "phase", "step_seconds", "busy_seconds", "idle")
_EVERY = 500  # new samples, until the old ones are averaged
_FINENESS = 200  # a sample lasts at most this part of its age: a week is 2,000 samples, a year 3,000
_PEAKS = frozenset({"memory", "memory_total"})  # what a job needs is its most, not its mean
_LAST_BYTES = 16_384  # holds a few samples of a node with sixteen GPUs
_OLD_SECONDS = 6 * INTERVAL_SECONDS
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


class NodeTelemetry:
    """Makes samples of one node. `ranks` are those whose heartbeats it shows."""

    def __init__(
        self,
        attempt: Attempt,
        node: str,
        usage: NodeUsage,
        gpus: Callable[[], list[Gpu]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ranks: Sequence[int] = ()
        self._attempt, self._usage, self._gpus, self._clock = attempt, usage, gpus, clock
        self._file = SampleFile(attempt.telemetry(node))
        self._time, self._last = clock(), usage.read()

    def sample(self) -> None:
        """Write what happened since the last sample."""
        now, usage = self._clock(), self._usage.read()
        seconds = max(now - self._time, 1e-3)
        machine = rates(self._last, usage, seconds) | {"cpus": self._usage.cpus}
        self._time, self._last = now, usage
        beats = {rank: read_beat(self._attempt.heartbeat(rank)) for rank in self.ranks}
        ranks = {str(rank): {name: getattr(beat, name) for name in _OF_BEATS} for rank, beat in beats.items() if beat}
        times = {"time": round(now, 3), "seconds": round(seconds, 1)}
        self._file.append(times | machine | {"gpus": self._gpus(), "ranks": ranks})


def rates(before: Usage, now: Usage, seconds: float) -> dict[str, Any]:
    """The columns of a sample that this machine's counters give."""

    def rate(total: float, earlier: float) -> float:
        return max(0.0, (total - earlier) / seconds)

    return {
        "cpu": round(rate(now.cpu_seconds, before.cpu_seconds), 2),
        "memory": now.memory,
        "memory_limit": now.memory_limit,
        **{name: round(rate(getattr(now, name), getattr(before, name))) for name in _RATES},
    }


def start_telemetry(
    attempt: Attempt | None, place: Place, environment: Mapping[str, str] = os.environ
) -> NodeTelemetry | None:
    """Sample this node as long as this process lives, if it is the local rank 0 and has a run directory to write to."""
    if attempt is None or place.local_rank != 0:
        return None
    gpus = find_gpus(environment)
    telemetry = NodeTelemetry(attempt, node_name(environment), NodeUsage(environment), gpus.read if gpus else list)
    threading.Thread(target=_sample_forever, args=(telemetry,), name="telemetry", daemon=True).start()
    return telemetry


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    return environment.get("SLURMD_NODENAME") or socket.gethostname()


@dataclass
class GpuReadings:
    """What the GPUs of this node do, for any of its ranks: the newest sample in its leader's file.

    Empty where it has none, does not know what they do, or is old. Of a node without GPUs the file is read once.
    """

    path: Path
    clock: Callable[[], float] = time.time
    _has_gpus: bool = field(default=True, init=False)

    def __call__(self) -> tuple[GpuReading, ...]:
        sample = Fields(_newest_record(self.path) if self._has_gpus else {})
        gpus = sample.tables("gpus")
        self._has_gpus &= bool(gpus) or not sample.content
        uses = [(gpu.number("utilisation"), gpu.number("memory_activity")) for gpu in gpus]
        known = tuple(GpuReading(busy, memory) for busy, memory in uses if busy is not None and memory is not None)
        fresh = self.clock() - (sample.moment("time") or 0.0) <= _OLD_SECONDS
        return known if fresh and len(known) == len(uses) else ()


def _newest_record(path: Path) -> Sample:
    with suppress(OSError), open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = file.read().split(b"\n")[:-1]  # what follows the last newline is torn, or empty
        return next(filter(None, map(parse_record, reversed(lines))), {})
    return {}


def _sample_forever(telemetry: NodeTelemetry) -> None:
    pause = _FIRST_SECONDS
    while True:
        time.sleep(pause)
        pause = INTERVAL_SECONDS
        try:
            telemetry.sample()
        except Exception as error:  # whatever is odd about this machine: the training goes on
            print(f"no telemetry from here on: {type(error).__name__}: {error}", file=sys.stderr)
            return

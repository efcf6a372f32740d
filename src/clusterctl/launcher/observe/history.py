"""The history of a run over all attempts: curves, nodes, ranks, phases. Each update reads only what was appended.

The memory and time of an update are bounded, whatever the run's length: curves hold a few hundred buckets, and a file
that has grown by more than `most_bytes` since the last update is sampled.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.observe.lines import MOST_BYTES, GrowingRecords
from clusterctl.launcher.observe.measurements import parse_measurement
from clusterctl.launcher.observe.telemetry import parse_sample, telemetry_files
from clusterctl.launcher.observe.timeline import AttemptTimeline
from clusterctl.shared.record.metrics import STEP_PARTS, Role, metric_of
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from clusterctl.launcher.observe.attempt import AttemptEvidence
    from clusterctl.launcher.observe.measurements import Measurement
    from clusterctl.launcher.observe.rank_events import Event
    from clusterctl.launcher.observe.telemetry import RankSample, Sample
    from clusterctl.shared.record.layout import RunDir


_FIRST_SECONDS = 5.0  # weight of the first value of a spread, whose duration is unknown
_MOST_CURVES = 64  # a program may log under any number of names
_RECENT_STEPS = 200
_MOST_RANKS = 100_000
_FEW_NODES = 32  # read in full; telemetry of more nodes is sampled to about the same total
_MOST_SAMPLES, _LEAST_SAMPLES = 2048, 4  # of all nodes together, and of each
_SAMPLE_BYTES = 2048
_NODES_A_LOOK = 64
_POINTS, _FEW_POINTS = 200, 24  # of a node's curve, if there are few nodes and if there are many


@dataclass(slots=True)
class Spread:
    """The lowest, highest and newest of the added values; None before the first.

    In constant memory: thousands of ranks need no curve each.
    """

    low: float | None = None
    high: float | None = None
    last: float | None = None
    _time: float | None = None
    _total: float = 0.0
    _seconds: float = 0.0

    def add(self, time: float, value: float) -> None:
        """Add a `value` that was valid until `time`."""
        seconds = _FIRST_SECONDS if self._time is None else max(0.0, time - self._time)
        self.low = value if self.low is None else min(value, self.low)
        self.high = value if self.high is None else max(value, self.high)
        self.last, self._time = value, time
        self._total += value * seconds
        self._seconds += seconds

    def mean(self) -> float | None:
        """The mean over time."""
        return self._total / self._seconds if self._seconds else None


class NodeHistory:
    """One node's newest sample, and curves over time (seconds since the epoch)."""

    def __init__(self, name: str, points: int = _POINTS) -> None:
        self.name = name
        self.newest: Sample | None = None
        self.cpu, self.memory = Curve(points), Curve(points)
        self.gpu = Curve(points)  # utilisation in percent, the band over the node's GPUs
        self.gpus: dict[int, Spread] = {}

    def take(self, sample: Sample) -> None:
        self.newest = sample
        for curve, value in ((self.cpu, sample.cpu), (self.memory, sample.memory)):
            if value is not None:
                curve.add(sample.time, value)
        for gpu in sample.gpus:
            if gpu.utilisation is not None:
                self.gpu.add(sample.time, gpu.utilisation)
                self.gpus.setdefault(gpu.index, Spread()).add(sample.time, gpu.utilisation)


@dataclass(slots=True)
class RankHistory:
    """One rank's heartbeats, as recorded by its node's leader."""

    node: str
    newest: RankSample
    seconds: Spread = field(default_factory=Spread)  # of a step
    busy: Spread = field(default_factory=Spread)  # the part of a step in which it is not waiting for others


class Resumption(NamedTuple):
    """How an attempt went on from its predecessor: from which step, and when the last and the next one were logged."""

    attempt: int
    step: float
    undone: float  # steps that its predecessor had completed, and that were lost
    stopped: float | None
    resumed: float | None = None


class History:
    """The data drawn for one run. `update` reads new data; `attempts` are in order.

    One thread may update while another draws: the drawing thread holds `lock`, which is never held while reading files.
    With `all_ranks` False, the caller reads the events of ranks other than 0 and calls `take_events`.
    """

    def __init__(self, run: RunDir, most_bytes: int = MOST_BYTES, *, all_ranks: bool = True) -> None:
        self.run = run
        self._all_ranks = all_ranks
        self.lock = Lock()
        self.attempts: dict[int, AttemptTimeline] = {}
        self.curves: dict[str, Curve] = {}  # name -> values over the steps
        self.resumptions: list[Resumption] = []  # of each attempt but the first that has logged anything
        self.nodes: dict[str, NodeHistory] = {}  # of the newest attempt that has any
        self.ranks: dict[int, RankHistory] = {}
        self.step_seconds = Curve(200)  # over time, the band over the ranks
        self.sampled = False  # whether a file was too large to read in full
        self._most_bytes = most_bytes
        self._past: list[int] = []  # attempts followed by a newer one
        self._recent: deque[dict[str, float]] = deque(maxlen=_RECENT_STEPS)
        self._files: dict[Path, GrowingRecords] = {}
        self._metrics_of = -1  # the attempt whose metrics were read last
        self._telemetry_of = -1
        self._turn = 0
        self._step = 0.0
        self._step_time: float | None = None

    @property
    def undone_steps(self) -> float:
        """Steps that were completed but lost."""
        return sum(one.undone for one in self.resumptions)

    def update(self, hosts: Sequence[AttemptEvidence] = ()) -> None:
        """Read the run's files again. `hosts`: records of the batch scripts that are already known."""
        known = {host.number: host for host in hosts}
        attempts = self.run.attempts()
        self._past = [attempt.number for attempt in attempts[:-1]]
        for attempt in attempts:
            with self.lock:
                timeline = self.attempts.setdefault(
                    attempt.number, AttemptTimeline(attempt, self.lock, self._all_ranks)
                )
                over = timeline.host is not None and timeline.host.exit_code is not None
                timeline.host = known.get(attempt.number, timeline.host)
            if not over:  # an attempt is read once more after its end
                ended = timeline.host is not None and timeline.host.exit_code is not None
                (timeline.finish if ended else timeline.update)()
                self._read_metrics(attempt.number)
                self._read_telemetry(attempt.number, everything=ended)

    def take_events(self, attempt: int, rank: int, events: Iterable[Event]) -> None:
        """Add a rank's events read elsewhere, except for rank 0, which `update` reads."""
        if rank and attempt in self.attempts:
            self.attempts[attempt].take(rank, events)

    def split(self) -> dict[str, float]:
        """Part of a step -> its mean seconds over the newest steps; the rest of the step is `other`."""
        means: dict[str, float] = {}
        for name in ("seconds", *STEP_PARTS):
            if values := [step[name] for step in self._recent if name in step]:
                means[name] = sum(values) / len(values)
        whole = means.pop("seconds", None)
        if whole is not None and means:
            means["other"] = max(0.0, whole - sum(means.values()))
        return means

    def _share(self, attempt: int) -> int:
        """Bytes to read per file: all past attempts together get the share of one."""
        return self._most_bytes // (len(self._past) if attempt in self._past else 1)

    def _read_metrics(self, attempt: int) -> None:
        if attempt < self._metrics_of:
            return  # later output of a replaced attempt is ignored
        path = self.run.attempt(attempt).metrics
        if path not in self._files:
            self._files[path] = GrowingRecords(path, self._share(attempt))
        file = self._files[path]
        for record in file.read():
            with self.lock:
                self._take_metrics(attempt, parse_measurement(record))
        self.sampled |= file.sampled

    def _take_metrics(self, attempt: int, measured: Measurement) -> None:
        time, values, step = measured.time, measured.values, measured.step
        if step is None:  # of a program that logs none: each of its losses counts as one
            step = self._step + 1 if "loss" in values else self._step
        if attempt != self._metrics_of:
            if self._metrics_of >= 0:  # it continues from its checkpoint: later steps of the previous one are undone
                undone = max(0.0, self._step - step + 1)
                self.resumptions.append(Resumption(attempt, step, undone, self._step_time))
                for curve in self.curves.values():
                    curve.cut(step)
            self._metrics_of, self._step_time = attempt, None
            self._recent.clear()
        newest = self.resumptions[-1] if self.resumptions else None
        if newest and newest.attempt == attempt and newest.resumed is None and (step > newest.step or "loss" in values):
            self.resumptions[-1] = newest._replace(resumed=time)
        if time is not None and self._step_time is not None and step > self._step and time > self._step_time:
            self._curve("steps_per_second").add(step, (step - self._step) / (time - self._step_time))
        if step != self._step:
            self._step, self._step_time = step, time
        for name, value in values.items():
            if metric_of(name).role is not Role.COUNT:
                self._curve(name).add(step, value)
        if "seconds" in values:
            self._recent.append({name: float(values[name]) for name in ("seconds", *STEP_PARTS) if name in values})

    def _curve(self, name: str) -> Curve:
        if name not in self.curves and len(self.curves) >= _MOST_CURVES:
            return Curve()  # not shown
        return self.curves.setdefault(name, Curve())

    def _read_telemetry(self, attempt: int, *, everything: bool) -> None:
        """Read new telemetry: of all new nodes and, if there are many, of some of the others in turn."""
        files = telemetry_files(self.run.attempt(attempt)) if attempt >= self._telemetry_of else {}
        if files and attempt > self._telemetry_of:
            self._telemetry_of = attempt
            with self.lock:
                self.nodes.clear()
                self.ranks.clear()
        first = self._turn if self._turn < len(files) else 0
        self._turn = first + _NODES_A_LOOK
        due = set(files if everything else islice(files, first, self._turn)) | (files.keys() - self.nodes.keys())
        for node, path in files.items():
            if path not in self._files:
                samples = None if len(files) <= _FEW_NODES else max(_LEAST_SAMPLES, _MOST_SAMPLES // len(files))
                most = self._share(attempt)
                most = most if samples is None else min(most, samples * _SAMPLE_BYTES)
                self._files[path] = GrowingRecords(path, most, samples)
            file = self._files[path]
            if node in due and (everything or len(files) <= _FEW_NODES or file.changed()):
                for record in file.read():
                    if (sample := parse_sample(record)) is not None:
                        with self.lock:
                            self._take_sample(node, sample, len(files))

    def _take_sample(self, node: str, sample: Sample, nodes: int) -> None:
        if node not in self.nodes:
            self.nodes[node] = NodeHistory(node, _POINTS if nodes <= _FEW_NODES else _FEW_POINTS)
        self.nodes[node].take(sample)
        for rank, of_rank in sample.ranks.items():
            if rank not in self.ranks and len(self.ranks) >= _MOST_RANKS:
                continue
            known = self.ranks.setdefault(rank, RankHistory(node, of_rank))
            known.newest = of_rank
            if of_rank.step_seconds is not None:
                known.seconds.add(sample.time, of_rank.step_seconds)
                self.step_seconds.add(sample.time, of_rank.step_seconds)
            if of_rank.busy_seconds is not None and of_rank.phase == State.TRAINING:
                known.busy.add(sample.time, of_rank.busy_seconds)


# A curve in bounded memory: values over an axis, aggregated in buckets whose width doubles as the axis grows.


_LARGEST = 1e300  # sums and differences of larger values overflow


class Point(NamedTuple):
    """The values in one bucket, at their mean position on the axis."""

    x: float
    low: float
    mean: float
    high: float


class Curve:
    """Values over `x` (steps or seconds) in at most `most` buckets, added in any order. Non-finite values are counted.

    A week of steps takes the memory of an hour: when the buckets are used up, each pair of neighbours is merged.
    """

    def __init__(self, most: int = 400, width: float = 1.0) -> None:
        self._most, self._width = most, width
        self._buckets: dict[int, _Bucket] = {}
        self.broken = 0  # number of NaN or infinite values
        self.first_broken: float | None = None  # position of the first of them
        self.last: float | None = None  # the value added last, finite or not

    def add(self, x: float, value: float) -> None:
        try:
            x, value = float(x), float(value)
        except OverflowError:  # an integer of hundreds of digits
            return
        if not math.isfinite(x):
            return
        self.last = value
        if not abs(value) <= _LARGEST:
            self.broken += 1
            self.first_broken = x if self.first_broken is None else min(x, self.first_broken)
            return
        index = math.floor(x / self._width)
        bucket = self._buckets.get(index)
        if bucket is None:
            bucket = self._buckets[index] = _Bucket()
        bucket.add(x, value)
        while len(self._buckets) > self._most:  # merge each pair of neighbours
            self._width *= 2
            buckets, self._buckets = self._buckets, {}
            for index, bucket in buckets.items():
                self._buckets.setdefault(index // 2, _Bucket()).merge(bucket)

    def cut(self, x: float) -> None:
        """Drop values at `x` and after it: a restarted run continues from there."""
        first = math.floor(x / self._width)
        self._buckets = {index: bucket for index, bucket in self._buckets.items() if index < first}
        if self.first_broken is not None and self.first_broken >= x:
            self.broken, self.first_broken = 0, None

    def points(self) -> list[Point]:
        return [bucket.point() for _, bucket in sorted(self._buckets.items())]

    def mean(self) -> float | None:
        """The mean over the axis, counting each bucket once (a compacted file has few old values); None if empty."""
        means = [bucket.total / bucket.count for bucket in self._buckets.values()]
        return sum(means) / len(means) if means else None

    def highest(self) -> float | None:
        return max((bucket.high for bucket in self._buckets.values()), default=None)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """`points` aggregated into at most `most` stretches of the axis of equal length."""
    if len(points) <= most:
        return list(points)
    first = points[0].x
    length = (points[-1].x - first) or 1.0
    stretches: dict[int, list[Point]] = {}
    for point in points:
        stretches.setdefault(min(most - 1, int((point.x - first) / length * most)), []).append(point)
    return [
        Point(
            sum(point.x for point in some) / len(some),
            min(point.low for point in some),
            sum(point.mean for point in some) / len(some),
            max(point.high for point in some),
        )
        for some in stretches.values()
    ]


class _Bucket:
    __slots__ = ("count", "high", "low", "total", "xs")

    def __init__(self) -> None:
        self.count, self.xs, self.total, self.low, self.high = 0, 0.0, 0.0, math.inf, -math.inf

    def add(self, x: float, value: float) -> None:
        self.count += 1
        self.xs += x
        self.total += value
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def merge(self, other: _Bucket) -> None:
        self.count += other.count
        self.xs += other.xs
        self.total += other.total
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)

    def point(self) -> Point:
        return Point(self.xs / self.count, self.low, self.total / self.count, self.high)

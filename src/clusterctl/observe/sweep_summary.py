"""The summary of a sweep: runs in each stage, the best so far, the estimated time left."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.observe.measurements import seconds_left
from clusterctl.observe.ranking import ranked
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.observe.ranking import Ranked
    from clusterctl.observe.stage import Status
    from clusterctl.observe.sweeps import SweepRecord


@dataclass(frozen=True)
class SweepSummary:
    """A sweep at one moment."""

    record: SweepRecord
    statuses: tuple[Status, ...]
    stages: Mapping[Stage, int]  # in lifecycle order
    best: Ranked | None
    seconds_left: float | None  # until all have ended, estimated from those that have; None if unknown

    @property
    def ended(self) -> int:
        return sum(count for stage, count in self.stages.items() if stage.ended)


def summarise(record: SweepRecord, statuses: Sequence[Status], now: float, metric: str | None = None) -> SweepSummary:
    """The summary of the sweep's runs `statuses`; the best by `metric`, else by the default ranking metric."""
    counts = Counter(status.stage for status in statuses)
    stages = {stage: counts[stage] for stage in Stage if counts[stage]}
    best = next(iter(ranked(statuses, metric)), None)
    return SweepSummary(record, tuple(statuses), stages, best, _seconds_left(record, statuses, now))


def stages_in_words(counts: Mapping[Stage, int]) -> str:
    """Such as `9 finished, 2 training`, in lifecycle order."""
    return ", ".join(f"{counts[stage]} {stage}" for stage in Stage if counts.get(stage))


def _seconds_left(record: SweepRecord, statuses: Sequence[Status], now: float) -> float | None:
    """The time left, assuming that all runs take as long as the finished ones, with as many at once as now."""
    going = [status for status in statuses if not status.stage.ended and status.stage is not Stage.QUEUED]
    waiting = sum(status.stage is Stage.QUEUED for status in statuses)
    took = [ran for status in statuses if status.stage is Stage.FINISHED and (ran := status.ran(now))]
    left = [seconds_left(one.metrics, one.attempt.pace if one.attempt else None, now) for one in going]
    took = took or [(one.ran(now) or 0.0) + more for one, more in zip(going, left, strict=True) if more is not None]
    if not took or not (going or waiting):
        return None
    usual = statistics.median(took)
    rest = sum(more if more is not None else usual / 2 for more in left)
    at_once = max(1, min(len(going) or 1, record.at_once or len(going) or 1))
    return (rest + waiting * usual) / at_once

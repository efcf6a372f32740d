"""Which ended runs may be removed, and why others stay: pure rules."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.observe.stage import ARRIVAL_SECONDS
from clusterctl.runs.vocabulary import KNOWN, Better, metric_of, own_metrics, score_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.observe.stage import Status
    from clusterctl.runs.vocabulary import Metric, Number


class Judged(NamedTuple):
    """An old run, and why it stays; it may go where there is no reason."""

    status: Status
    stays: str = ""


class BestRun(NamedTuple):
    """The best run of a job, by this metric."""

    status: Status
    metric: Metric
    value: Number


def judged(statuses: Sequence[Status], seconds: float, now: float, *, keep_best: bool = False) -> list[Judged]:
    """A verdict on every run that ended `seconds` ago, or may have; those that go on are not mentioned.

    `statuses` are those of all runs of the folder: what a run needs that has not ended stays, and with `keep_best` the
    best ended run of each job.
    """
    needed = {
        one.run: status.record.run.id
        for status in statuses
        if not _is_over(status, now)
        for one in status.record.predecessors
    }
    best = {found.status.record.run: found for found in best_runs(statuses)} if keep_best else {}
    old = [status for status in statuses if now - ended_at(status) >= seconds]
    return [
        Judged(status, _reason(status, needed, best.get(status.record.run)))
        for status in old
        if _is_over(status, now) or not status.sure
    ]


def ended_at(status: Status) -> float:
    """When the run ended; where nobody knows, when it was last heard of: its last start, or its submission."""
    last = status.attempt
    return status.ended or (last and (last.end or last.start)) or status.record.submitted


def best_runs(statuses: Iterable[Status]) -> list[BestRun]:
    """The best ended run of each job, by the values that `status` shows: the newest ones. Of equal runs the newer."""
    jobs: dict[str, list[Status]] = defaultdict(list)
    for status in statuses:
        if status.stage.ended:
            jobs[status.record.job.name].append(status)
    return [best for found in jobs.values() if (best := _best(found))]


def _best(statuses: Sequence[Status]) -> BestRun | None:
    """By the first measure that any of the runs has, and of its names that of the newest run."""
    for measure in _MEASURES:
        scores = ((status, measure(status.metrics)) for status in statuses)
        found = [BestRun(status, *score) for status, score in scores if score and math.isfinite(score[1])]
        if found:
            metric = max(found, key=lambda best: best.status.record.created).metric
            sign = 1 if metric.better is Better.HIGHER else -1
            rivals = (best for best in found if best.metric == metric)
            return max(rivals, key=lambda best: (sign * best.value, best.status.record.created))
    return None


def _own(metrics: Mapping[str, Number]) -> tuple[Metric, Number] | None:
    own = ((metric_of(name), value) for name, value in own_metrics(metrics).items())
    return next(((metric, value) for metric, value in own if metric.better is not Better.NEITHER), None)


def _loss(metrics: Mapping[str, Number]) -> tuple[Metric, Number] | None:
    return (KNOWN["loss"], metrics["loss"]) if "loss" in metrics else None


_MEASURES = (partial(score_of, split="val"), partial(score_of, split="test"), _own, _loss)


def _is_over(status: Status, now: float) -> bool:
    """Whether nobody writes to the run any more: a batch script may end a moment later than its ranks."""
    last = status.attempt
    written = last is None or last.exit_code is not None or now - ended_at(status) >= ARRIVAL_SECONDS
    return status.stage.ended and status.sure and written


def _reason(status: Status, needed: Mapping[str, str], best: BestRun | None) -> str:
    """Why an old run stays."""
    run = status.record.run.id
    if not status.record.is_ours:
        return "belongs to someone else"
    if not status.sure:
        return "Slurm does not say whether it has ended"
    if run in needed:
        return f"{needed[run]} waits for it"
    if best:
        return f"the best of {status.record.job.name}: {best.metric.label} {best.metric.text(best.value)}"
    return ""

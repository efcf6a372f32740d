"""Which ended runs may be removed, and why others are kept; pure functions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.observe.ranking import ranked
from clusterctl.observe.run_names import submission
from clusterctl.observe.stage import ARRIVAL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.observe.ranking import Ranked
    from clusterctl.observe.stage import Status


class Judged(NamedTuple):
    """An old run, and the reason to keep it; without a reason it may be removed."""

    status: Status
    stays: str = ""


def judged(statuses: Sequence[Status], seconds: float, now: float, *, keep_best: bool = False) -> list[Judged]:
    """A verdict on every run that ended, or may have ended, `seconds` ago; active runs are left out.

    `statuses` are those of all runs in the folder: dependencies of runs that have not ended are kept, and with
    `keep_best` also the best ended run of each job.
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
    """When the run ended or, if unknown, its last start or its submission."""
    last = status.attempt
    return status.ended or (last and (last.end or last.start)) or status.record.submitted


def best_runs(statuses: Iterable[Status]) -> list[Ranked]:
    """The best ended run of each job, by the newest values, as shown in `status`; of equal runs, the newer one."""
    jobs: dict[str, list[Status]] = defaultdict(list)
    for status in statuses:
        if status.stage.ended:
            jobs[status.record.job.name].append(status)
    return [first for found in jobs.values() for first in ranked(found)[:1]]


def _is_over(status: Status, now: float) -> bool:
    """Whether nothing writes to the run any more: a batch script may end a moment after its ranks."""
    last = status.attempt
    written = last is None or last.exit_code is not None or now - ended_at(status) >= ARRIVAL_SECONDS
    return status.stage.ended and status.sure and written


def _reason(status: Status, needed: Mapping[str, str], best: Ranked | None) -> str:
    """Why an old run is kept."""
    run = status.record.run.id
    if not status.record.is_ours:
        return "belongs to another user"
    if not status.sure:
        return "Slurm does not report whether it has ended"
    if waits := needed.get(run) or needed.get(submission(run)):
        return f"{waits} is waiting for it"
    if best:
        return f"the best of {status.record.job.name}: {best.metric.label} {best.metric.text(best.value)}"
    return ""

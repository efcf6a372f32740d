"""Why a run that waits for others has not started: what became of them, and of those that they wait for in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.diagnosis.finding import Finding
from clusterctl.diagnosis.reasons import in_words
from clusterctl.errors import Cause
from clusterctl.observe.measurements import progress
from clusterctl.observe.predecessors import Standing, standing
from clusterctl.observe.stage import HELD, NEVER_STARTS
from clusterctl.observe.status import report
from clusterctl.runs.layout import RunDir
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.observe.predecessors import Predecessor
    from clusterctl.observe.stage import Status
    from clusterctl.slurm import Slurm
    from clusterctl.spec import Cluster

MOST_RUNS = 50  # looked at for one run: a chain is short, a record may be damaged
_ENDED = {
    Stage.FAILED: "failed",
    Stage.TIMED_OUT: "reached its time limit",
    Stage.PREEMPTED: "was preempted and not started again",
    Stage.CANCELLED: "was cancelled",
    Stage.LOST: "was lost",
}


@dataclass(frozen=True)
class Link:
    """A run that is waited for; `status` is None where it cannot be read, `before` what it waits for itself."""

    predecessor: Predecessor
    status: Status | None
    before: tuple[Link, ...] = ()

    @property
    def standing(self) -> Standing | None:
        return standing(self.predecessor.condition, self.status) if self.status else None


def read_chain(status: Status, slurm_of: Callable[[Cluster], Slurm]) -> tuple[Link, ...]:
    """The runs that the run of `status` waits for, and those before them, each run once."""
    found: dict[str, Status | None] = {}
    folder, waiting = status.record.run.path.parent, [status]
    while waiting and len(found) < MOST_RUNS:
        named = (one.run for run in waiting for one in run.record.predecessors)
        ids = list(dict.fromkeys(run for run in named if run not in found))[:MOST_RUNS]
        read = {one.record.run.id: one for one in report([RunDir(folder / run) for run in ids], slurm_of).statuses}
        found |= {run: read.get(run) for run in ids}
        waiting = [one for one in read.values() if not one.attempts]
    return _links(status, found, {status.record.run.id})


def explain_chain(status: Status, chain: Sequence[Link]) -> tuple[Finding, tuple[str, ...]] | None:
    """Why the run of `status` has not started, and what to type; None where it waits for no run any more."""
    run = status.record.run.id
    never = [link for link in chain if link.standing is Standing.NEVER]
    awaited = [link for link in chain if link.standing is Standing.OPEN]
    facts = tuple(_lines(chain))
    again = (*dict.fromkeys(_to_resume(never)), f"clusterctl resume {run}")
    if status.stage is Stage.CANCELLED:
        if status.reason != NEVER_STARTS:
            return None
        because = _became(never[0], "waited") if never else "a run that it waited for had not finished at that time"
        return Finding(Cause.CANCELLED, f"Slurm cancelled it before it started, because {because}", facts=facts), again
    if never:
        cause = f"it will not start, because {_became(never[0], 'waits')}"
        return Finding(Cause.PENDING, cause, facts=facts), (f"clusterctl cancel {run}", *again)
    if not awaited or status.reason == HELD:
        return None
    cause = "it waits for " + " and ".join(_awaited(link) for link in awaited)
    first = next(_first(awaited))
    return Finding(Cause.PENDING, cause, facts=facts), (f"clusterctl status {first}", f"clusterctl cancel {run}")


def _links(status: Status, found: dict[str, Status | None], seen: set[str]) -> tuple[Link, ...]:
    links = []
    for one in status.record.predecessors:
        known, first = found.get(one.run), one.run not in seen
        seen.add(one.run)
        waits = first and known is not None and not known.attempts
        links.append(Link(one, known, _links(known, found, seen) if known and waits else ()))
    return tuple(links)


def _became(link: Link, waits: str) -> str:
    assert link.status
    return f"{link.predecessor.run}, which it {waits} for, {_ENDED.get(link.status.stage, link.status.stage)}"


def _awaited(link: Link) -> str:
    return f"{link.predecessor.run} to {link.predecessor.condition.infinitive}"


def _lines(chain: Sequence[Link], indent: str = "") -> Iterator[str]:
    """The chain as a tree, a line a run."""
    for link in chain:
        yield f"{indent}{link.predecessor.run}: {_state(link)}"
        yield from _lines(link.before, f"{indent}  ")


def _state(link: Link) -> str:
    status = link.status
    if status is None:
        return "cannot be read"
    stage = status.stage if status.sure else f"{status.stage}, as far as is known"
    done = None if status.stage.ended else progress(status.metrics)
    if awaited := [_awaited(one) for one in link.before if one.standing is Standing.OPEN]:
        return f"{stage}, waits for {' and '.join(awaited)}"
    if status.stage is Stage.QUEUED and status.reason:
        return f"{stage}: {in_words(status.reason).words}"
    if status.reason == NEVER_STARTS:
        return f"{stage}, because of a run that it waited for"
    return f"{stage}, {int(done * 100)} % done" if done is not None else str(stage)


def _to_resume(never: Sequence[Link]) -> Iterator[str]:
    """What to type for the runs that failed: the first of the chain first, as one that waits is not to be refused."""
    for link in never:
        assert link.status
        yield from _to_resume([one for one in link.before if one.standing is Standing.NEVER])
        yield f"clusterctl resume {link.predecessor.run}"


def _first(awaited: Sequence[Link]) -> Iterator[str]:
    """The runs that hold up all others: they wait for none."""
    for link in awaited:
        before = [one for one in link.before if one.standing is Standing.OPEN]
        yield from _first(before) if before else [link.predecessor.run]

"""Why a run that depends on others has not started: the state of those runs, and of the runs they depend on.

A run may also depend on a sweep, which counts as one with all its runs.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.finding import Finding
from clusterctl.launcher.diagnosis.reasons import in_words
from clusterctl.launcher.observe.measurements import progress
from clusterctl.launcher.observe.state import HELD, NEVER_STARTS, Standing, standing, standing_of_all
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.sweeps import runs_of, states_in_words
from clusterctl.shared.errors import Cause, ConfigError
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.launcher.observe.run_record import Predecessor
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster

MOST_LINKS = 50  # examined per run: chains are short, but a record may be damaged
_ENDED = {
    State.FAILED: "failed",
    State.TIMED_OUT: "reached its time limit",
    State.PREEMPTED: "was preempted and not restarted",
    State.CANCELLED: "was cancelled",
    State.LOST: "was lost",
}


@dataclass(frozen=True)
class Link:
    """A run or sweep that another run depends on, and its own dependencies.

    `statuses` are those of its readable runs.
    """

    predecessor: Predecessor
    statuses: tuple[Status, ...]
    before: tuple[Link, ...] = ()

    @property
    def is_sweep(self) -> bool:
        return any(status.record.run.id != self.predecessor.run for status in self.statuses)

    @property
    def standing(self) -> Standing | None:
        return standing_of_all(self.predecessor.condition, self.statuses) if self.statuses else None


def read_chain(status: Status, slurm_of: Callable[[Cluster], Slurm]) -> tuple[Link, ...]:
    """The runs and sweeps that the run of `status` depends on, directly and indirectly, each once."""
    found: dict[str, tuple[Status, ...]] = {}
    folder, waiting = status.record.run.path.parent, [status]
    while waiting and len(found) < MOST_LINKS:
        named = (one.run for run in waiting for one in run.record.predecessors)
        ids = list(dict.fromkeys(run for run in named if run not in found))[:MOST_LINKS]
        runs: dict[str, tuple[RunDir, ...]] = dict.fromkeys(ids, ())
        for name in ids:
            with suppress(ConfigError):
                runs[name] = runs_of(folder, name)
        every = dict.fromkeys(run for several in runs.values() for run in several)
        read = {one.record.run: one for one in statuses_of(every, slurm_of).statuses}
        found |= {name: tuple(read[run] for run in runs[name] if run in read) for name in ids}
        waiting = [first for name in ids if (first := _not_started(found[name]))]
    return _links(status, found, {status.record.run.id})


def _not_started(statuses: Sequence[Status]) -> Status | None:
    """The run, or the first of a sweep's runs, which all have the same dependencies; None once any has started."""
    return statuses[0] if statuses and not any(one.attempts for one in statuses) else None


def explain_chain(status: Status, chain: Sequence[Link]) -> tuple[Finding, tuple[str, ...]] | None:
    """Why the run of `status` has not started, and what to type; None if it is no longer waiting for a run."""
    run = status.record.run.id
    never = [link for link in chain if link.standing is Standing.NEVER]
    awaited = [link for link in chain if link.standing is Standing.OPEN]
    facts = tuple(_lines(chain))
    again = (*dict.fromkeys(_to_resume(never)), f"clusterctl resume {run}")
    if status.state is State.CANCELLED:
        if status.reason != NEVER_STARTS:
            return None
        because = _outcome(never[0]) if never else "a run it depends on had not finished at that time"
        return Finding(Cause.CANCELLED, f"Slurm cancelled it before it started, because {because}", facts=facts), again
    if never:
        cause = f"it will not start, because {_outcome(never[0])}"
        return Finding(Cause.PENDING, cause, facts=facts), (f"clusterctl cancel {run}", *again)
    if not awaited or status.reason == HELD:
        return None
    cause = "waiting for " + " and ".join(_awaited(link) for link in awaited)
    first = next(_first(awaited))
    return Finding(Cause.PENDING, cause, facts=facts), (f"clusterctl status {first}", f"clusterctl cancel {run}")


def _links(status: Status, found: dict[str, tuple[Status, ...]], seen: set[str]) -> tuple[Link, ...]:
    links = []
    for one in status.record.predecessors:
        known, first = found.get(one.run, ()), one.run not in seen
        seen.add(one.run)
        waits = _not_started(known) if first else None
        links.append(Link(one, known, _links(waits, found, seen) if waits else ()))
    return tuple(links)


def _outcome(link: Link) -> str:
    name, condition = link.predecessor
    if link.is_sweep:
        never = sum(standing(condition, status) is Standing.NEVER for status in link.statuses)
        return f"{never} of the {len(link.statuses)} runs of {name}, on which it depends, did not finish"
    state = link.statuses[0].state
    return f"{name}, on which it depends, {_ENDED.get(state, state)}"


def _awaited(link: Link) -> str:
    name, condition = link.predecessor
    return f"{f'all runs of {name}' if link.is_sweep else name} to {condition.infinitive}"


def _lines(chain: Sequence[Link], indent: str = "") -> Iterator[str]:
    """The chain as a tree, one line per run."""
    for link in chain:
        yield f"{indent}{link.predecessor.run}: {_state(link)}"
        yield from _lines(link.before, f"{indent}  ")


def _state(link: Link) -> str:
    if not link.statuses:
        return "cannot be read"
    awaited = [_awaited(one) for one in link.before if one.standing is Standing.OPEN]
    waits = f", waiting for {' and '.join(awaited)}" if awaited else ""
    if link.is_sweep:
        counts = Counter(status.state for status in link.statuses)
        return f"{len(link.statuses)} runs: {states_in_words(counts)}{waits}"
    status = link.statuses[0]
    state = status.state if status.sure else f"{status.state} (last known)"
    done = None if status.state.ended else progress(status.metrics)
    if waits:
        return f"{state}{waits}"
    if status.state is State.QUEUED and status.reason:
        return f"{state}: {in_words(status.reason).words}"
    if status.reason == NEVER_STARTS:
        return f"{state}, because of a run it depends on"
    return f"{state}, {int(done * 100)} % done" if done is not None else str(state)


def _to_resume(never: Sequence[Link]) -> Iterator[str]:
    """The commands to resume the failed runs, in order of their dependencies."""
    for link in never:
        yield from _to_resume([one for one in link.before if one.standing is Standing.NEVER])
        yield f"clusterctl resume {link.predecessor.run}"


def _first(awaited: Sequence[Link]) -> Iterator[str]:
    """The runs that all others are waiting for."""
    for link in awaited:
        before = [one for one in link.before if one.standing is Standing.OPEN]
        yield from _first(before) if before else [link.predecessor.run]

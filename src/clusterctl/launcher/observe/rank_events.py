"""The events of ranks, typed: the only reader of what `clusterctl.shared.node.events` writes.

Also srun's reports in host.log of the tasks that failed on their own (`deaths`), and the roles of a run: where each is,
and what its ranks are doing.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from signal import SIGKILL
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.observe.lines import Growing, last_lines, records_in, tail
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.shared.record.layout import Attempt


_TAIL_BYTES = 65_536
_NODE_TAIL_BYTES = 8 * _TAIL_BYTES
_FIRST_EVENTS = 5000  # of a node, which include the start of its ranks


@dataclass(frozen=True)
class Event:
    """An event of a rank. `time` is in seconds since the epoch by its node's clock, None if unknown."""

    time: float | None


@dataclass(frozen=True)
class Began(Event):
    """The rank's process has started. `node` is its node's name in Slurm."""

    host: str
    node: str
    pid: int | None


@dataclass(frozen=True)
class Entered(Event):
    state: State


@dataclass(frozen=True)
class Raised(Event):
    """An exception ended the rank.

    clusterctl's own exceptions carry their `cause`. If the rank ran a program that failed, `code` is its exit code, and
    `signal` the signal that ended it.
    """

    type: str
    message: str
    traceback: str
    hint: str = ""
    cause: Cause | None = None
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class Hung(Event):
    """The watchdog raised an alarm; `stacks` shows where each thread of the rank was."""

    stacks: str


@dataclass(frozen=True)
class Frozen(Event):
    """The rank's stacks by faulthandler, when its Python code did not answer the alarm."""

    stacks: str


@dataclass(frozen=True)
class WriterEnded(Event):
    """The writer of the rank's node had ended; it was restarted unless `error` has a reason."""

    error: str = ""


@dataclass(frozen=True)
class TakenOver(Event):
    """A newer attempt took over."""


@dataclass(frozen=True)
class Ready(Event):
    """The program of a role is ready."""


@dataclass(frozen=True)
class Again(Event):
    """The program of a role has failed, and was started again alone."""

    why: str


@dataclass(frozen=True)
class Exited(Event):
    code: int | None


def parse_event(record: Mapping[str, Any]) -> Event | None:
    """The event on one line of the file; None if it is damaged or not needed."""
    fields = Fields(record)
    time = fields.moment("time")
    match fields.text("event"):
        case "began":
            host = fields.text("host")
            return Began(time, host, fields.text("node") or host, fields.whole("pid"))
        case "stage" if state := fields.member("stage", State):
            return Entered(time, state)
        case "exception":
            type_, message, traceback, hint = map(fields.text, ("type", "message", "traceback", "hint"))
            cause, code, signal = fields.member("cause", Cause), fields.whole("code"), fields.whole("signal")
            return Raised(time, type_, message, traceback, hint, cause, code, signal)
        case "hang":
            return Hung(time, fields.text("stacks"))
        case "frozen":
            return Frozen(time, fields.text("stacks"))
        case "writer":
            return WriterEnded(time, fields.text("error"))
        case "superseded":
            return TakenOver(time)
        case "ready":
            return Ready(time)
        case "again":
            return Again(time, fields.text("why"))
        case "exit":
            return Exited(time, fields.whole("code"))
    return None


class EventFile(NamedTuple):
    """A file of events: of all ranks of a node, with their ranks, or of the single rank that wrote it."""

    path: Path
    rank: int | None = None

    def rank_of(self, record: Mapping[str, Any]) -> int | None:
        """The rank of the event on a line of the file; None if missing."""
        rank = Fields(record).whole("rank") if self.rank is None else self.rank
        return rank if rank is not None and rank >= 0 else None

    def parse(self, record: Mapping[str, Any]) -> tuple[int, Event] | None:
        """A rank and its event from one line of the file."""
        rank, event = self.rank_of(record), parse_event(record)
        return None if rank is None or event is None else (rank, event)


def event_files(attempt: Attempt) -> list[EventFile]:
    """All event files of an attempt: those of its nodes, then those of ranks."""
    nodes = [EventFile(path) for path in attempt.node_event_files().values()]
    return [*nodes, *(EventFile(path, rank) for rank, path in attempt.event_files().items())]


def last_events(attempt: Attempt, files: Iterable[EventFile] | None = None) -> tuple[dict[int, list[Event]], list[str]]:
    """Rank -> its events in order, from the end of each file (or of `files`), and problems in reading files.

    An event that a rank wrote itself because its node's writer was slow may be in the writer's file as well.
    """
    found: dict[int, dict[Event, None]] = {}
    problems = []
    for file in event_files(attempt) if files is None else files:
        lines, problem = tail(file.path, _NODE_TAIL_BYTES if file.rank is None else _TAIL_BYTES)
        if problem:
            whose = f"node {int(file.path.name.partition('.')[0])}" if file.rank is None else f"rank {file.rank}"
            problems.append(f"the events of {whose}, attempt {attempt.number}: {problem}")
        for rank, event in filter(None, map(file.parse, records_in(lines))):
            found.setdefault(rank, {})[event] = None
    return {rank: list(events) for rank, events in found.items()}, problems


def newest_state(attempt: Attempt) -> State | None:
    """The last state entered by rank 0, which is on the first node."""
    files = (EventFile(attempt.events(0), 0), EventFile(attempt.node_events(0)))
    newest: Entered | None = None
    for file in files:
        parsed = filter(None, map(file.parse, records_in(reversed(last_lines(file.path)))))
        entered = next((event for whose, event in parsed if whose == 0 and isinstance(event, Entered)), None)
        if entered and (newest is None or (entered.time or 0.0) >= (newest.time or 0.0)):
            newest = entered
    return newest.state if newest else None


def beginnings(attempt: Attempt) -> dict[int, Began]:
    """Rank -> its first event, for the ranks that have started."""
    found: dict[int, Began] = {}
    for file in event_files(attempt):
        first = islice(records_in(Growing(file.path).added()), _FIRST_EVENTS)
        for rank, event in filter(None, map(file.parse, first)):
            if isinstance(event, Began):
                found.setdefault(rank, event)
    return found


# srun's reports of tasks that failed on their own, before the others were terminated.


_TASK = re.compile(r"srun: error: (?P<node>[^\s:]+): tasks? (?P<ranks>[\d,-]+): (?P<how>.+)")
# From here on, tasks end because they were terminated.
_ABORTED = re.compile(
    r"srun: (?:\S+ _step_signal: )?Terminating|\*\*\* STEP \S+ ON .* CANCELLED|Job step aborted|Terminating job step"
    r"|forcing job termination"
)
_MOST_RANKS = 100_000
_KILLED = 128 + SIGKILL  # of a shell around the program
_EXITED = "Exited with exit code "


@dataclass(frozen=True)
class Death:
    """A task that failed before the others were terminated; `order` counts srun's lines."""

    rank: int
    node: str
    how: str
    order: int

    @property
    def code(self) -> int | None:
        """The exit code; None if a signal ended the task."""
        code = self.how.removeprefix(_EXITED)
        return int(code) if code != self.how and code.isdecimal() else None

    @property
    def by_kill(self) -> bool:
        """Whether SIGKILL ended it, by the kernel for its memory or anyhow."""
        return self.how.startswith(("Killed", "Out")) or self.code == _KILLED


def deaths(lines: Iterable[str]) -> list[Death]:
    """The tasks that failed on their own, in the order in which srun noticed.

    This order is the same for all nodes, unlike times by the ranks' own clocks.
    """
    found: list[Death] = []
    for order, line in enumerate(lines):
        if _ABORTED.search(line):
            break
        if match := _TASK.search(line):
            found += [Death(rank, match["node"], match["how"], order) for rank in ranks_of(match["ranks"])]
    return found


def ended_together(lines: Iterable[str]) -> bool:
    """Whether srun ended all tasks at once, because a task had failed or on request."""
    return any(map(_ABORTED.search, lines))


def ranks_of(text: str) -> list[int]:
    """Slurm's list of tasks: "0-1,3" is 0, 1, 3."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            ranks += range(int(first), min(int(last or first), int(first) + _MOST_RANKS) + 1)
    return ranks


@dataclass(frozen=True)
class RoleStatus:
    """One role: its ranks in the job, the nodes that they have started on, how many are in which state, restarts.

    The states are "starting", "waiting" (for the roles that it needs), "running", "ready", "finished" and "ended".
    """

    name: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    states: dict[str, int]
    restarts: int

    @property
    def summary(self) -> str:
        """The states in words: `ready`, or `1 of 2 ready, 1 starting`."""
        if len(self.states) == 1:
            return next(iter(self.states))
        first, *others = (f"{count} {state}" for state, count in self.states.items())
        return ", ".join([first.replace(" ", f" of {len(self.ranks)} ", 1), *others])


def role_statuses(record: RunRecord) -> tuple[RoleStatus, ...]:
    """The roles of a run in the order of its job file; none for a job with a single program."""
    seated, attempts = record.seating, record.run.attempts()
    if seated is None:
        return ()
    events = last_events(attempts[-1])[0] if attempts else {}
    found = []
    for name in record.job.role:
        ranks = seated.ranks_of(name)
        of_role = [events.get(rank, []) for rank in ranks]
        began = (event for one in of_role for event in one if isinstance(event, Began))
        found.append(
            RoleStatus(
                name,
                tuple(ranks),
                tuple(dict.fromkeys(event.node for event in began)),
                dict(Counter(map(_state, of_role)).most_common()),
                sum(isinstance(event, Again) for one in of_role for event in one),
            )
        )
    return tuple(found)


def _state(events: Iterable[Event]) -> str:
    state = "starting"
    for event in events:
        match event:
            case Entered(_, State.RENDEZVOUS):
                state = "waiting"
            case Entered(_, State.TRAINING) | Again():
                state = "running"
            case Ready():
                state = "ready"
            case Exited(_, code):
                state = "finished" if code == 0 else "ended"
    return state

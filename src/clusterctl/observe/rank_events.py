"""The events of a rank, typed: the one reader of what `clusterctl.runs.events` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.errors import Cause
from clusterctl.observe.lines import Growing, last_lines, records_in, tail
from clusterctl.runs.fields import Fields
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Event:
    """Something that happened to a rank. `time` is in seconds since the epoch by its node's clock, None if unknown."""

    time: float | None


@dataclass(frozen=True)
class Began(Event):
    """The rank's process is there. `node` is the name that Slurm has for its node."""

    host: str
    node: str
    pid: int | None


@dataclass(frozen=True)
class Entered(Event):
    stage: Stage


@dataclass(frozen=True)
class Raised(Event):
    """An exception ended the rank.

    One of ours carries its `cause`. Where the rank ran a program that failed, `code` is the program's, and `signal` the
    one that ended it.
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
class TakenOver(Event):
    """A newer attempt took over."""


@dataclass(frozen=True)
class Exited(Event):
    code: int | None


def parse_event(record: Mapping[str, Any]) -> Event | None:
    """The event in one line of the file; None for one that no reader needs, or that is damaged."""
    fields = Fields(record)
    time = fields.moment("time")
    match fields.text("event"):
        case "began":
            host = fields.text("host")
            return Began(time, host, fields.text("node") or host, fields.whole("pid"))
        case "stage" if stage := fields.member("stage", Stage):
            return Entered(time, stage)
        case "exception":
            type_, message, traceback, hint = map(fields.text, ("type", "message", "traceback", "hint"))
            cause, code, signal = fields.member("cause", Cause), fields.whole("code"), fields.whole("signal")
            return Raised(time, type_, message, traceback, hint, cause, code, signal)
        case "hang":
            return Hung(time, fields.text("stacks"))
        case "superseded":
            return TakenOver(time)
        case "exit":
            return Exited(time, fields.whole("code"))
    return None


def events_in(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events in `lines`, each parsed when it is asked for."""
    return filter(None, map(parse_event, records_in(lines)))


def last_events(path: Path) -> tuple[tuple[Event, ...], str]:
    """The events in the last 64 KiB of the file, and what kept it from being read."""
    lines, problem = tail(path)
    return tuple(events_in(lines)), problem


def newest_stage(path: Path) -> Stage | None:
    """The last stage that the rank entered."""
    return next((event.stage for event in events_in(reversed(last_lines(path))) if isinstance(event, Entered)), None)


def read_events(path: Path) -> Iterator[Event]:
    """All events of the file; none where it cannot be read."""
    return events_in(Growing(path).added())


def beginning(path: Path) -> Began | None:
    """The first event; None until the rank has begun."""
    return next((event for event in read_events(path) if isinstance(event, Began)), None)

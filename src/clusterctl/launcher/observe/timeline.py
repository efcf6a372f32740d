"""The timeline of a run: its attempts, their phases, and events worth showing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.observe.lines import GrowingRecords, pattern
from clusterctl.launcher.observe.rank_events import Began, Entered, EventFile, Exited, Hung, Raised, event_files
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.observe.attempt import AttemptEvidence
    from clusterctl.launcher.observe.rank_events import Event
    from clusterctl.shared.record.layout import Attempt

_MOST_SPANS = 300
_MOST_EVENTS = 300
_FILES_A_LOOK = 64
_REPEATED = frozenset({State.TRAINING, State.EVALUATING, State.CHECKPOINTING})


class Span(NamedTuple):
    """A phase of rank 0. `end` is None until it ends."""

    state: State
    start: float
    end: float | None


class TimelineEvent(NamedTuple):
    """An event worth showing. `rank` is None for an event of the whole run.

    The same event of several `ranks` is combined: `rank`, time and text are those of the first.
    """

    time: float
    rank: int | None
    text: str
    bad: bool = False
    ranks: int = 1


@dataclass
class AttemptTimeline:
    """One attempt: the phases of rank 0 and the events of all ranks; each update reads what was added."""

    attempt: Attempt
    lock: Lock = field(default_factory=Lock)  # held while adding what was read, never while reading
    all_ranks: bool = True  # False: the caller reads the events of ranks other than 0 and calls `take`
    host: AttemptEvidence | None = None  # the batch script's record
    spans: list[Span] = field(default_factory=list)
    seconds: dict[State, float] = field(default_factory=dict)  # of completed phases
    nodes: dict[int, str] = field(default_factory=dict)  # rank -> host name
    first_event: float | None = None  # of any rank
    _files: dict[EventFile, GrowingRecords] = field(default_factory=dict)
    _news: deque[TimelineEvent] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))  # of rank 0
    _bad: dict[str, TimelineEvent] = field(default_factory=dict)  # by their common pattern
    _whose: dict[str, set[int]] = field(default_factory=dict)
    _entered: set[State] = field(default_factory=set)
    _left: set[int] = field(default_factory=set)
    _waiting: list[EventFile] = field(default_factory=list)  # files still to be read in this round

    @property
    def timeline_events(self) -> list[TimelineEvent]:
        """The events worth showing, unordered."""
        return [*self._news, *self._bad.values()]

    def update(self) -> None:
        """Read new events of rank 0, and some of the other files in turn."""
        if not self._waiting:
            self._waiting = self._all()
        # Opening or listing a thousand files every two seconds would load the file server.
        due, self._waiting = self._waiting[:_FILES_A_LOOK], self._waiting[_FILES_A_LOOK:]
        first = self._of_rank_0()
        self._read([*first, *(file for file in due if file not in first and self._growing(file).changed())])

    def finish(self) -> None:
        """Read the events of all ranks, once the attempt has ended."""
        self._read(self._all())

    def take(self, rank: int, events: Iterable[Event]) -> None:
        """Add events of `rank` that were read elsewhere."""
        with self.lock:
            for event in events:
                if event.time is not None:
                    self._take(rank, event, event.time)

    def _of_rank_0(self) -> list[EventFile]:
        return [EventFile(self.attempt.node_events(0)), EventFile(self.attempt.events(0), 0)]

    def _all(self) -> list[EventFile]:
        return event_files(self.attempt) if self.all_ranks else self._of_rank_0()

    def _growing(self, file: EventFile) -> GrowingRecords:
        if file not in self._files:
            self._files[file] = GrowingRecords(file.path)
        return self._files[file]

    def _read(self, files: Iterable[EventFile]) -> None:
        for file in files:
            for rank, event in filter(None, map(file.parse, self._growing(file).read())):
                if rank == 0 or self.all_ranks:
                    self.take(rank, [event])

    def phases(self, now: float) -> list[Span]:
        """The phases from the attempt's start to its end or `now`; the time before the first event is `starting`."""
        start = self._start
        if start is None:
            return []
        spans = list(self.spans)
        if not spans or spans[0].start > start:
            spans[:0] = self._before(start, spans[0].start if spans else None)
        if spans[-1].end is None:
            spans[-1] = spans[-1]._replace(end=max(spans[-1].start, self._end(now)))
        return spans

    def _before(self, start: float, first: float | None) -> list[Span]:
        """The phases before the first event of rank 0."""
        begun, ended = (self.host.node_setup_start, self.host.node_setup_end) if self.host else (None, None)
        if begun is None:
            return [Span(State.STARTING, start, first)]
        spans = [Span(State.STARTING, start, begun), Span(State.NODE_SETUP, begun, ended)]
        return spans if ended is None else [*spans, Span(State.STARTING, ended, first)]

    def state_seconds(self, now: float) -> dict[State, float]:
        """Phase -> the seconds the attempt has spent in it, exact even for merged phases."""
        seconds = dict(self.seconds)
        for span in self.phases(now):
            if span not in self.spans and span.end is not None:  # unfinished, or before the first event
                seconds[span.state] = seconds.get(span.state, 0.0) + span.end - span.start
        return seconds

    def held(self, now: float) -> float:
        """The seconds that the attempt has held its nodes until `now`."""
        return max(0.0, self._end(now) - self._start) if self._start is not None else 0.0

    @property
    def _start(self) -> float | None:
        return self.host.start if self.host and self.host.start is not None else self.first_event

    def _end(self, now: float) -> float:
        return self.host.end if self.host and self.host.end is not None else now

    def _take(self, rank: int, event: Event, time: float) -> None:
        self.first_event = time if self.first_event is None else min(time, self.first_event)
        match event:
            case Began(host=host):
                self.nodes[rank] = host
            case Entered(state=state) if rank == 0:
                self._close(time)
                self.spans.append(Span(state, time, None))
                if state not in self._entered or state not in _REPEATED:  # don't log every epoch
                    self._entered.add(state)
                    self._add(time, 0, str(state))
                if len(self.spans) > _MOST_SPANS:
                    # Merge pairs of neighbours under the name of the longer one, except for the unfinished last span.
                    *past, last = self.spans
                    merged = []
                    for index in range(0, len(past), 2):
                        first, *second = past[index : index + 2]
                        longer = max([first, *second], key=lambda span: (span.end or span.start) - span.start)
                        merged.append(Span(longer.state, first.start, (second or [first])[0].end))
                    self.spans = [*merged, last]
            case Raised(type=type_, message=message):
                text = f"{type_ or 'error'}: {message[:300]}"
                self._add_error(time, rank, text, pattern(text))
            case Hung() if rank == 0:
                self._add_error(time, rank, "no progress: the watchdog requested every rank's stacks")
            case Exited(code=code):
                if (code or rank == 0) and rank not in self._left:  # a terminated rank reports it twice
                    self._left.add(rank)
                    add = self._add_error if code else self._add
                    add(time, rank, f"exit code {code}")
                if rank == 0:
                    self._close(time)

    def _close(self, time: float) -> None:
        if self.spans and self.spans[-1].end is None:
            span = self.spans[-1] = self.spans[-1]._replace(end=max(time, self.spans[-1].start))
            self.seconds[span.state] = self.seconds.get(span.state, 0.0) + max(0.0, time - span.start)

    def _add(self, time: float, rank: int, text: str) -> None:
        self._news.append(TimelineEvent(time, rank, text))

    def _add_error(self, time: float, rank: int, text: str, kind: str = "") -> None:
        """Add each kind of error once, with the text of the first rank: a thousand ranks may fail alike."""
        kind = kind or text
        if kind not in self._bad and len(self._bad) >= _MOST_EVENTS:
            kind = text = "another error"
        first = self._bad.get(kind)
        if first is None or time < first.time:
            first = TimelineEvent(time, rank, text, bad=True)
        whose = self._whose.setdefault(kind, set())
        whose.add(rank)
        self._bad[kind] = first._replace(ranks=len(whose))

"""What happened to a run, and when: its attempts, the phases of each, and what is worth a line to a reader."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.observe.alike import pattern
from clusterctl.observe.lines import GrowingRecords
from clusterctl.observe.rank_events import Began, Entered, EventFile, Exited, Hung, Raised, event_files
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.observe.attempt import AttemptEvidence
    from clusterctl.observe.rank_events import Event
    from clusterctl.runs.layout import Attempt

_MOST_SPANS = 300
_MOST_HAPPENINGS = 300
_FILES_A_LOOK = 64
_REPEATED = frozenset({Stage.TRAINING, Stage.EVALUATING, Stage.CHECKPOINTING})


class Span(NamedTuple):
    """A phase of rank 0. `end` is None while it lasts."""

    stage: Stage
    start: float
    end: float | None


class Happening(NamedTuple):
    """Something worth a line. `rank` is None for what happened to the run as a whole.

    What happened to several `ranks` alike is one: `rank` is the first of them, and time and text are its own.
    """

    time: float
    rank: int | None
    text: str
    bad: bool = False
    ranks: int = 1


@dataclass
class AttemptTimeline:
    """One attempt: the phases of rank 0, and the happenings of all ranks; each look reads what was added."""

    attempt: Attempt
    lock: Lock = field(default_factory=Lock)  # held while what was read is taken over, never while reading
    all_ranks: bool = True  # False: somebody else reads the events of the other ranks than 0, and calls `take`
    host: AttemptEvidence | None = None  # what the batch script wrote
    spans: list[Span] = field(default_factory=list)
    seconds: dict[Stage, float] = field(default_factory=dict)  # of the phases that are over
    nodes: dict[int, str] = field(default_factory=dict)  # rank -> host name
    first_event: float | None = None  # of any rank
    _files: dict[EventFile, GrowingRecords] = field(default_factory=dict)
    _news: deque[Happening] = field(default_factory=lambda: deque(maxlen=_MOST_HAPPENINGS))  # of rank 0
    _bad: dict[str, Happening] = field(default_factory=dict)  # by what is the same of many ranks
    _whose: dict[str, set[int]] = field(default_factory=dict)
    _told: set[Stage] = field(default_factory=set)
    _left: set[int] = field(default_factory=set)
    _waiting: list[EventFile] = field(default_factory=list)  # whose turn is still to come

    @property
    def happenings(self) -> list[Happening]:
        """What is worth a line, in no order."""
        return [*self._news, *self._bad.values()]

    def update(self) -> None:
        """Read what rank 0 has told since the last look, and of the other files some in turn."""
        if not self._waiting:
            self._waiting = self._all()
        # A thousand files opened every other second would be felt by a file server, and so would their listing.
        due, self._waiting = self._waiting[:_FILES_A_LOOK], self._waiting[_FILES_A_LOOK:]
        first = self._of_rank_0()
        self._read([*first, *(file for file in due if file not in first and self._growing(file).changed())])

    def finish(self) -> None:
        """Read what all ranks have told: for when the attempt is over."""
        self._read(self._all())

    def take(self, rank: int, events: Iterable[Event]) -> None:
        """Take over what `rank` has told, and somebody has read."""
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
        """The phases from the attempt's start to its end, or to `now`; the time before the first word is `starting`."""
        start = self._start
        if start is None:
            return []
        spans = list(self.spans)
        if not spans or spans[0].start > start:
            spans.insert(0, Span(Stage.STARTING, start, spans[0].start if spans else None))
        if spans[-1].end is None:
            spans[-1] = spans[-1]._replace(end=max(spans[-1].start, self._end(now)))
        return spans

    def stage_seconds(self, now: float) -> dict[Stage, float]:
        """Phase -> the seconds that the attempt has spent in it; of phases that were summed up, exactly."""
        seconds = dict(self.seconds)
        for span in self.phases(now):
            if span not in self.spans and span.end is not None:  # it lasts, or lies before the first event
                seconds[span.stage] = seconds.get(span.stage, 0.0) + span.end - span.start
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
            case Entered(stage=stage) if rank == 0:
                self._enter(stage, time)
            case Raised(type=type_, message=message):
                text = f"{type_ or 'error'}: {message[:300]}"
                self._tell_bad(time, rank, text, pattern(text))
            case Hung() if rank == 0:
                self._tell_bad(time, rank, "no progress: the watchdog asked every rank where it is")
            case Exited(code=code):
                if (code or rank == 0) and rank not in self._left:  # one that is terminated says so twice
                    self._left.add(rank)
                    tell = self._tell_bad if code else self._tell
                    tell(time, rank, f"exit code {code}")
                if rank == 0:
                    self._close(time)

    def _enter(self, stage: Stage, time: float) -> None:
        self._close(time)
        self.spans.append(Span(stage, time, None))
        if stage not in self._told or stage not in _REPEATED:  # an epoch's coming and going is no news
            self._told.add(stage)
            self._tell(time, 0, str(stage))
        if len(self.spans) > _MOST_SPANS:
            self.spans = _halved(self.spans)

    def _close(self, time: float) -> None:
        if self.spans and self.spans[-1].end is None:
            span = self.spans[-1] = self.spans[-1]._replace(end=max(time, self.spans[-1].start))
            self.seconds[span.stage] = self.seconds.get(span.stage, 0.0) + max(0.0, time - span.start)

    def _tell(self, time: float, rank: int, text: str) -> None:
        self._news.append(Happening(time, rank, text))

    def _tell_bad(self, time: float, rank: int, text: str, kind: str = "") -> None:
        """Each kind once, in the words of the rank that it happened to first: a thousand ranks fail alike."""
        kind = kind or text
        if kind not in self._bad and len(self._bad) >= _MOST_HAPPENINGS:
            kind = text = "another error"
        first = self._bad.get(kind)
        if first is None or time < first.time:
            first = Happening(time, rank, text, bad=True)
        whose = self._whose.setdefault(kind, set())
        whose.add(rank)
        self._bad[kind] = first._replace(ranks=len(whose))


def _halved(spans: list[Span]) -> list[Span]:
    """Each two neighbours as one, by the name of the longer; the one that lasts stays as it is."""
    *past, last = spans
    merged = []
    for index in range(0, len(past), 2):
        first, *second = past[index : index + 2]
        longer = max([first, *second], key=lambda span: (span.end or span.start) - span.start)
        merged.append(Span(longer.stage, first.start, (second or [first])[0].end))
    return [*merged, last]

"""What happened to a run, and when: its attempts, the phases of each, and what is worth a line to a reader."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.observe.lines import GrowingRecords
from clusterctl.observe.rank_events import Began, Entered, EventFile, Exited, Hung, Raised, event_files
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
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
    """Something worth a line. `rank` is None for what happened to the run as a whole."""

    time: float
    rank: int | None
    text: str
    bad: bool = False


@dataclass
class AttemptTimeline:
    """One attempt: the phases of rank 0, and the happenings of all ranks; each look reads what was added."""

    attempt: Attempt
    lock: Lock = field(default_factory=Lock)  # held while what was read is taken over, never while reading
    host: AttemptEvidence | None = None  # what the batch script wrote
    spans: list[Span] = field(default_factory=list)
    seconds: dict[Stage, float] = field(default_factory=dict)  # of the phases that are over
    happenings: deque[Happening] = field(default_factory=lambda: deque(maxlen=_MOST_HAPPENINGS))
    nodes: dict[int, str] = field(default_factory=dict)  # rank -> host name
    first_event: float | None = None  # of any rank
    _files: dict[EventFile, GrowingRecords] = field(default_factory=dict)
    _told: set[Stage] = field(default_factory=set)
    _left: set[int] = field(default_factory=set)
    _turn: int = 0

    def update(self) -> None:
        """Read what the ranks have told since the last look: the first file, new ones, and some in turn."""
        files = event_files(self.attempt)
        first = self._turn if self._turn < len(files) else 0
        self._turn = first + _FILES_A_LOOK  # a thousand files opened every other second would be felt by a file server
        for place, file in enumerate(files):
            if place == 0 or file not in self._files or first <= place < self._turn:
                growing = self._files.setdefault(file, GrowingRecords(file.path))
                for rank, event in filter(None, map(file.parse, growing.read())):
                    if event.time is not None:
                        with self.lock:
                            self._take(rank, event, event.time)

    def finish(self) -> None:
        """Read what all ranks have told: for when the attempt is over."""
        for _ in range(0, len(event_files(self.attempt)) + 1, _FILES_A_LOOK):
            self.update()

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
                self._tell(time, rank, f"{type_ or 'error'}: {message[:300]}", bad=True)
            case Hung() if rank == 0:
                self._tell(time, rank, "no progress: the watchdog asked every rank where it is", bad=True)
            case Exited(code=code):
                if (code or rank == 0) and rank not in self._left:  # one that is terminated says so twice
                    self._left.add(rank)
                    self._tell(time, rank, f"exit code {code}", bad=bool(code))
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

    def _tell(self, time: float, rank: int | None, text: str, *, bad: bool = False) -> None:
        self.happenings.append(Happening(time, rank, text, bad))


def _halved(spans: list[Span]) -> list[Span]:
    """Each two neighbours as one, by the name of the longer; the one that lasts stays as it is."""
    *past, last = spans
    merged = []
    for index in range(0, len(past), 2):
        first, *second = past[index : index + 2]
        longer = max([first, *second], key=lambda span: (span.end or span.start) - span.start)
        merged.append(Span(longer.stage, first.start, (second or [first])[0].end))
    return [*merged, last]

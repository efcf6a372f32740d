"""Heartbeats: the current activity of each rank, sent to the node's writer by a thread about once a second.

`attempts/<n>/nodes/00002.beats` has the heartbeats of node 2, updated in place: one JSON object per rank, padded to a
fixed size, at the index of its local rank. Its keys are the fields of `Beat` and `rank`.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import parse_record, read_whole
from clusterctl.shared.record.place import node_name
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.spec import Watchdog


BEAT_SECONDS = 1.0
_BYTES = 512
_KEPT_STEPS = 200
_LEAST_STEPS = 3  # the first steps warm up caches and compile code
RECENT_SECONDS = 30.0  # averaging window, short enough to notice a rank that becomes slow
ENDED = "ended"  # the phase of a rank that has exited
GPU_IDLE_PERCENT = 5.0  # a GPU below this utilization counts as idle
IDLE_SECONDS = 60.0  # report a program that has been idle for this long


@dataclass(frozen=True)
class Beat:
    """One heartbeat. Times are in seconds since the epoch by the clock of the rank's node."""

    time: float  # when it was written
    phase: str  # a state's name, or "ended"
    since: float  # when the phase began
    step: int = 0  # completed steps
    step_time: float | None = None  # when the last step ended
    step_seconds: float | None = None  # median over the last RECENT_SECONDS; None for the first few steps
    slow_seconds: float | None = None  # 99th percentile of the last 200 steps
    busy_seconds: float | None = None  # like step_seconds, without the time spent waiting for other ranks
    waiting: float | None = None  # since when it has been waiting for other ranks; None: not waiting
    pid: int = 0
    host: str = ""  # Slurm's name of its node
    idle: float | None = None  # seconds for which a program that logs no steps has been idle; None: it logs steps
    gpu_idle: float | None = None  # seconds for which all GPUs of its node have been idle; None: unknown

    @property
    def still_since(self) -> float:
        """When this rank last made progress: its last step, or the start of its phase."""
        return max(self.since, self.step_time or 0.0)


class Observed(Protocol):
    """A rank's last heartbeat, from any source."""

    @property
    def phase(self) -> str: ...
    @property
    def idle(self) -> float | None: ...


def idle_together(ranks: Iterable[Observed], expected: int) -> float | None:
    """For how many seconds all ranks of a program that logs no steps have been idle; otherwise None.

    Ranks that have exited do not count. Also None if fewer than `expected` ranks have sent heartbeats.
    """
    heard = list(ranks)
    present = [rank.idle for rank in heard if rank.phase != ENDED]
    known = [idle for idle in present if idle is not None]
    return min(known) if known and len(known) == len(present) and len(heard) >= expected else None


def gpu_idle(before: float | None, percents: Sequence[float | None], seconds: float) -> float | None:
    """For how long all GPUs of a node have been idle, given the value `before`, `seconds` ago, and `percents` since.

    None if the node has no GPU, or one whose utilization is unknown.
    """
    known = [percent for percent in percents if percent is not None]
    if not known or len(known) < len(percents):
        return None
    return (before or 0.0) + seconds if max(known) < GPU_IDLE_PERCENT else 0.0


class Observer(Protocol):
    """Observes a program from outside; `idle` is the number of seconds without any work."""

    @property
    def idle(self) -> float: ...

    def stacks(self) -> str:
        """The stacks of the program's processes."""
        ...


class Heart:
    """The current state of this process. Updating it takes a few hundred nanoseconds and touches no file."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._phase, self._since = "starting", monotonic()
        self.step = 0  # completed steps
        self.observer: Observer | None = None  # of a program run by this process
        self._last, self._stepped = self._since, False
        self._waiting: float | None = None
        self._waited = 0.0
        self._seconds: deque[float] = deque(maxlen=_KEPT_STEPS)
        self._busy: deque[float] = deque(maxlen=_KEPT_STEPS)

    def enter(self, phase: str) -> None:
        """Start another phase: the time since the last step is not part of a step."""
        self._phase = phase
        self._since = self._last = self._monotonic()
        self._waited, self._waiting = 0.0, None

    def beat(self, step: int) -> None:
        """`step` steps have been completed."""
        now = self._monotonic()
        seconds = now - self._last
        self._seconds.append(seconds)
        self._busy.append(seconds - self._waited)
        self._waited, self._last, self.step, self._stepped = 0.0, now, step, True

    def wait(self) -> None:
        """This rank starts waiting for the others, in a collective."""
        self._waiting = self._monotonic()

    def go_on(self) -> None:
        """This rank stops waiting."""
        if self._waiting is not None:
            self._waited += self._monotonic() - self._waiting
            self._waiting = None

    def beat_at(self, now: float) -> Beat:
        """The heartbeat at `now`, seconds since the epoch. Called from a different thread than the other methods."""
        offset = now - self._monotonic()
        all_seconds, waiting = list(self._seconds.copy()), self._waiting
        # How many of the last steps fit into RECENT_SECONDS, but at least the minimum for a median.
        total = itertools.accumulate(reversed(all_seconds))
        recent = max(_LEAST_STEPS, sum(1 for _ in itertools.takewhile(lambda taken: taken <= RECENT_SECONDS, total)))
        seconds, busy = sorted(all_seconds[-recent:]), sorted(list(self._busy.copy())[-recent:])
        known = len(all_seconds) >= _LEAST_STEPS
        return Beat(
            time=now,
            phase=self._phase,
            since=self._since + offset,
            step=self.step,
            step_time=self._last + offset if self._stepped else None,
            step_seconds=seconds[len(seconds) // 2] if known else None,
            slow_seconds=sorted(all_seconds)[(len(all_seconds) * 99 - 1) // 100] if known else None,
            busy_seconds=busy[len(busy) // 2] if known and busy else None,
            waiting=None if waiting is None else waiting + offset,
            pid=os.getpid(),
            host=node_name(),
            idle=None if self.observer is None else self.observer.idle,
        )


class Pulse:
    """The thread that passes the beats of `heart` to `send`."""

    def __init__(self, heart: Heart, send: Callable[[Beat], object]) -> None:
        self._heart, self._send = heart, send
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._send(self._heart.beat_at(time.time()))
        self._thread.start()

    def end(self) -> None:
        """Send the last beat: this rank is exiting, so its steps are no longer expected."""
        self._done.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._heart.enter(ENDED)
        self._send(self._heart.beat_at(time.time()))

    def _run(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            self._send(self._heart.beat_at(time.time()))


def write_beats(path: Path, beats: Mapping[int, tuple[int, Beat]]) -> None:
    """Update the beats of some ranks of a node in place: local rank -> rank and beat.

    A single write if the local ranks are consecutive, which they are unless some exited before the writer was
    restarted. Opened and closed each time: NFS sends the data when a file is closed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _, places in itertools.groupby(enumerate(sorted(beats)), key=lambda item: item[1] - item[0]):
            local_ranks = [local_rank for _, local_rank in places]
            records = [{"rank": rank, **as_record(beat)} for rank, beat in map(beats.__getitem__, local_ranks)]
            lines = [json.dumps(record).encode().ljust(_BYTES - 1) + b"\n" for record in records]
            os.pwrite(descriptor, b"".join(lines), local_ranks[0] * _BYTES)
    finally:
        os.close(descriptor)


def as_record(beat: Beat) -> dict[str, object]:
    values = asdict(beat).items()
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values}


def read_beats(path: Path) -> dict[int, Beat]:
    """Rank -> beat of one node, without torn or foreign records."""
    try:
        content = read_whole(path)
    except (OSError, ValueError):
        return {}
    lines = [content[begin : begin + _BYTES] for begin in range(0, len(content), _BYTES)]
    records = [Fields(record) for line in lines if (record := parse_record(line)) is not None]
    read = {fields.whole("rank"): parse_beat(fields) for fields in records}
    return {rank: beat for rank, beat in read.items() if rank is not None and rank >= 0 and beat is not None}


def all_beats(attempt: Attempt) -> dict[int, Beat]:
    """Rank -> beat of all nodes that have written any."""
    found: dict[int, Beat] = {}
    for path in attempt.beat_files().values():
        found |= read_beats(path)
    return found


def parse_beat(record: Fields) -> Beat | None:
    """The beat in a record; None if it is not one."""
    read = {name: reader(record, name) for name, reader in _READERS.items() if name in record.content}
    if any(value != record.content[name] or (value is None and name in _NEVER_NULL) for name, value in read.items()):
        return None
    try:
        return Beat(**read)  # type: ignore[arg-type]
    except TypeError:  # a key is missing
        return None


_READERS: dict[str, Callable[[Fields, str], object]] = {
    **dict.fromkeys(("phase", "host"), Fields.text),
    **dict.fromkeys(("step", "pid"), Fields.whole),
    **dict.fromkeys(("time", "since", "step_time", "waiting"), Fields.moment),
    **dict.fromkeys(("step_seconds", "slow_seconds", "busy_seconds", "idle", "gpu_idle"), Fields.number),
}
_NEVER_NULL = ("time", "phase", "since", "step", "pid", "host")


# When a rank is stuck, and what to do about it. `node_watch` observes; `answers` is each rank's part.

EXIT_HUNG = 70
IDLE, IDLE_GPUS = "idle", "idle-gpus"  # reasons for an alarm besides those of `node_watch.suspects`


def action(settings: Watchdog, *, logs_steps: bool, how: str = "") -> str:
    """What to do with a run that is stuck, or idle for the reason `how`: "restart", "fail" or "report"."""
    return settings.action or ("fail" if how == IDLE_GPUS else "restart" if logs_steps else "report")


def patience(settings: Watchdog, beat: Beat) -> float:
    """How many seconds without progress are allowed in the phase of `beat`.

    Infinite for a rank that has exited, and for a program that logs no steps.
    """
    if beat.phase == ENDED or beat.idle is not None:
        return float("inf")
    if beat.phase == State.TRAINING:
        slow = beat.slow_seconds
        return settings.starting if slow is None else max(float(settings.floor), settings.factor * slow)
    has_own = beat.phase in (State.LOADING, State.EVALUATING, State.CHECKPOINTING)
    return float(getattr(settings, beat.phase) if has_own else settings.starting)


@dataclass
class Stillness:
    """How long a rank has made no progress, by the clock of the watching process, since clocks of nodes differ.

    Time in which the watcher itself did not run (suspended machine, all ranks stopped and resumed) does not count.
    """

    beat: Beat | None = None
    seconds: float = 0.0
    every: float = BEAT_SECONDS  # seconds between two checks
    _looked: float | None = None

    def look(self, beat: Beat | None, now: float) -> float:
        """Record the heartbeat at `now`, on any monotonic clock; returns the seconds without progress."""
        away = 0.0 if self._looked is None else min(now - self._looked, 3 * self.every)
        self._looked = now
        if beat is None:  # not started yet, or torn at the moment
            return self.seconds
        moved = self.beat is None or _progress(beat) != _progress(self.beat)
        self.beat = beat
        self.seconds = 0.0 if moved else self.seconds + away
        return self.seconds


def _progress(beat: Beat) -> tuple[str, int, int]:
    return beat.phase, beat.step, beat.pid

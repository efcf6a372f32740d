"""Heartbeats: what each rank does at the moment. A thread hands them to the node's writer about once a second.

`attempts/<n>/nodes/00002.beats` has those of the ranks of node 2, rewritten in place: one JSON object a rank, padded to
a fixed size, at the place of its local rank. `Beat` names the keys; `rank` is beside them.
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

from clusterctl.runs.fields import Fields
from clusterctl.runs.files import parse_record, read_whole
from clusterctl.runs.place import node_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.runs.idleness import Observer
    from clusterctl.runs.layout import Attempt

BEAT_SECONDS = 1.0
_BYTES = 512
_KEPT_STEPS = 200
_LEAST_STEPS = 3  # the first ones warm caches up, and compile
RECENT_SECONDS = 30.0  # of steps: a rank that becomes slow is known by then, however long they are
ENDED = "ended"  # the phase of a rank that has left
GPU_IDLE_PERCENT = 5.0  # a GPU that works less does nothing
IDLE_SECONDS = 60.0  # after which a program that does nothing is worth a word


@dataclass(frozen=True)
class Beat:
    """One heartbeat. Times are seconds since the epoch by the clock of the rank's own node."""

    time: float  # when it was written
    phase: str  # a stage's name, or "ended"
    since: float  # when the phase began
    step: int = 0  # steps done
    step_time: float | None = None  # when the last step ended
    step_seconds: float | None = None  # median of the last RECENT_SECONDS; None until a few steps were done
    slow_seconds: float | None = None  # the slowest of the last 200 steps (99th percentile)
    busy_seconds: float | None = None  # the same median without the time spent waiting for other ranks
    waiting: float | None = None  # since when it waits for other ranks; None: it does not
    pid: int = 0
    host: str = ""  # its node, as Slurm calls it
    idle: float | None = None  # for how many seconds a program that logs no steps has done nothing; None: it logs steps
    gpu_idle: float | None = None  # for how many seconds no GPU of its node has done anything; None: nobody knows

    @property
    def still_since(self) -> float:
        """When this rank last made progress: its last step, or the beginning of its phase."""
        return max(self.since, self.step_time or 0.0)


class Observed(Protocol):
    """A rank as its last heartbeat has it, wherever that was read."""

    @property
    def phase(self) -> str: ...
    @property
    def idle(self) -> float | None: ...


def idle_together(ranks: Iterable[Observed], expected: int) -> float | None:
    """For how many seconds all ranks have done nothing, of a program that logs no steps; else None.

    Ranks that have left do not count. None as well where fewer than `expected` ranks have been heard of.
    """
    heard = list(ranks)
    present = [rank.idle for rank in heard if rank.phase != ENDED]
    known = [idle for idle in present if idle is not None]
    return min(known) if known and len(known) == len(present) and len(heard) >= expected else None


def gpu_idle(before: float | None, percents: Sequence[float | None], seconds: float) -> float | None:
    """For how long no GPU of a node has done anything: `seconds` ago it was `before`, and they worked `percents` since.

    None where the node has no GPU, or one of which nobody knows.
    """
    known = [percent for percent in percents if percent is not None]
    if not known or len(known) < len(percents):
        return None
    return (before or 0.0) + seconds if max(known) < GPU_IDLE_PERCENT else 0.0


class Heart:
    """The pulse of this process. Setting it costs some hundred nanoseconds and touches no file."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._phase, self._since = "starting", monotonic()
        self.step = 0  # steps done
        self.observer: Observer | None = None  # of a program that this process runs
        self._last, self._stepped = self._since, False
        self._waiting: float | None = None
        self._waited = 0.0
        self._seconds: deque[float] = deque(maxlen=_KEPT_STEPS)
        self._busy: deque[float] = deque(maxlen=_KEPT_STEPS)

    def enter(self, phase: str) -> None:
        """Begin another phase: the time since the last step counts for no step."""
        self._phase = phase
        self._since = self._last = self._monotonic()
        self._waited, self._waiting = 0.0, None

    def beat(self, step: int) -> None:
        """`step` steps are done."""
        now = self._monotonic()
        seconds = now - self._last
        self._seconds.append(seconds)
        self._busy.append(seconds - self._waited)
        self._waited, self._last, self.step, self._stepped = 0.0, now, step, True

    def wait(self) -> None:
        """From here on this rank waits for the others, in a collective."""
        self._waiting = self._monotonic()

    def go_on(self) -> None:
        """The others are there."""
        if self._waiting is not None:
            self._waited += self._monotonic() - self._waiting
            self._waiting = None

    def told(self, now: float) -> Beat:
        """The beat to be written at `now`, seconds since the epoch. Called from another thread than the rest."""
        offset = now - self._monotonic()
        all_seconds, waiting = list(self._seconds.copy()), self._waiting
        recent = _recent(all_seconds)
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


def _recent(seconds: list[float]) -> int:
    """How many of the last steps took no more than RECENT_SECONDS together; not fewer than are needed to know."""
    total = itertools.accumulate(reversed(seconds))
    return max(_LEAST_STEPS, sum(1 for _ in itertools.takewhile(lambda taken: taken <= RECENT_SECONDS, total)))


class Pulse:
    """The thread that hands the beats of `heart` to `send`."""

    def __init__(self, heart: Heart, send: Callable[[Beat], object]) -> None:
        self._heart, self._send = heart, send
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._send(self._heart.told(time.time()))
        self._thread.start()

    def end(self) -> None:
        """Send the last beat: this rank is leaving, and nobody has to wait for its steps."""
        self._done.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._heart.enter(ENDED)
        self._send(self._heart.told(time.time()))

    def _run(self) -> None:
        while not self._done.wait(BEAT_SECONDS):
            self._send(self._heart.told(time.time()))


def write_beats(path: Path, beats: Mapping[int, tuple[int, Beat]]) -> None:
    """Rewrite the beats of some ranks of a node in place: local rank -> rank and beat.

    One write where the local ranks are consecutive, as they are but for those that had left before the writer was
    started again. Opened and closed each time: closing is what makes NFS send it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _, places in itertools.groupby(enumerate(sorted(beats)), key=lambda item: item[1] - item[0]):
            local_ranks = [local_rank for _, local_rank in places]
            content = b"".join(_line(*beats[local_rank]) for local_rank in local_ranks)
            os.pwrite(descriptor, content, local_ranks[0] * _BYTES)
    finally:
        os.close(descriptor)


def _line(rank: int, beat: Beat) -> bytes:
    return json.dumps({"rank": rank, **as_record(beat)}).encode().ljust(_BYTES - 1) + b"\n"


def as_record(beat: Beat) -> dict[str, object]:
    values = asdict(beat).items()
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values}


def read_beats(path: Path) -> dict[int, Beat]:
    """Rank -> its beat, of one node; without those that are torn, or none of ours."""
    try:
        content = read_whole(path)
    except (OSError, ValueError):
        return {}
    lines = [content[begin : begin + _BYTES] for begin in range(0, len(content), _BYTES)]
    records = [Fields(record) for line in lines if (record := parse_record(line)) is not None]
    read = {fields.whole("rank"): parse_beat(fields) for fields in records}
    return {rank: beat for rank, beat in read.items() if rank is not None and rank >= 0 and beat is not None}


def all_beats(attempt: Attempt) -> dict[int, Beat]:
    """Rank -> its beat, of all nodes that have written any."""
    found: dict[int, Beat] = {}
    for path in attempt.beat_files().values():
        found |= read_beats(path)
    return found


def parse_beat(record: Fields) -> Beat | None:
    """The beat in a record; None where it is none of ours."""
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

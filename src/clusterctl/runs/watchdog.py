"""The watchdog inside a run: each rank watches the next one, and ends the attempt when that one is stuck.

The first to notice looks at all heartbeats (`judgement`) and writes `hang.json`; each rank that still can then writes
the Python stacks of all its threads into its events, and the attempt ends - for a restart or as failed, as `[watchdog]`
says. Where that says "report", the alarm is `hang-report.json`, the ranks write where they are, and go on. A program
that logs no steps is watched by what it does (`idleness`).
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from clusterctl.runs.files import write_text
from clusterctl.runs.heartbeats import BEAT_SECONDS, ENDED, Beat, Heart, Pulse, read_beat
from clusterctl.runs.judgement import Judge, suspects
from clusterctl.runs.requests import request_restart
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterctl.runs.events import Events
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place
    from clusterctl.spec import Watchdog

EXIT_HUNG = 70
DUMP_SIGNAL = signal.SIGRTMIN + 5  # default: death; so it is sent only to processes that have written a heartbeat
LONGEST_STACKS = 32_000  # characters in the events; readers look at the last 64 KiB of them
_ANSWER_SECONDS = 2 * BEAT_SECONDS  # within which every rank whose Python runs has seen the alarm
_DUMP_SECONDS = 6.0
_LEAVE_SECONDS = 10.0  # srun ends the other ranks when the first has left; should it not, they leave by themselves


def action(settings: Watchdog, *, logs_steps: bool) -> str:
    """What to do with a run that is stuck: "restart", "fail" or "report"."""
    return settings.action or ("restart" if logs_steps else "report")


def patience(settings: Watchdog, beat: Beat) -> float:
    """For how many seconds a rank may make no progress in the phase of `beat`.

    Infinite for one that has left, and for a program that logs no steps.
    """
    if beat.phase == ENDED or beat.idle is not None:
        return float("inf")
    if beat.phase == Stage.TRAINING:
        slow = beat.slow_seconds
        return settings.starting if slow is None else max(float(settings.floor), settings.factor * slow)
    has_own = beat.phase in (Stage.LOADING, Stage.EVALUATING, Stage.CHECKPOINTING)
    return float(getattr(settings, beat.phase) if has_own else settings.starting)


@dataclass
class Stillness:
    """How long a rank has made no progress, by the clock of the rank that watches it, as clocks of nodes differ.

    Seconds in which the watcher itself was away (the machine suspended, all ranks stopped and woken) do not count.
    """

    beat: Beat | None = None
    seconds: float = 0.0
    _looked: float | None = None

    def look(self, beat: Beat | None, now: float) -> float:
        """Note the heartbeat at `now`, on any steady clock; returns the seconds without progress."""
        away = 0.0 if self._looked is None else min(now - self._looked, 3 * BEAT_SECONDS)
        self._looked = now
        if beat is None:  # not begun, or torn at this moment
            return self.seconds
        moved = self.beat is None or _progress(beat) != _progress(self.beat)
        self.beat = beat
        self.seconds = 0.0 if moved else self.seconds + away
        return self.seconds


def _progress(beat: Beat) -> tuple[str, int, int]:
    return beat.phase, beat.step, beat.pid


class _Alarm(NamedTuple):
    """That the rank `seen` made no progress for `still` seconds, which is more than `limit`, and who is suspected."""

    seen: int
    still: float
    limit: float
    suspects: list[int]
    how: str
    beats: dict[int, Beat]
    step: float | None  # how far the run came; None if it logs no steps


class Watch:
    """One rank's part of the watchdog, called once a second by its heartbeat's thread."""

    def __init__(
        self,
        attempt: Attempt,
        place: Place,
        events: Events,
        settings: Watchdog,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self._attempt, self._place, self._events, self._settings, self._leave = attempt, place, events, settings, leave
        self._watched = (place.rank + 1) % place.world_size
        self._stillness = Stillness()
        self._judge = Judge(attempt, place.world_size)
        self._reported = False  # whether this rank has written where it was

    def look(self) -> None:
        """Look at the watched rank and for an alarm; ends this process when there is one. Never waits before that."""
        alarms = alarms_of(self._attempt)
        if self._attempt.hang_json in alarms:
            self._end()
        elif alarms and not self._reported:
            self._reported = True
            self._record_stacks()
        if not self._settings.enabled or (self._reported and self._settings.action == "report"):
            return
        observer = self._events.heart.observer
        if observer is not None and observer.alarm:
            still = min(beat.idle for beat in observer.alarm.values() if beat.idle is not None)
            self._raise(_Alarm(self._place.rank, still, observer.limit, [], "idle", observer.alarm, None))
        else:
            self._look_at_steps()

    def _look_at_steps(self) -> None:
        beat = read_beat(self._attempt.heartbeat(self._watched))
        still = self._stillness.look(beat, time.monotonic())
        if beat is None or still <= patience(self._settings, beat):
            self._judge.drop()
        elif (looks := self._judge.looks()) is not None:
            beats = looks.later | {self._watched: beat}
            found = suspects(looks.earlier, beats)
            step = max(beat.step for beat in beats.values())
            self._raise(_Alarm(self._watched, still, patience(self._settings, beat), *found, beats, step))
            self._judge.drop()

    def _raise(self, alarm: _Alarm) -> None:
        """Write the alarm, and end the attempt where that is wanted; nothing if another rank was faster."""
        what = action(self._settings, logs_steps=alarm.step is not None)
        record = {
            "time": time.time(),
            "by": self._place.rank,
            "seen": alarm.seen,
            "phase": alarm.beats[alarm.seen].phase,
            "still_seconds": round(alarm.still, 1),
            "limit_seconds": round(alarm.limit, 1),
            "suspects": alarm.suspects,
            "how": alarm.how,
            "beats": {rank: asdict(found) for rank, found in alarm.beats.items()},
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # the first one wins, on NFS too
        path = self._attempt.hang_report_json if what == "report" else self._attempt.hang_json
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            return
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        if what != "report":  # that is for all ranks to see
            self._end(raised=True, restart=what == "restart", step=alarm.step)

    def _end(self, *, raised: bool = False, restart: bool = False, step: float | None = None) -> None:
        """Record the stacks of all threads, let the others do so, and leave - the rank that raised the alarm first."""
        asked = time.monotonic()
        _ask_flight_recorder(self._attempt, self._place.rank)
        self._record_stacks()
        self._prod_node(asked + _ANSWER_SECONDS)
        if not raised:
            time.sleep(_LEAVE_SECONDS)
        else:
            self._wait_for_stacks(range(self._place.world_size), asked + _DUMP_SECONDS)
            if restart:
                request_restart(self._attempt, "hang", step=step)
        self._events.exit(EXIT_HUNG)
        self._leave(EXIT_HUNG)

    def _record_stacks(self) -> None:
        """Write where this rank is into its events; a program that logs steps tells that itself."""
        asked, observer = time.monotonic(), self._events.heart.observer
        dump_stacks(self._attempt, self._place.rank, observer.stacks if observer else stacks_text)
        self._wait_for_stacks([self._place.rank], asked + _ANSWER_SECONDS)
        stacks = ""
        with suppress(OSError):
            stacks = self._attempt.stacks(self._place.rank).read_text(encoding="utf-8", errors="replace")
        self._events.record("hang", stacks=stacks[:LONGEST_STACKS])

    def _wait_for_stacks(self, ranks: Iterable[int], deadline: float) -> None:
        while time.monotonic() < deadline and not all(self._attempt.stacks(rank).exists() for rank in ranks):
            time.sleep(0.1)

    def _prod_node(self, deadline: float) -> None:
        """Have the ranks of this node (its own program too) that wrote no stacks until `deadline` do so.

        Where C code keeps the GIL no Python code runs, but a signal's C handler does. The signal has to come from the
        same node: this rank sends it to those that follow it, up to the next one that wrote its stacks.
        """
        beats = dict(self._beats_of_node())
        self._wait_for_stacks(beats, deadline)
        following = sorted(beats, key=lambda rank: (rank < self._place.rank, rank))
        for rank in following:
            if self._attempt.stacks(rank).exists():
                if rank != self._place.rank:
                    return
            elif _is_of_attempt(beats[rank].pid, self._attempt):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(beats[rank].pid, DUMP_SIGNAL)

    def _beats_of_node(self) -> Iterator[tuple[int, Beat]]:
        """The last beats of this node's ranks, which are consecutive in Slurm's default placement."""
        for rank in range(self._place.rank - self._place.local_rank, self._place.world_size):
            beat = read_beat(self._attempt.heartbeat(rank))
            if beat is not None and beat.host != socket.gethostname():
                return
            if beat is not None:
                yield rank, beat


def watched(attempt: Attempt, place: Place, events: Events, settings: Watchdog) -> Pulse:
    """Begin to write heartbeats and to watch, in one thread; returned so that it can be ended."""
    register_dump(attempt, place.rank)
    pulse = Pulse(events.heart, attempt.heartbeat(place.rank), Watch(attempt, place, events, settings).look)
    pulse.start()
    return pulse


def beating(heart: Heart, attempt: Attempt, rank: int) -> None:
    """Begin to write the heartbeats of `rank` from this process, a program that a task started; the task watches."""
    register_dump(attempt, rank)

    def look() -> None:
        if not attempt.stacks(rank).exists() and alarms_of(attempt):
            dump_stacks(attempt, rank, stacks_text)

    Pulse(heart, attempt.heartbeat(rank), look, takes_over=True).start()


def alarms_of(attempt: Attempt) -> set[Path]:
    """The alarms that were raised, by listing their folder: NFS remembers for a while that a name did not exist."""
    with suppress(FileNotFoundError):
        return {attempt.hang_json, attempt.hang_report_json}.intersection(attempt.path.iterdir())
    return set()


def register_dump(attempt: Attempt, rank: int) -> None:
    """Let DUMP_SIGNAL write this process's stacks, whatever its threads do."""
    global _dump_file
    with suppress(OSError, ValueError):
        path = attempt.stacks(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".signal")
        _dump_file = aside.open("w")
        faulthandler.register(DUMP_SIGNAL, _dump_file, all_threads=True)


_dump_file: IO[str] | None = None  # faulthandler keeps the descriptor, not the file


def dump_stacks(attempt: Attempt, rank: int, text: Callable[[], str]) -> None:
    """Write the stacks of this process's threads, unless another process of the rank writes its heartbeats."""
    beat = read_beat(attempt.heartbeat(rank))
    if beat is not None and beat.pid not in (0, os.getpid()):
        return
    path = attempt.stacks(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text())


def _ask_flight_recorder(attempt: Attempt, rank: int) -> None:
    """Have NCCL write down this rank's last collectives: torch listens on a pipe of this name, where it uses NCCL."""
    with suppress(OSError):
        pipe = os.open(attempt.collectives / f"ask_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"1\n")
        finally:
            os.close(pipe)


def stacks_text() -> str:
    """The stacks of all threads but the one that asks, the main thread's first, the innermost call last."""
    main, own = threading.main_thread().ident, threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # noqa: SLF001 - the only way
    parts = [
        f"Thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
        for ident, frame in frames
        if ident != own
    ]
    return "\n".join(parts)


def _is_of_attempt(pid: int, attempt: Attempt) -> bool:
    """Whether the process is a task of this run: a number may have become somebody else's."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"CLUSTERCTL_RUN_DIR=" + os.fsencode(attempt.path.parent.parent) in variables

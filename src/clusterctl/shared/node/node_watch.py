"""The watchdog of a node: its writer watches the ranks' heartbeats in memory and ends the attempt if one is stuck.

The first node to notice reads the heartbeats of all nodes (`Judge`) and writes `hang.json`, or `hang-report.json`
if the alarm is only a report. Each node also checks the next node's heartbeats from time to time: ranks that do not
depend on each other may continue while a node is frozen.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.record.files import lateness, write_first
from clusterctl.shared.record.heartbeats import (
    BEAT_SECONDS,
    ENDED,
    IDLE,
    IDLE_GPUS,
    Beat,
    Stillness,
    action,
    patience,
    read_beats,
)
from clusterctl.shared.record.marks import request_restart
from clusterctl.shared.record.once import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.spec import Watchdog


NEIGHBOUR_SECONDS = 10.0  # between two checks of the next node
ANSWER_SECONDS = 2 * BEAT_SECONDS  # in this time every rank that can run Python answers an alarm
DUMP_SECONDS = 6.0  # in this time every node sees the alarm and its ranks answer
_UNREST = 0.1  # fraction of a rank's patience without progress after which to look for alarms of other nodes
_IDLE_LOOK_SECONDS = 30.0  # between two checks whether all ranks are idle


class Stuck(NamedTuple):
    """The rank `seen` made no progress for `still` seconds, more than `limit`; and the suspected ranks."""

    seen: int
    still: float
    limit: float
    suspects: list[int]
    how: str
    beats: Mapping[int, Beat]
    step: float | None  # the run's progress; None if it logs no steps


class Idleness(NamedTuple):
    """One kind of idleness: a rank's idle `seconds`, and their `limit`."""

    how: str
    limit: float
    seconds: Callable[[Beat], float | None]

    def holds_for(self, beats: Iterable[Beat]) -> bool:
        """Whether all ranks that have not exited have been idle for too long."""
        present = [self.seconds(beat) or 0.0 for beat in beats if beat.phase != ENDED]
        return bool(present) and min(present) >= self.limit


@dataclass
class NodeWatch:
    """Call `look` once a second; `alarm` becomes "hang" or "report" if this or another node has raised one."""

    attempt: Attempt
    node: int
    nodes: int
    world_size: int
    settings: Watchdog
    clock: Callable[[], float] = time.monotonic
    on_alarm: Callable[[], object] = lambda: None  # called when this node has raised one
    alarm: str = ""
    raised: Stuck | None = None  # the alarm of this node, if the attempt has to end
    _still: dict[int, Stillness] = field(default_factory=dict)
    _next: dict[int, Stillness] = field(default_factory=dict)  # of the next node
    _idle_look: float = 0.0

    def __post_init__(self) -> None:
        self._late_seconds = lateness(self.attempt.path)
        self._judge = Judge(self.attempt, self.nodes, self._late_seconds)

    def look(self, beats: Mapping[int, Beat]) -> None:
        """Check the node's ranks, and look for another node's alarm when they make no progress. Never blocks."""
        now = self.clock()
        for rank, beat in beats.items():
            self._still.setdefault(rank, Stillness()).look(beat, now)
        # The kinds of idleness that matter to the job, starting with the GPUs', which ends it.
        kinds = [
            Idleness(IDLE_GPUS, self.settings.idle_gpu, lambda beat: beat.gpu_idle),
            Idleness(IDLE, self.settings.idle, lambda beat: beat.idle),
        ]
        kinds = [kind for kind in kinds if kind.limit]
        # In steady training, no file is read to look for alarms.
        if self.alarm != "hang" and any(
            self._still[rank].seconds > _UNREST * patience(self.settings, beat)
            or any((kind.seconds(beat) or 0.0) > _UNREST * kind.limit for kind in kinds)
            for rank, beat in beats.items()
        ):
            with suppress(OSError):
                self.alarm = alarm_of(self.attempt) or self.alarm
        if not self.settings.enabled or self.alarm == "hang" or (self.alarm and self.settings.action == "report"):
            return
        idle = next((kind for kind in kinds if kind.holds_for(beats.values())), None)
        if idle and now >= self._idle_look:
            self._look_at_idleness(idle, now)
        else:
            self._look_at_steps(beats)

    def look_at_next(self) -> None:
        """Check the next node's heartbeats, every NEIGHBOUR_SECONDS."""
        now = self.clock()
        for rank, beat in read_beats(self.attempt.beats((self.node + 1) % self.nodes)).items():
            self._next.setdefault(rank, Stillness(every=NEIGHBOUR_SECONDS)).look(beat, now)

    def end(self) -> None:
        """Request a restart for this node's alarm, if the job wants one."""
        assert self.raised is not None
        if self._action(self.raised) == "restart":
            request_restart(self.attempt, "hang", step=self.raised.step)

    def _look_at_idleness(self, idle: Idleness, now: float) -> None:
        if (looks := self._judge.looks()) is None:
            return
        if all_idle(*looks, idle.limit, self.world_size, idle.seconds):
            present = {rank: beat for rank, beat in looks.later.items() if beat.phase != ENDED}
            still = min(idle.seconds(beat) or 0.0 for beat in present.values())
            steps = [beat.step for beat in present.values() if beat.idle is None]
            self._raise(Stuck(min(present), still, idle.limit, [], idle.how, looks.later, max(steps, default=None)))
        self._idle_look = now + _IDLE_LOOK_SECONDS
        self._judge.drop()

    def _look_at_steps(self, beats: Mapping[int, Beat]) -> None:
        late = next(self._late(beats), None)
        if late is None:
            self._judge.drop()
        elif (looks := self._judge.looks()) is not None:
            rank, beat, still = late
            seen = {**looks.later, rank: beat}
            step = max(beat.step for beat in seen.values())
            found = suspects(looks.earlier, seen)
            self._raise(Stuck(rank, still, patience(self.settings, beat), *found, seen, step))
            self._judge.drop()

    def _late(self, beats: Mapping[int, Beat]) -> Iterator[tuple[int, Beat, float]]:
        for rank, beat in beats.items():
            if (still := self._still[rank].seconds) > patience(self.settings, beat):
                yield rank, beat, still
        for rank, stillness in self._next.items():
            # Those beats come through the file system, which may show them this much later.
            still = stillness.seconds - self._late_seconds
            if stillness.beat is not None and still > patience(self.settings, stillness.beat):
                yield rank, stillness.beat, still

    def _action(self, alarm: Stuck) -> str:
        return action(self.settings, logs_steps=alarm.step is not None, how=alarm.how)

    def _raise(self, alarm: Stuck) -> None:
        """Write the alarm, unless another node was faster."""
        what = self._action(alarm)
        record = {
            "time": time.time(),
            "by": self.node,
            "seen": alarm.seen,
            "phase": alarm.beats[alarm.seen].phase,
            "still_seconds": round(alarm.still, 1),
            "limit_seconds": round(alarm.limit, 1),
            "suspects": alarm.suspects,
            "how": alarm.how,
            "beats": {rank: asdict(found) for rank, found in alarm.beats.items()},
        }
        path = self.attempt.hang_report_json if what == "report" else self.attempt.hang_json
        if not write_first(path, record):
            return
        self.alarm = "report" if what == "report" else "hang"
        if what != "report":
            self.raised = alarm
        self.on_alarm()


def alarm_of(attempt: Attempt) -> str:
    """The most severe alarm; lists the folder, since NFS caches the absence of a name for a while."""
    found: set[Path] = {attempt.hang_json, attempt.hang_report_json}.intersection(attempt.path.iterdir())
    return "hang" if attempt.hang_json in found else "report" if found else ""


# Finds the ranks that block the others: the writer of one node reads the heartbeats of all nodes twice.


CONFIRM_SECONDS = 3.2 * BEAT_SECONDS  # in this time every node writes newer beats of its ranks
LEASE_SECONDS = 30.0  # afterwards its holder is considered stuck or dead
_READERS = 16  # in parallel: on a shared file system a read may take milliseconds


def suspects(earlier: dict[int, Beat], later: dict[int, Beat]) -> tuple[list[int], str]:
    """The ranks that block the others, judged from two snapshots of all heartbeats, and the kind of evidence.

    A rank without a new heartbeat is stopped (or holds the GIL). A rank that does not wait while it is behind, or while
    the others wait, is the one they wait for. Empty if nothing distinguishes the ranks. Ranks that log no steps while
    others do are never behind.
    """
    present = {rank: beat for rank, beat in later.items() if beat.phase != ENDED}
    silent = [rank for rank, beat in present.items() if rank in earlier and earlier[rank].time == beat.time]
    # If all are silent, that blames none: the file system may be stuck, or all nodes were suspended.
    if silent and len(silent) < len(present):
        return silent, "silent"
    stepping = {rank: beat for rank, beat in present.items() if beat.idle is None}
    most = max((beat.step for beat in stepping.values()), default=0)
    behind = [rank for rank, beat in stepping.items() if beat.step < most and beat.waiting is None]
    if behind:
        return behind, "behind"
    busy = [rank for rank, beat in stepping.items() if beat.waiting is None]
    if busy and len(busy) < len(stepping):
        return busy, "busy"
    return (list(stepping), "alone") if len(stepping) == 1 else ([], "unknown")


def all_idle(
    earlier: Mapping[int, Beat],
    later: Mapping[int, Beat],
    seconds: float,
    expected: int,
    idle: Callable[[Beat], float | None] = lambda beat: beat.idle,
) -> bool:
    """Whether all ranks that have not exited are alive, judged from two snapshots, and `idle` for `seconds`.

    Clocks are not compared with each other: a rank is alive if it has written a new heartbeat. False if fewer than
    `expected` ranks have sent any.
    """
    present = {rank: beat for rank, beat in later.items() if beat.phase != ENDED}
    return (
        len(later) >= expected
        and bool(present)
        and all(
            (idle(beat) or 0.0) >= seconds and rank in earlier and earlier[rank].time != beat.time
            for rank, beat in present.items()
        )
    )


class Looks(NamedTuple):
    """All readable heartbeats by rank, in two snapshots at least CONFIRM_SECONDS apart."""

    earlier: dict[int, Beat]
    later: dict[int, Beat]


class Judge:
    """Takes the two snapshots for one node: gets the lease, or waits while another node has it."""

    def __init__(self, attempt: Attempt, nodes: int, late: float = 0.0) -> None:
        """`late`: for how many seconds this node may not see the other nodes' writes."""
        self._attempt, self._nodes, self._late = attempt, nodes, late
        self._lease = Lease(attempt.hang_lease, LEASE_SECONDS + late)
        self._looks: list[Looks] | None = None  # filled by the reading thread; None: no lease

    def looks(self) -> Looks | None:
        """The snapshots, once they have been taken; starts taking them if no node does. Never blocks."""
        looks: list[Looks] = []

        def look_twice() -> None:
            earlier = self._beats()
            time.sleep(CONFIRM_SECONDS + self._late)
            looks.append(Looks(earlier, self._beats()))

        with suppress(OSError):  # no lease: retried at the next call
            if self._looks is None and self._lease.take():
                self._looks = looks  # after a `drop` meanwhile, the thread fills a list that nobody reads
                threading.Thread(target=look_twice, name="judgement", daemon=True).start()
        return self._looks[0] if self._looks else None

    def drop(self) -> None:
        """Give up: there is nothing to judge any more."""
        if self._looks is not None:
            self._lease.release()
        self._looks = None

    def _beats(self) -> dict[int, Beat]:
        with ThreadPoolExecutor(min(_READERS, self._nodes), "judgement") as pool:
            found = pool.map(read_beats, map(self._attempt.beats, range(self._nodes)))
            return {rank: beat for beats in found for rank, beat in beats.items()}

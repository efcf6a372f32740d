"""Finds the ranks that block the others: the writer of one node reads the heartbeats of all nodes twice.

When one rank stops, all nodes notice. If each of them read every heartbeat, the file system would slow down until
healthy ranks looked silent, so only the node that gets the lease does: a folder, since mkdir is atomic on NFS and
Lustre. It reads in separate threads, so that its node's heartbeats are still written.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.runs.heartbeats import BEAT_SECONDS, ENDED, Beat, read_beats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.runs.layout import Attempt

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
        self._looks: list[Looks] | None = None  # filled by the reading thread; None: no lease
        self._refused: float | None = None  # since when

    def looks(self) -> Looks | None:
        """The snapshots, once they have been taken; starts taking them if no node does. Never blocks."""
        if self._looks is None and self._has_lease():
            self._looks = []
            threading.Thread(target=self._look_twice, args=(self._looks,), name="judgement", daemon=True).start()
        return self._looks[0] if self._looks else None

    def drop(self) -> None:
        """Give up: there is nothing to judge any more."""
        if self._looks is not None:
            with suppress(OSError):
                self._attempt.hang_lease.rmdir()
        self._looks = self._refused = None

    def _has_lease(self) -> bool:
        try:
            self._attempt.hang_lease.mkdir(mode=0o700)
        except FileExistsError:
            now = time.monotonic()
            self._refused = self._refused or now
            if now - self._refused > LEASE_SECONDS + self._late:
                self._refused = None
                with suppress(OSError):  # another node was faster
                    self._attempt.hang_lease.rmdir()
            return False
        except OSError:  # retried at the next call
            return False
        return True

    def _look_twice(self, looks: list[Looks]) -> None:
        earlier = self._beats()
        time.sleep(CONFIRM_SECONDS + self._late)
        looks.append(Looks(earlier, self._beats()))

    def _beats(self) -> dict[int, Beat]:
        with ThreadPoolExecutor(min(_READERS, self._nodes), "judgement") as pool:
            found = pool.map(read_beats, map(self._attempt.beats, range(self._nodes)))
            return {rank: beat for beats in found for rank, beat in beats.items()}

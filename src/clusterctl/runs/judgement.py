"""Which ranks hold the others up: the writer of one node looks at the heartbeats of all nodes, twice.

When one rank stops, all nodes notice. Were each of them to read every heartbeat, the file system would slow down until
living ranks look silent; so the first takes a lease, a folder, as mkdir is atomic on NFS and Lustre. It reads in
threads of its own: its node's heartbeats are written meanwhile.
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

CONFIRM_SECONDS = 3.2 * BEAT_SECONDS  # within which every node writes its ranks' beats again, each newer than before
LEASE_SECONDS = 30.0  # after which its holder counts as stuck or gone itself
_READERS = 16  # at once: on a shared file system a read may take milliseconds


def suspects(earlier: dict[int, Beat], later: dict[int, Beat]) -> tuple[list[int], str]:
    """Which ranks hold the others up, by two looks at all heartbeats a little apart, and how that shows.

    A rank that writes no more is stopped (or holds the GIL); one that is behind the others and does not wait, or does
    not wait when they do, is what they wait for. Empty if nothing distinguishes them. Ranks that log no steps, while
    others do, are behind nobody.
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
    """Whether all ranks that have not left are alive, by two looks at their heartbeats, and `idle` for `seconds`.

    No clock is compared with another: a rank is alive if it has written anew. False where fewer than `expected` ranks
    have been heard of.
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
    """All heartbeats that could be read, by their ranks, at two moments CONFIRM_SECONDS or more apart."""

    earlier: dict[int, Beat]
    later: dict[int, Beat]


class Judge:
    """One node's way to the two looks: it takes the lease, or waits while another node has it."""

    def __init__(self, attempt: Attempt, nodes: int, late: float = 0.0) -> None:
        """`late`: for how many seconds this node may not see what the others write."""
        self._attempt, self._nodes, self._late = attempt, nodes, late
        self._looks: list[Looks] | None = None  # filled by the thread that looks; None: without the lease
        self._refused: float | None = None  # since when

    def looks(self) -> Looks | None:
        """What was seen, once it has been seen; begins to look where nobody does. Never waits."""
        if self._looks is None and self._has_lease():
            self._looks = []
            threading.Thread(target=self._look_twice, args=(self._looks,), name="judgement", daemon=True).start()
        return self._looks[0] if self._looks else None

    def drop(self) -> None:
        """There is nothing to judge any more."""
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
        except OSError:  # at the next look, perhaps
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

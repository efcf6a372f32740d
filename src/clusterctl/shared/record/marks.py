"""Marks: files whose names determine what the batch script does next; its `look` function reads them.

`attempts/<n>/marks/` contains

    00003.running   rank 3 has started; if srun has ended, the rank or its program was killed
    00003.done      it exited with 0
    00003.asked     it exited with a restart code, after a request by itself or another rank
    00003.ended     it exited with another code
    00003.cut       ... because it had lost its connections to other ranks, while training
    00003.node7.broken  ... because a GPU of its node, node7, is certainly broken
    00003.term      ... after TERM, with any code, or with the code of TERM, 143
    restart         a task requests a restart; any program may create this file
    no-progress     ... although the attempt got no further than the previous one
    unasked         ... on behalf of a program that has left after the warning: it counts if the script finds progress
    unproven        it counted without, for once
    finished        the attempt finished the run; created by the script itself

A rank renames its one file, which works even on a full disk. The script reads the marks when all tasks have exited.
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import StrEnum
from signal import SIGTERM
from threading import Lock
from typing import TYPE_CHECKING

from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import is_listed, names_in, rename, status_of, with_retries, write_json
from clusterctl.shared.record.heartbeats import EXIT_HUNG
from clusterctl.shared.record.layout import Attempt, RunDir

if TYPE_CHECKING:
    from pathlib import Path


EXIT_RESTART = 75  # sysexits.h: try again later
_SUFFIXES = {0: ".done", EXIT_RESTART: ".asked", EXIT_HUNG: ".asked", 128 + SIGTERM: ".term"}


class RankMark:
    """The mark of one rank. `end` may be called twice: after TERM, the rank may still succeed."""

    def __init__(self, attempt: Attempt, rank: int) -> None:
        self._path = attempt.marks / f"{rank:05}.running"
        self._lock = Lock()  # TERM is handled in a thread

    def begin(self) -> None:
        _make(self._path.parent)
        with_retries(lambda: self._path.touch(mode=0o600))

    def end(self, code: int, *, cut: bool = False, broken: str = "") -> None:
        """`cut`: it has lost its connections; `broken`: the node whose GPU is. The TERM that srun sends once one rank
        has failed changes neither.
        """
        with self._lock, suppress(OSError):  # the rank exits anyway
            if self._path.suffix in (".cut", ".broken"):
                return
            after_term = self._path.suffix if self._path.suffix == ".term" else ".ended"
            suffix = f".{broken}.broken" if broken else ".cut" if cut else _SUFFIXES.get(code, after_term)
            self._path = rename(self._path, self._path.with_suffix(suffix))


def _make(marks: Path) -> None:
    """Create the folder, unless the run's own was moved or removed meanwhile: it must not reappear."""
    status_of(marks.parents[2])
    with_retries(lambda: marks.mkdir(parents=True, exist_ok=True))


def all_done(attempt: Attempt, ranks: int) -> bool:
    """Whether every rank exited with 0 and none requested a restart; lists the folder only after rank 0 has exited."""
    try:
        status_of(attempt.marks / "00000.done")
        names = names_in(attempt.marks)
    except OSError:
        return False
    return sum(name.endswith(".done") for name in names) == ranks and restart_file(attempt).name not in names


def asked_for_restart(attempt: Attempt) -> bool:
    """Whether a task has requested a restart."""
    try:
        return is_listed(restart_file(attempt))
    except OSError:
        return False


def restart_file(attempt: Attempt) -> Path:
    return attempt.marks / "restart"


def ask_for_restart(attempt: Attempt, *, progress: bool | None) -> None:
    """`progress` None: the script decides whether there was any."""
    _make(attempt.marks)
    if not progress:
        mark = "unasked" if progress is None else "no-progress"
        with_retries(lambda: (attempt.marks / mark).touch(mode=0o600))
    with_retries(lambda: restart_file(attempt).touch(mode=0o600))


# A task's request to restart the run: there is no scontrol inside a container.

PATIENCE_SECONDS = 60.0  # with rank 0, which may be writing a checkpoint


class Refusal(StrEnum):
    """Why the batch script did not requeue a run: `refused` in host.json."""

    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    NO_PROGRESS = "no-progress"
    KILLED_AGAIN = "killed-again"
    RESTART_LIMIT = "restart-limit"
    IN_ALLOCATION = "in-allocation"
    REQUEUE_FAILED = "requeue-failed"
    NO_MORE_MEMORY = "no-more-memory"
    NO_MORE_TIME = "no-more-time"


def request_restart(attempt: Attempt, reason: str, *, step: float | None = None, progress: bool | None = None) -> None:
    """Request a restart of the run of `attempt`; to be called by one rank before any rank exits.

    `reason` is "warned" or "hang". A run without progress is not restarted: by default, one whose `step` is not beyond
    that of the last request. An unknown step counts as progress, since the number of restarts is limited.
    """
    if progress is None:
        last = read_fields(RunDir(attempt.path.parents[1]).requeue_json).number("step")
        progress = step is None or last is None or step > last
    _record_request(attempt, reason, step, progress)
    ask_for_restart(attempt, progress=progress)


def go_back_unasked(attempt: Attempt, rank: int) -> None:
    """Request a restart for a program that has left after the warning without a word. To be called by every rank."""
    if rank == 0:
        _record_request(attempt, "warned", None, None)
    ask_for_restart(attempt, progress=None)


def _record_request(attempt: Attempt, reason: str, step: float | None, progress: bool | None) -> None:
    record = {"attempt": attempt.number, "reason": reason, "time": time.time(), "step": step, "progress": progress}
    write_json(RunDir(attempt.path.parents[1]).requeue_json, record)


def wait_for_request(attempt: Attempt, seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait for another rank's request, since srun ends all ranks when the first one exits; False after the timeout."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_listed(restart_file(attempt)):
            return True
        time.sleep(0.1)
    return False

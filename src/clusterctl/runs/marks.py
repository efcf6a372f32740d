"""Marks: files whose names alone decide what the batch script does next; its `look` reads them.

`attempts/<n>/marks/` holds

    00003.running   rank 3 has begun; if srun has ended, the rank, or the program that it ran, was killed
    00003.done      it left with 0
    00003.asked     it left with one of the codes of a restart, which it or another rank asked for
    00003.ended     it left with another code
    restart         a task asks for a restart: what any program may create
    no-progress     ... although the attempt came no further than the one before
    finished        the attempt finished the run; made by the script itself

A rank renames its one file: a full disk still takes that. The script looks when all tasks have left.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from clusterctl.runs.files import names_in, rename, status_of, with_retries
from clusterctl.runs.watchdog import EXIT_HUNG

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.runs.layout import Attempt

EXIT_RESTART = 75  # sysexits.h: try again later
_SUFFIXES = {0: ".done", EXIT_RESTART: ".asked", EXIT_HUNG: ".asked"}


class RankMark:
    """The mark of one rank. It may end twice: after TERM, the rank may still finish well."""

    def __init__(self, attempt: Attempt, rank: int) -> None:
        self._path = attempt.marks / f"{rank:05}.running"
        self._lock = Lock()  # TERM ends it from a thread

    def begin(self) -> None:
        with_retries(lambda: self._path.parent.mkdir(parents=True, exist_ok=True))
        with_retries(lambda: self._path.touch(mode=0o600))

    def end(self, code: int) -> None:
        with self._lock, suppress(OSError):  # the rank is leaving all the same
            self._path = rename(self._path, self._path.with_suffix(_SUFFIXES.get(code, ".ended")))


def all_done(attempt: Attempt, ranks: int) -> bool:
    """Whether every rank left with 0, and none asked for a restart; the folder is listed only once rank 0 has."""
    try:
        status_of(attempt.marks / "00000.done")
        names = names_in(attempt.marks)
    except OSError:
        return False
    return sum(name.endswith(".done") for name in names) == ranks and restart_file(attempt).name not in names


def restart_file(attempt: Attempt) -> Path:
    return attempt.marks / "restart"


def ask_for_restart(attempt: Attempt, *, progress: bool) -> None:
    with_retries(lambda: attempt.marks.mkdir(parents=True, exist_ok=True))
    if not progress:
        with_retries(lambda: (attempt.marks / "no-progress").touch(mode=0o600))
    with_retries(lambda: restart_file(attempt).touch(mode=0o600))

"""Prepare a folder once for everybody on a shared file system, however many nodes and runs want it at the same time.

The lease is a folder, as mkdir is atomic on NFS and Lustre, and only saves work: what is prepared in it gets its name
by one rename, so should two processes ever hold a lease, the first rename wins.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from clusterctl.runs.files import exists, is_listed, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEAT_SECONDS = 2.0
STALE_SECONDS = 30.0  # without a beat; a holder that was killed cannot give its lease back


def prepared_once(
    folder: Path,
    prepare: Callable[[Path], None],
    stale_seconds: float = STALE_SECONDS,
    *,
    whole: Callable[[Path], bool] = lambda _: True,
) -> Path:
    """`folder`, filled by `prepare` here or elsewhere; raises what `prepare` raises, and others may try again.

    `prepare` is given a fresh folder on the same file system. A folder that is not `whole` is prepared anew.
    """

    def work(building: Path) -> None:
        if exists(folder):
            _take_away(folder)  # damaged; who has its files mapped keeps them
        prepare(building)
        try:
            building.rename(folder)
        except OSError:
            if exists(building) and not exists(folder):  # else the lease was taken away, or somebody was faster
                raise

    def done() -> bool:
        return is_listed(folder) and whole(folder)

    once(done, folder, work, stale_seconds)
    return folder


def once(
    done: Callable[[], bool], name: Path, work: Callable[[Path], None], stale_seconds: float = STALE_SECONDS
) -> None:
    """Let one of all callers do the `work` on `name`, while the others wait until it is `done`.

    `work` is given a fresh folder beside `name`, removed afterwards; it renames what it made into place.
    """
    name.parent.mkdir(parents=True, exist_ok=True)
    lease = name.with_name(f".{name.name}.lease")
    watch = Watch(lease, stale_seconds)
    while not done():
        try:
            lease.mkdir(mode=0o700)
        except FileExistsError:
            if watch.is_stale():
                _take_away(lease)
            time.sleep(0.1)
            continue
        building = lease / uuid.uuid4().hex  # unlike the name that a second holder of the lease would use
        try:
            if not done():
                building.mkdir()
                with _beating(lease):
                    work(building)
                return
        finally:
            shutil.rmtree(building, ignore_errors=True)
            with suppress(OSError):  # taken away, or in another's hands
                lease.rmdir()


class LeaseTaken(OSError):
    """Another process holds the lease, and lives."""


@contextmanager
def leased(lease: Path, stale_seconds: float = STALE_SECONDS) -> Iterator[None]:
    """Hold the folder `lease`. Raises LeaseTaken; a holder that died is waited for until its lease is stale."""
    watch = Watch(lease, stale_seconds)
    while True:
        with suppress(FileExistsError):
            lease.mkdir(mode=0o700)
            break
        if watch.is_stale():
            _take_away(lease)
        elif watch.beats > 1:
            raise LeaseTaken(errno.EBUSY, "another process is at it", str(lease))
        time.sleep(0.1)
    try:
        with _beating(lease):
            yield
    finally:
        with suppress(OSError):
            lease.rmdir()


class Watch:
    """Recognises a stale lease by this process's own clock, as clocks of file servers differ."""

    def __init__(self, lease: Path, stale_seconds: float) -> None:
        self._lease, self._stale_seconds = lease, stale_seconds
        self._beat, self._since = -1, time.monotonic()
        self.beats = 0  # that were seen; the first look counts

    def is_stale(self) -> bool:
        """Whether the lease has not been touched for `stale_seconds`, as far as this process saw."""
        try:
            beat = status_of(self._lease).st_mtime_ns
        except FileNotFoundError:
            return False
        if beat != self._beat:
            self._beat, self._since = beat, time.monotonic()
            self.beats += 1
        return time.monotonic() - self._since > self._stale_seconds


def _take_away(folder: Path) -> None:
    """Remove a stale lease with what its holder left in it, or a damaged folder; of several that try, one succeeds."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _beating(lease: Path) -> Iterator[None]:
    done = threading.Event()

    def beat() -> None:
        with suppress(FileNotFoundError):
            while not done.wait(BEAT_SECONDS):
                os.utime(lease)

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

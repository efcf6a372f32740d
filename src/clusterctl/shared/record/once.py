"""Prepare a folder once on a shared file system, however many nodes and runs need it at the same time.

The lease is a folder, since mkdir is atomic on NFS and Lustre. It only avoids duplicate work: the result is put in
place by a single rename, so if two processes ever hold a lease, the first rename wins.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from clusterctl.shared.record.files import clock_ahead, exists, is_listed, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BEAT_SECONDS = 2.0
_LOOK_SECONDS = 0.1
STALE_SECONDS = 30.0  # without an update; a killed holder cannot release its lease


def prepared_once(
    folder: Path,
    prepare: Callable[[Path], None],
    stale_seconds: float = STALE_SECONDS,
    *,
    whole: Callable[[Path], bool] = lambda _: True,
) -> Path:
    """`folder`, filled by `prepare` here or elsewhere. Raises what `prepare` raises; other processes may then try.

    `prepare` gets a new folder on the same file system. A folder that is not `whole` is prepared again.
    """

    def work(building: Path) -> None:
        if exists(folder):
            _take_away(folder)  # damaged; processes with mapped files keep them
        prepare(building)
        try:
            building.rename(folder)
        except OSError:
            if exists(building) and not exists(folder):  # otherwise the lease was lost, or another process was faster
                raise

    def done() -> bool:
        return is_listed(folder) and whole(folder)

    once(done, folder, work, stale_seconds)
    return folder


def once(
    done: Callable[[], bool], name: Path, work: Callable[[Path], None], stale_seconds: float = STALE_SECONDS
) -> None:
    """Let one of all callers do the `work` for `name` while the others wait until it is `done`.

    `work` gets a new folder beside `name`, removed afterwards, and renames its result into place.
    """
    name.parent.mkdir(parents=True, exist_ok=True)
    lease = Lease(name.with_name(f".{name.name}.lease"), stale_seconds)
    while not done():
        if not lease.take():
            time.sleep(_LOOK_SECONDS)
            continue
        building = lease.folder / os.urandom(16).hex()  # unique even if there is a second holder of the lease
        try:
            if not done():
                building.mkdir()
                with lease.renewed():
                    work(building)
                return
        finally:
            shutil.rmtree(building, ignore_errors=True)
            lease.release()


class LeaseTaken(OSError):
    """Another live process holds the lease."""


@contextmanager
def leased(folder: Path, stale_seconds: float = STALE_SECONDS) -> Iterator[None]:
    """Hold the lease `folder`. Raises LeaseTaken; waits until the lease of a dead holder is stale."""
    lease = Lease(folder, stale_seconds)
    while not lease.take():
        if lease.watch.beats > 1:
            raise LeaseTaken(errno.EBUSY, "in use by another process", str(folder))
        time.sleep(_LOOK_SECONDS)
    try:
        with lease.renewed():
            yield
    finally:
        lease.release()


@contextmanager
def leased_briefly(folder: Path, seconds: float) -> Iterator[None]:
    """Hold the lease `folder` for less than `seconds` without updating it, so that a process can hold many.

    Raises LeaseTaken if it exists; one that is older is that of a dead holder, and is removed.
    """
    with suppress(FileNotFoundError):
        made = folder.stat().st_mtime  # in the file server's time
        if time.time() + (clock_ahead(folder.parent) or 0.0) - made > seconds:
            _take_away(folder)
    lease = Lease(folder)
    if not lease.take():
        raise LeaseTaken(errno.EBUSY, "in use by another process", str(folder))
    try:
        yield
    finally:
        lease.release()


class Lease:
    """The right to do something, which one process at a time has: a folder that it makes, and updates for as long."""

    def __init__(self, folder: Path, stale_seconds: float = STALE_SECONDS) -> None:
        self.folder = folder
        self.watch = Watch(folder, stale_seconds)

    def take(self) -> bool:
        """Take the lease if it is free. That of a dead holder is removed, so that one of the next calls gets it."""
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            if self.watch.is_stale():
                _take_away(self.folder)
            return False
        return True

    def release(self) -> None:
        with suppress(OSError):  # lost, or held by another process
            self.folder.rmdir()

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Update the lease regularly, however long the holder takes."""
        done = threading.Event()

        def beat() -> None:
            with suppress(FileNotFoundError):
                while not done.wait(BEAT_SECONDS):
                    os.utime(self.folder)

        thread = threading.Thread(target=beat, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class Watch:
    """Detects a stale lease by this process's own clock, since clocks of file servers differ."""

    def __init__(self, lease: Path, stale_seconds: float) -> None:
        self._lease, self._stale_seconds = lease, stale_seconds
        self._beat, self._since = -1, time.monotonic()
        self.beats = 0  # number of updates seen, including the first check

    def is_stale(self) -> bool:
        """Whether this process has seen no update of the lease for `stale_seconds`."""
        try:
            beat = status_of(self._lease).st_mtime_ns
        except FileNotFoundError:
            return False
        if beat != self._beat:
            self._beat, self._since = beat, time.monotonic()
            self.beats += 1
        return time.monotonic() - self._since > self._stale_seconds


def _take_away(folder: Path) -> None:
    """Remove a stale lease with its content, or a damaged folder; if several processes try, one succeeds."""
    aside = folder.with_name(f".{folder.name}.{os.urandom(16).hex()}")
    with suppress(FileNotFoundError):
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

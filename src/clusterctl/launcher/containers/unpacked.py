"""An image's file tree on this node: unpacked once, shared by all tasks that run in it, in memory if it fits.

Trees are protected by flock, which is reliable on a node's local file systems: tasks that run in the image hold a
shared lock, across exec and until they end for any reason; unpacking and removing take an exclusive lock.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import time
from contextlib import suppress
from errno import ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.containers.contents import Unreadable, look_into
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.node.processes import available_memory
from clusterctl.shared.record.ownership import NotOurs, make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KEPT_SECONDS = 3600.0  # how long an unused tree is kept for the next run
_SHARED = ("/dev/shm", "/tmp", "/var/tmp")  # shared by all users of a node, the fastest first
_OWNED = "+"  # marks the name of a writable tree, which is never reused
_SPARE_BYTES = 64 * 2**20
_TIMES_SMALLER = 4  # the usual maximum ratio of unpacked to packed size
_ELSEWHERE = "set CLUSTERCTL_UNPACK to a folder on a larger local disk"
_NOTHING_FATAL = 2  # unsquashfs: complete except for files that only root can create
_LOOK_AGAIN_SECONDS = 0.05


def hold(image: Path, owner: str = "", environment: Mapping[str, str] = os.environ) -> Path:
    """The tree of `image`, kept until this process, or the program it turns into with exec, has ended.

    With an `owner` it is a separate, writable tree, shared only with callers that pass the same owner. Raises TaskError
    if the image cannot be unpacked.
    """
    folder = _lock_folder(environment)
    lock = folder / f"{_key(image)}{f'{_OWNED}{owner}' if owner else ''}.lock"
    while True:
        descriptor = _opened(lock)
        try:
            if tree := _held(descriptor, lock, lambda: _unpack(image, folder, lock.stem, environment)):
                os.set_inheritable(descriptor, True)
                return tree
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _held(descriptor: int, lock: Path, unpack: Callable[[], Path]) -> Path | None:
    """The tree under `lock`, now locked as shared; None, to try again, if it was just unpacked or the lock removed."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if _is_removed(descriptor, lock):
        return None
    if tree := _noted(lock):
        os.utime(lock)
        return tree
    # flock drops the shared lock first, so another task may be faster. Blocking here could deadlock: the tasks that run
    # in the tree by then may be waiting for this one.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_LOOK_AGAIN_SECONDS)
        return None
    if not _is_removed(descriptor, lock) and not _noted(lock):
        lock.write_text(str(unpack()))
    return None


def release(image: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Remove the trees of `image` from this node, except those in use."""
    for lock in _lock_folder(environment).glob(f"{glob.escape(_key(image))}*.lock"):
        _remove_unused(lock)


def stores(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """This node's local folders that can hold a tree, the fastest first; all allow programs to be executed."""
    chosen = environment.get("CLUSTERCTL_UNPACK")
    in_memory, *on_disk = _SHARED
    places = (chosen,) if chosen else (in_memory, environment.get("XDG_RUNTIME_DIR"), *on_disk)
    found = []
    for place in map(Path, dict.fromkeys(filter(None, places))):
        usable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        if not usable or os.statvfs(place).f_flag & os.ST_NOEXEC:
            continue
        # If another user has created our folder in a shared place, skip that place but not the others.
        with suppress(FileNotFoundError):
            ours = _own(place)
            if not chosen and (ours.is_symlink() or ours.stat().st_uid != os.geteuid()):
                continue
        found.append(place)
    return found


def own_folders() -> list[Path]:
    """Where this user's trees are on this node."""
    return [_own(store) for store in stores()]


def room(store: Path) -> int:
    """Bytes that may be written to `store`; at most half of the available memory, since the program needs some too."""
    status = os.statvfs(store)
    free = status.f_bavail * status.f_frsize
    lines = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    kinds = {point: kind for _, point, kind, *_ in (line.split(" ") for line in lines)}
    nearest = next((folder for folder in (store, *store.parents) if str(folder) in kinds), Path("/"))
    if kinds.get(str(nearest)) not in ("tmpfs", "ramfs"):
        return free
    return min(free, (available_memory() or 0) // 2)


def is_here(image: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `image` is unpacked on this node."""
    lock = _lock_folder(environment) / f"{_key(image)}.lock"
    return lock.exists() and _noted(lock) is not None


def unpacked_bytes(image: Path) -> int:
    """The unpacked size of `image`. Raises TaskError if unsquashfs cannot read it."""
    try:
        found = look_into(image)
    except Unreadable as error:
        raise TaskError(
            f"cannot read the image: {image}: {error}", f"clusterctl image verify {image}", Cause.IMAGE
        ) from error
    return (found and found.unpacked_bytes) or _TIMES_SMALLER * image.stat().st_size


def _unpack(image: Path, locks: Path, name: str, environment: Mapping[str, str]) -> Path:
    """Make room, unpack `image` under a temporary name, and rename it."""
    for other in _locks(locks, but=name):
        if _OWNED in other.stem or time.time() - other.stat().st_mtime > KEPT_SECONDS:
            _remove_unused(other)
    needed, places = unpacked_bytes(image), stores(environment)
    for unused in ((), _locks(locks, but=name)):  # unused trees are removed only if there is no room otherwise
        for other in unused:
            _remove_unused(other)
        store = next((place for place in places if room(place) > needed + _SPARE_BYTES), None)
        if store:
            break
    else:
        found = ", ".join(f"{place} ({room(place) / 1e6:.0f} MB free)" for place in places)
        message = f"no room to unpack the image: it needs {needed / 1e6:.0f} MB: {found}"
        raise TaskError(message, _ELSEWHERE, Cause.DISK)
    folder = _private(store)
    for left in folder.glob(f".{name}.*"):  # left by a killed process: we hold the exclusive lock
        _remove_tree(left)
    aside, tree = folder / f".{name}.{os.getpid()}", folder / name
    try:
        _unsquashfs(["-no-progress", "-no-xattrs", "-dest", str(aside), str(image)])
    except BaseException:
        _remove_tree(aside)
        raise
    aside.rename(tree)
    return tree


def _locks(folder: Path, but: str) -> Iterator[Path]:
    return (path for path in folder.glob("*.lock") if path.stem != but)


def _remove_unused(lock: Path) -> None:
    descriptor = _opened(lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_removed(descriptor, lock):
            if tree := _noted(lock):
                _remove_tree(tree)
            lock.unlink()
    except BlockingIOError:
        pass  # in use
    finally:
        os.close(descriptor)


def _remove_tree(tree: Path) -> None:
    for parent, _, _ in os.walk(tree):
        with suppress(OSError):
            Path(parent).chmod(0o700)  # an image may have folders that not even their owner can write to
    shutil.rmtree(tree, ignore_errors=True)


def _key(image: Path) -> str:
    """Identifies the content of `image` without reading it."""
    try:
        status = image.stat()
    except OSError as error:
        raise TaskError(
            f"cannot read the image: {image}: {error.strerror}", "see [container] image", Cause.IMAGE
        ) from None
    mark = f"{image.resolve()} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    return f"{image.stem[:40]}-{hashlib.sha256(os.fsencode(mark)).hexdigest()[:16]}"


def _lock_folder(environment: Mapping[str, str]) -> Path:
    if places := stores(environment):
        return _private(places[0])
    message = "no folder to unpack an image into: none is both writable and allows programs to run"
    raise TaskError(message, _ELSEWHERE, Cause.LAUNCH)


def _own(store: Path) -> Path:
    return store / f"clusterctl-{os.geteuid()}"


def _private(store: Path) -> Path:
    try:
        return make_private(_own(store), "remove it, or ask its owner to")
    except NotOurs as error:
        raise TaskError(error.message, error.hint, Cause.LAUNCH) from error


def _opened(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_removed(descriptor: int, lock: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino != lock.stat().st_ino
    except FileNotFoundError:
        return True


def _noted(lock: Path) -> Path | None:
    """The tree recorded in `lock`, if it exists."""
    tree = Path(lock.read_text() or "/nowhere/at/all")
    return tree if tree.is_dir() else None


def _unsquashfs(arguments: list[str]) -> None:
    try:
        done = subprocess.run(["unsquashfs", *arguments], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        raise TaskError("unsquashfs is not on PATH", "apt-get install squashfs-tools", Cause.LAUNCH) from None
    if done.returncode in (0, _NOTHING_FATAL):
        return
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    problem = lines[-1].removeprefix("FATAL ERROR: ") if lines else f"exit code {done.returncode}"
    hint = "check disk space and the image: df -h; clusterctl image verify"
    cause = Cause.DISK if any(os.strerror(ENOSPC) in line for line in lines) else Cause.IMAGE
    raise TaskError(f"unsquashfs: {problem}", hint, cause)

"""A temporary folder on the node, which is removed when its process ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

_PREFIX = "clusterctl-stop-"
_UNLOCKED_SECONDS = 60.0  # locking a new folder never takes that long


def own_folder(stack: ExitStack) -> Path:
    """Create a temporary folder for this process, within `stack`; remove those that killed processes left behind.

    Each process holds a lock on its folder, which the kernel releases however the process ends.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, another user's, or gone meanwhile
            if time.time() - left.lstat().st_mtime > _UNLOCKED_SECONDS:
                os.close(_locked(left))
                shutil.rmtree(left, ignore_errors=True)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)))
    stack.callback(os.close, _locked(folder))
    return folder


def _locked(folder: Path) -> int:
    """Open and lock `folder`. Raises BlockingIOError if another process has locked it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor

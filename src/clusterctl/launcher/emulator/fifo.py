"""Named pipes between commands, supervisors and steps. Each reader holds its pipe open: opening a pipe
for writing fails if its reader is gone, even after a kill -9 or a reboot.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def create(path: Path) -> int:
    """Create the pipe `path` and hold it open; returns the descriptor to read from. Raises FileExistsError."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def send(path: Path, *words: str) -> bool:
    """Write one line atomically; False if the pipe has no reader."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, " ".join(words).encode() + b"\n")
    except OSError:  # full, or its reader has just closed it
        return False
    finally:
        os.close(descriptor)
    return True


def has_reader(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def wait(descriptors: list[int], timeout: float | None) -> None:
    """Block until one of `descriptors` is readable, or `timeout` seconds have passed."""
    select.select(descriptors, [], [], timeout)


def drain(descriptor: int) -> bytes:
    """Everything in the pipe, without blocking."""
    content = b""
    try:
        while chunk := os.read(descriptor, 65536):
            content += chunk
    except BlockingIOError:
        pass
    return content

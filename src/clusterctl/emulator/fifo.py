"""Named pipes between commands, supervisors and steps. Whoever reads one holds it open, so the kernel tells who lives:
opening a pipe without a reader fails, also after a kill -9 or a restart of the machine.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def create(path: Path) -> int:
    """Make the pipe `path` and hold it open; returns the descriptor to read from. Raises FileExistsError."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


def send(path: Path, *words: str) -> bool:
    """Write one line, whole; False where nobody reads."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, " ".join(words).encode() + b"\n")
    except OSError:  # full, or its reader has just gone
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
    """Block until one of `descriptors` can be read, or `timeout` seconds have passed."""
    select.select(descriptors, [], [], timeout)


def drain(descriptor: int) -> bytes:
    """All that lies in the pipe, without waiting."""
    content = b""
    try:
        while chunk := os.read(descriptor, 65536):
            content += chunk
    except BlockingIOError:
        pass
    return content

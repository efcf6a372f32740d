"""Sends each message at most once, by creating a file for each try before sending.

`notified/failed-2.webhook.0` is the first try to notify the webhook that attempt 2 failed. The process that creates the
file may send, and writes the outcome to it. Only a message that was certainly not delivered is retried, under the next
number. An empty file means that the try is in progress or was interrupted, and the message may have been delivered
(docs/decisions/notifications-and-trackers.md).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.notifications.send import Outcome
from clusterctl.runs.files import read_beginning

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.notifications.send import Delivery

MOST_TRIES = 10
_LONGEST_OUTCOME = 4096


def next_try(folder: Path, name: str) -> Path | None:
    """The file of the next try; None if the message was or may have been sent, or was refused too often."""
    for number in range(MOST_TRIES):
        path = folder / f"{name}.{number}"
        try:
            text = read_beginning(path, _LONGEST_OUTCOME).decode(errors="replace")
        except FileNotFoundError:
            return path
        if not text.startswith(Outcome.REFUSED):
            return None
    return None


def take(path: Path) -> bool:
    """Claim the try for this process, if it is free. Raises OSError if nothing can be written: then nobody may send."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def note(path: Path, delivery: Delivery) -> None:
    """Record the outcome of the try. If the disk is full, the try is not repeated."""
    with suppress(OSError):
        path.write_text(f"{delivery}\n", encoding="utf-8")

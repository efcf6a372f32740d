"""Each message at most once: a file for each try to send it, taken before anything is sent.

`notified/failed-2.webhook.0` is the first try to tell the webhook that attempt 2 failed. Whoever makes the file may
send; what became of it is written into the file. Only what certainly did not arrive is tried again, as the next
number. A try that says nothing is under way, or was cut short: it may have arrived (docs/decisions/0063).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.notifications.send import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.notifications.send import Delivery

MOST_TRIES = 10


def next_try(folder: Path, name: str) -> Path | None:
    """The file of the next try; None where the message has been sent, may have been, or was refused too often."""
    for number in range(MOST_TRIES):
        path = folder / f"{name}.{number}"
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return path
        if not text.startswith(Outcome.REFUSED):
            return None
    return None


def take(path: Path) -> bool:
    """Whether this process may make the try. Raises OSError where nothing can be written: then nobody may."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def note(path: Path, delivery: Delivery) -> None:
    """Write down what became of the try. A disk that is full takes nothing: then it is not made again."""
    with suppress(OSError):
        path.write_text(f"{delivery}\n", encoding="utf-8")

"""Stored answers of commands that must not be executed twice: one folder each, kept while a client may ask again.

The process that creates the folder executes the command, and touches the folder meanwhile. A client that asks again
after its connection broke waits for the answer and relays it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.launcher.config.places import data_folder
from clusterctl.launcher.remote.frames import Frame, FrameKind, Reader
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.once import Watch
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from pathlib import Path

_BEAT_SECONDS = 2.0
_STALE_SECONDS = 20.0  # without an update: its machine is down, or it was killed
_KEPT_SECONDS = 86400.0
_LOOK_SECONDS = 0.2
_NAME = re.compile(r"[0-9a-f]{32}")
GONE = 76  # the exit code of a command that ended without an answer


class Replayed(Exception):
    """The command was started earlier and has ended: `frames` contain its output and exit code."""

    def __init__(self, frames: list[Frame]) -> None:
        super().__init__()
        self.frames = frames


class LastingAnswer:
    """The answer of a command while it is being executed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames = bytearray()
        self._touched = time.monotonic()

    @classmethod
    def begun(cls, name: str) -> LastingAnswer:
        """Start the command called `name`, 32 hexadecimal digits.

        If it was started earlier, wait for its end; then raises Replayed, unless it has done nothing.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"invalid request name: {name}", "run the command again")
        all_of_them = make_private(data_folder() / "remote-answers")
        with suppress(OSError):
            for old in all_of_them.iterdir():
                if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
        folder = all_of_them / name
        while True:
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                if frames := _awaited(folder):
                    raise Replayed(frames) from None
            else:
                return cls(folder)

    def beat(self) -> None:
        """Show that the command is still running."""
        if time.monotonic() - self._touched > _BEAT_SECONDS:
            self._touched = time.monotonic()
            with suppress(OSError):
                os.utime(self._folder)

    def keep(self, frame: Frame) -> None:
        self._frames += frame.packed()

    def finish(self, code: int) -> None:
        """The command has ended."""
        aside = self._folder / ".answer"
        aside.write_bytes(self._frames + Frame(FrameKind.EXIT, str(code).encode()).packed())
        aside.rename(self._folder / "answer")

    def forget(self) -> None:
        """Discard the answer: nothing was done."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _awaited(folder: Path) -> list[Frame]:
    """Wait for the answer; empty if the command disappeared without having done anything."""
    watch = Watch(folder, _STALE_SECONDS)
    while not watch.is_stale():
        with suppress(FileNotFoundError):
            return [*Reader().fed((folder / "answer").read_bytes())]
        if not exists(folder):
            return []
        time.sleep(_LOOK_SECONDS)
    return [Frame(FrameKind.EXIT, str(GONE).encode())]

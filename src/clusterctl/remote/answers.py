"""What became of commands that must not be done twice: a folder each, for as long as somebody may ask again.

Whoever makes the folder carries the command out, and touches it meanwhile. Whoever asks again, after the connection
broke, waits for the answer and passes it on.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.config.places import data_folder
from clusterctl.errors import UsageError
from clusterctl.remote.frames import Frame, FrameKind, Reader
from clusterctl.runs.files import exists, make_private
from clusterctl.runs.once import Watch

if TYPE_CHECKING:
    from pathlib import Path

_BEAT_SECONDS = 2.0
_STALE_SECONDS = 20.0  # without a beat: its machine is gone, or somebody killed it
_KEPT_SECONDS = 86400.0
_LOOK_SECONDS = 0.2
_NAME = re.compile(r"[0-9a-f]{32}")
GONE = 76  # the exit code of a command that ended without an answer


class Replayed(Exception):
    """The command was begun before, and has ended: `frames` are all that it printed, and its exit code."""

    def __init__(self, frames: list[Frame]) -> None:
        super().__init__()
        self.frames = frames


class LastingAnswer:
    """The answer of a command while it is carried out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames = bytearray()
        self._touched = time.monotonic()

    @classmethod
    def begun(cls, name: str) -> LastingAnswer:
        """Begin the command called `name`, 32 hexadecimal digits.

        Where it was begun before, wait for its end; raises Replayed then, unless it has done nothing.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"no name of a request: {name}", "type the command again")
        all_of_them = make_private(data_folder() / "remote-answers")
        _remove_old(all_of_them)
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
        """Show that the command goes on."""
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
        """Nothing was done."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _awaited(folder: Path) -> list[Frame]:
    """The answer, as soon as it is there; empty where the command has gone without having done anything."""
    watch = Watch(folder, _STALE_SECONDS)
    while not watch.is_stale():
        with suppress(FileNotFoundError):
            return [*Reader().fed((folder / "answer").read_bytes())]
        if not exists(folder):
            return []
        time.sleep(_LOOK_SECONDS)
    return [Frame(FrameKind.EXIT, str(GONE).encode())]


def _remove_old(folder: Path) -> None:
    with suppress(OSError):
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(old, ignore_errors=True)

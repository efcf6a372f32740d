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
from clusterctl.runs.files import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BEAT_SECONDS = 2.0
_STALE_SECONDS = 20.0  # without a beat: its machine is gone, or somebody killed it
_KEPT_SECONDS = 86400.0
_LOOK_SECONDS = 0.2
_NAME = re.compile(r"[0-9a-f]{32}")
GONE = 76  # the exit code of a command that ended without an answer


class Replayed(Exception):
    """The command was begun before: its answer is there, or will be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.name)
        self._folder = folder

    def frames(self) -> Iterator[Frame]:
        """All that it printed, and its exit code, as soon as it has ended."""
        answer, beat, since = self._folder / "answer", 0, time.monotonic()
        while not answer.exists():
            with suppress(FileNotFoundError):
                if (now := self._folder.stat().st_mtime_ns) != beat:
                    beat, since = now, time.monotonic()
            if time.monotonic() - since > _STALE_SECONDS:
                yield Frame(FrameKind.ERRORS, b"error: the command was ended from outside, and left no answer\n")
                yield Frame(FrameKind.ERRORS, b"hint: see what became of it: clusterctl status\n")
                yield Frame(FrameKind.EXIT, str(GONE).encode())
                return
            time.sleep(_LOOK_SECONDS)
        yield from Reader().fed(answer.read_bytes())


class LastingAnswer:
    """The answer of a command while it is carried out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames = bytearray()
        self._touched = time.monotonic()

    @classmethod
    def begun(cls, name: str) -> LastingAnswer:
        """Begin the command called `name`, 32 hexadecimal digits. Raises Replayed where it was begun before."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"no name of a request: {name}", "type the command again")
        all_of_them = make_private(data_folder() / "remote-answers")
        _remove_old(all_of_them)
        folder = all_of_them / name
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            raise Replayed(folder) from None
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


def _remove_old(folder: Path) -> None:
    with suppress(OSError):
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(old, ignore_errors=True)

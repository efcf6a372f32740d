"""Where builds and imports report how far they are; `display.build_progress` shows it."""

from __future__ import annotations

from typing import Protocol


class ProgressListener(Protocol):
    """The listener of a build or an import."""

    def stage(self, text: str, total: int | None = None) -> None:
        """A new stage begins, of `total` bytes where that is known."""

    def say(self, line: str) -> None:
        """A program said `line`."""

    def advance(self, size: int) -> None:
        """`size` bytes more are done."""


class _Silent:
    def stage(self, text: str, total: int | None = None) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def advance(self, size: int) -> None:
        pass


SILENT: ProgressListener = _Silent()
"""Listens to nothing."""

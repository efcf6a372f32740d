"""Where builds and imports report how far they are."""

from __future__ import annotations


class ProgressListener:
    """Ignores what is reported; `display.build_progress` shows it."""

    def stage(self, text: str, total: int | None = None) -> None:
        """A new stage begins, of `total` bytes where that is known."""

    def say(self, line: str) -> None:
        """A program printed `line`."""

    def advance(self, size: int) -> None:
        """`size` bytes more are done."""


SILENT = ProgressListener()

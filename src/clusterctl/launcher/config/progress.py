"""Progress reports of builds and imports."""

from __future__ import annotations


class ProgressListener:
    """Ignores every report; `display.build_progress` shows them."""

    def stage(self, text: str, total: int | None = None) -> None:
        """A new stage begins, of `total` bytes if known."""

    def output(self, line: str) -> None:
        """A program printed `line`."""

    def advance(self, size: int) -> None:
        """`size` more bytes are done."""


SILENT = ProgressListener()

"""Progress reports of builds and imports."""

from __future__ import annotations


class ProgressListener:
    """Ignores every report; `display.build_progress` shows them."""

    def begin(self, text: str, total: int | None = None) -> None:
        """The next step begins, of `total` bytes if known."""

    def output(self, line: str) -> None:
        """A program printed `line`."""

    def advance(self, size: int) -> None:
        """`size` more bytes are done."""


SILENT = ProgressListener()

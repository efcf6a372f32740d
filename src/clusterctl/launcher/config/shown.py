"""How operations show what they return (`Shown`) and what they are doing (`Progress`, `ProgressListener`).

They are made far below what draws them: `import clusterctl` says here who does (`Shown.drawer`), and imports it when
something is drawn. Where that has not happened, as in the command line itself, they look like any dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Progress(Protocol):
    """What `wait` shows while it waits."""

    def update(self, value: object) -> None: ...

    def end(self) -> None: ...


class Drawer(Protocol):
    """Draws values (`display.drawer`)."""

    def text(self, value: object) -> str: ...

    def html(self, value: object) -> str: ...

    def progress(self, wanted: bool | None) -> Progress | None: ...


class Shown:
    """`print` shows the text of the command line, a notebook its table."""

    drawer: ClassVar[Callable[[], Drawer] | None] = None

    def __str__(self) -> str:
        return Shown.drawer().text(self) if Shown.drawer else repr(self)

    def _repr_html_(self) -> str | None:
        return Shown.drawer().html(self) if Shown.drawer else None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For IPython in a terminal."""
        printer.text("..." if cycle else str(self))


def progress(wanted: bool | None) -> Progress | None:
    """What to show while waiting; None for nothing. By default (None), only a notebook shows something."""
    return Shown.drawer().progress(wanted) if Shown.drawer and wanted is not False else None


class ProgressListener:
    """Ignores every report; `display.terminal` shows them."""

    def begin(self, text: str, total: int | None = None) -> None:
        """The next step begins, of `total` bytes if known."""

    def output(self, line: str) -> None:
        """A program printed `line`."""

    def advance(self, size: int) -> None:
        """`size` more bytes are done."""


SILENT = ProgressListener()

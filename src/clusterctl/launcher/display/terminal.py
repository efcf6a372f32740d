"""The terminal: consoles for data (stdout) and messages (stderr), and a last line below what is followed.

rich decides on colour (NO_COLOR, FORCE_COLOR, TERM=dumb). It is imported where something is shown with it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from clusterctl.launcher.display.plain import as_shown, duration

if TYPE_CHECKING:
    from rich.console import Console

    from clusterctl.launcher.observe.logs import Line
    from clusterctl.launcher.observe.state import Status

_WIDTH_OF_FILES = 10_000  # a pipe has no width: nothing is truncated or folded, each row is a line
FRAME_OF_FILES = 200, 50  # columns and lines of what fills a screen


def data() -> Console:
    return _console(sys.stdout)


def messages() -> Console:
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    width = None if file.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_FILES
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


# The last line of a followed run: how long it has run, the time left, and the newest frame of a progress bar.


def times_of(status: Status, now: float) -> str:
    """`12m05s`, or `12m05s, about 1h20m left` if the training logs its steps; empty before the first attempt."""
    ran, left = status.ran(now), status.seconds_left(now)
    times = ["" if ran is None else duration(ran), "" if left is None else f"about {duration(left)} left"]
    return ", ".join(filter(None, times))


def frame_of(line: Line | None) -> str:
    """The newest frame in a line that has not ended: what the terminal of the program would show."""
    return as_shown(line.text).strip() if line else ""


class LastLine:
    """One line on stderr below the lines on stdout, if both are a terminal; elsewhere it is never shown."""

    def __init__(self) -> None:
        self._console: Console | None = None
        self._shown = ""
        if sys.stdout.isatty() and sys.stderr.isatty():
            console = messages()
            self._console = None if console.is_dumb_terminal else console

    def show(self, text: str) -> None:
        """Replace the line. The cursor returns to its beginning, so that it cannot precede other text."""
        if self._console and text != self._shown:
            from rich.cells import set_cell_size

            cut = set_cell_size(text, self._console.width - 1).rstrip()
            sys.stderr.write(f"\r\x1b[K{cut}\r")
            sys.stderr.flush()
            self._shown = text

    def clear(self) -> None:
        self.show("")

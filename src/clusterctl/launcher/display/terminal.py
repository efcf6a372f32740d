"""The terminal: consoles for data (stdout) and messages (stderr), a last line below what is followed, and progress.

rich decides on colour (NO_COLOR, FORCE_COLOR, TERM=dumb). It is imported where something is shown with it.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from clusterctl.launcher.config.shown import ProgressListener
from clusterctl.launcher.display.plain import as_shown, duration, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID

    from clusterctl.launcher.observe.logs import Line
    from clusterctl.launcher.observe.state import Status

_AS_THEY_ARE = ("hint: ", "next: ", "    ")  # lines with commands, to be copied, and tracebacks
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


def wrapped(line: str, width: int, *, cuts_words: bool = True, indent: int | None = None) -> list[str]:
    """The parts of a long line below each other, at `indent`; by default, two columns further in than it begins."""
    indent = len(line) - len(line.lstrip()) + 2 if indent is None else indent
    if width <= 2 * indent:
        return [line]
    rest = " " * indent
    parts = textwrap.wrap(line, width, subsequent_indent=rest, break_long_words=cuts_words, break_on_hyphens=False)
    return parts or [line]


def fitted(lines: Iterable[str], file: TextIO, indent: int | None = None) -> Iterator[str]:
    """`lines` for `file`: a terminal would cut words at its edge, so that sentences are wrapped, but no commands."""
    width = shutil.get_terminal_size().columns if file.isatty() else None
    for line in lines:
        if width is None or line.startswith(_AS_THEY_ARE):
            yield line
        else:
            yield from wrapped(line, width, cuts_words=False, indent=indent)


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


# The progress of an image build or import: a progress bar on a terminal, one line per step elsewhere.

_REFRESH_SECONDS = 0.2


class ShownProgress(ProgressListener):
    """Shows the last line of the engine's output, or all of it with `verbose`."""

    def __init__(self, console: Console | None, verbose: bool) -> None:
        self._console, self._verbose = console, verbose
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._done, self._drawn = 0, 0.0

    def begin(self, text: str, total: int | None = None) -> None:
        """Begin a new step; the one before it is finished."""
        self.finish()
        self._done = 0
        console = self._opened()
        if self._bar is None:
            console.print(plain(text), soft_wrap=True, markup=False)
        else:
            self._task = self._bar.add_task(plain(text), total=total, output="")

    def output(self, line: str) -> None:
        """Show a line of a program's output."""
        if self._verbose:
            self._opened().print(f"  {plain(line)}", soft_wrap=True, markup=False)
        elif line.strip():
            self._update(output=plain(line).strip()[:60])

    def advance(self, size: int) -> None:
        """Count bytes; redrawn a few times a second."""
        self._done += size
        now = time.monotonic()
        if now - self._drawn > _REFRESH_SECONDS:
            self._drawn = now
            self._update(completed=self._done)

    def stop(self) -> None:
        """Release the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def finish(self) -> None:
        """Fill the bar of the finished step."""
        self._update(completed=self._done or 1, total=self._done or 1, output="")

    def _update(self, **values: Any) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **values)

    def _opened(self) -> Console:
        """The console, with a bar if it is a terminal."""
        self._console = self._console or messages()
        if self._bar is None and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = _bar(self._console)
            self._bar.start()
        return self._console


def _bar(console: Console) -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Bytes(ProgressColumn):
        """The bytes so far; empty until some are counted."""

        def render(self, task: Task) -> Text:
            return DownloadColumn().render(task) if task.completed else Text("")

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), Bytes(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[output]}", markup=False, style="dim"), console=console)


@contextmanager
def shown(console: Console | None = None, *, verbose: bool = False) -> Iterator[ShownProgress]:
    """A listener that shows progress on stderr."""
    listener = ShownProgress(console, verbose)
    try:
        yield listener
        listener.finish()
    finally:
        listener.stop()

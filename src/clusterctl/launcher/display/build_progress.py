"""Progress of an image build or import: a progress bar on a terminal, one line per step elsewhere.

rich is imported when there is something to show: most submissions import no image.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.config.shown import ProgressListener
from clusterctl.launcher.display.plain import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import Progress, TaskID

_REFRESH_SECONDS = 0.2


class Shown(ProgressListener):
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
        from clusterctl.launcher.display import terminal

        self._console = self._console or terminal.messages()
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
def shown(console: Console | None = None, *, verbose: bool = False) -> Iterator[Shown]:
    """A listener that shows progress on stderr."""
    listener = Shown(console, verbose)
    try:
        yield listener
        listener.finish()
    finally:
        listener.stop()

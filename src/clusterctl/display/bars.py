"""The bars of `display.build_progress`, with rich: one line with a bar on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from clusterctl.display.plain import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

_REFRESH_SECONDS = 0.2


class _Bytes(ProgressColumn):
    """Nothing while no bytes are counted."""

    def render(self, task: Task) -> Text:
        return DownloadColumn().render(task) if task.completed else Text("")


class Shown:
    """Listens to a build (see `containers.listener`). The last line of an engine is shown, with `verbose` all."""

    def __init__(self, console: Console, bar: Progress | None, verbose: bool) -> None:
        self._console, self._bar, self._verbose = console, bar, verbose
        self._task: TaskID | None = None
        self._done, self._drawn = 0, 0.0

    def stage(self, text: str, total: int | None = None) -> None:
        """Begin a new stage; the one before it is finished."""
        self.finish()
        self._done = 0
        if self._bar is None:
            self._console.print(Text(plain(text)), soft_wrap=True)
        else:
            self._task = self._bar.add_task(plain(text), total=total, said="")

    def say(self, line: str) -> None:
        """Show a line that a program said."""
        if self._verbose:
            self._console.print(Text(f"  {plain(line)}"), soft_wrap=True)
        elif self._bar is not None and self._task is not None and line.strip():
            self._bar.update(self._task, said=plain(line).strip()[:60])

    def advance(self, size: int) -> None:
        """Count bytes; drawn a few times a second."""
        self._done += size
        now = time.monotonic()
        if self._bar is not None and self._task is not None and now - self._drawn > _REFRESH_SECONDS:
            self._drawn = now
            self._bar.update(self._task, completed=self._done)

    def finish(self) -> None:
        """Close the running stage: its bar is full."""
        if self._bar is not None and self._task is not None:
            total = self._done or 1
            self._bar.update(self._task, completed=total, total=total, said="")


@contextmanager
def opened(console: Console, *, verbose: bool) -> Iterator[Shown]:
    """A listener that shows what it hears on `console`."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield Shown(console, None, verbose)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Bytes(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[said]}", markup=False, style="dim"), console=console) as bar:
        listener = Shown(console, bar, verbose)
        yield listener
        listener.finish()

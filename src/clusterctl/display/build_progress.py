"""How far a build or an import is, shown on stderr from its first stage on: what has none needs no rich."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from clusterctl.display.bars import Shown


class LazyBar:
    """Listens to a build or an import, as `containers.listener` asks it to."""

    def __init__(self, stack: ExitStack, console: Console | None, verbose: bool) -> None:
        self._stack, self._console, self._verbose = stack, console, verbose
        self._shown: Shown | None = None

    def stage(self, text: str, total: int | None = None) -> None:
        """Begin a new stage."""
        self._open().stage(text, total)

    def say(self, line: str) -> None:
        """Show a line that a program said."""
        self._open().say(line)

    def advance(self, size: int) -> None:
        """Count bytes."""
        self._open().advance(size)

    def _open(self) -> Shown:
        if self._shown is None:
            from clusterctl.display import bars, terminal

            console = self._console or terminal.messages()
            self._shown = self._stack.enter_context(bars.opened(console, verbose=self._verbose))
        return self._shown


@contextmanager
def shown(console: Console | None = None, *, verbose: bool = False) -> Iterator[LazyBar]:
    """A listener that shows what it hears."""
    with ExitStack() as stack:
        yield LazyBar(stack, console, verbose)

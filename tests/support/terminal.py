"""A real terminal: tmux, whose window can be resized and read."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TMUX = shutil.which("tmux")


@dataclass
class Terminal:
    """A window in which one program runs."""

    socket: Path

    def resize(self, columns: int, lines: int) -> None:
        self.call("resize-window", "-x", str(columns), "-y", str(lines))

    def lines(self) -> list[str]:
        """The lines on the screen."""
        return self.call("capture-pane", "-p").split("\n")

    def call(self, *words: str) -> str:
        command = [str(TMUX), "-S", str(self.socket), "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout


@contextmanager
def opened(
    socket: Path, size: tuple[int, int], command: list[str], environment: Mapping[str, str]
) -> Iterator[Terminal]:
    """Run `command` in a terminal of `size` within the block, without COLUMNS and LINES, which would fix the size."""
    terminal = Terminal(socket)
    given = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    unset = ["env", "-u", "COLUMNS", "-u", "LINES"]
    columns, lines = map(str, size)
    terminal.call("new-session", "-d", "-x", columns, "-y", lines, *given, *unset, *command)
    try:
        terminal.call("set", "-g", "status", "off")
        yield terminal
    finally:
        terminal.call("kill-server")

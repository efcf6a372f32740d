"""Consoles for data (stdout) and messages (stderr). rich decides on colour (NO_COLOR, FORCE_COLOR, TERM=dumb)."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console

_WIDTH_OF_FILES = 200  # a pipe has no width: nothing should be truncated
LINES_OF_FILES = 50  # nor a height


def data() -> Console:
    return _console(sys.stdout)


def messages() -> Console:
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    width = None if file.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_FILES
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)

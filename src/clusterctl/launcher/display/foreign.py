"""The output of another machine on this terminal: text, colours and moves of the cursor, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# ECMA-48: control sequences; strings for the terminal (such as its title or the clipboard); other escapes; and control
# characters except tab, backspace, newline and carriage return, those of Unicode in UTF-8.
_SEQUENCE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|(?=\x1b|\Z))"
    rb"|\x1b[ -/]*[0-OQ-WYZ`-~\\]"
    rb"|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]"
    rb"|\x1b|\xc2(?![\xa0-\xbf])"  # alone: what follows is left out, and then something else would follow
)
# Colours, the cursor's moves and visibility, and erasing: what a table and a progress bar consist of. A query is not
# among them: the terminal would answer it on this machine's standard input.
_HARMLESS = re.compile(rb"\x1b\[(?:[0-9;]*[A-HJKm]|\?25[hl])")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)|\xc2)\Z")
_LONGEST = 4096


class ForeignOutput:
    """Passes bytes on to `write` without what could do more than show them; sequences may come in pieces."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write, self._rest = write, b""

    def take(self, data: bytes) -> None:
        data = self._rest + data
        begun = _UNFINISHED.search(data)
        self._rest = data[begun.start() :] if begun else b""
        shown = data[: begun.start()] if begun else data
        if len(self._rest) > _LONGEST:
            self._rest = self._rest[:2]  # its content will not be shown anyway
        self._write(_SEQUENCE.sub(lambda found: found[0] if _HARMLESS.fullmatch(found[0]) else b"", shown))

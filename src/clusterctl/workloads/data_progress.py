"""A line that tells how far a download or a generation is, at a terminal; elsewhere a line now and then."""

from __future__ import annotations

import sys
import time

_WIDTH = 30
_SECONDS = {True: 0.1, False: 10.0}  # between two lines, at a terminal and elsewhere


class Bar:
    """Draws on stderr, so that stdout stays for data."""

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit
        self._terminal = sys.stderr.isatty()
        self._shown = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """`done` of `total`, which is 0 where nobody knows."""
        if time.monotonic() - self._shown < _SECONDS[self._terminal]:
            return
        self._shown = time.monotonic()
        share = done / total if total else 0.0
        bar = f"[{'#' * int(share * _WIDTH):<{_WIDTH}}] {share:4.0%}" if total else ""
        text = f"{self._what} {bar} {_count(done)} {self._unit}"
        print(
            f"\r{text}\x1b[K" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Leave the line free."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _count(number: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return str(number)

"""What the programs behind `clusterctl data` have in common: their errors, and a line that tells how far they are."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable

_WIDTH = 30
_SECONDS = {True: 0.1, False: 10.0}  # between two lines, at a terminal and elsewhere
_INTERRUPTED = 130


def run(main: Callable[[], str]) -> None:
    """Print what `main` returns; a user's error as its message and exit code."""
    try:
        print(main())
    except ModuleNotFoundError as error:
        missing = TaskError(
            f"{sys.executable} has no {error.name}",
            f"{shlex.quote(sys.executable)} -m pip install torch torch_geometric numpy scipy"
            "; or name a cluster whose Python has it: --cluster NAME",
        )
        _leave(missing.text, missing.exit_code)
    except ClusterctlError as error:
        _leave(error.text, error.exit_code)
    except OSError as error:
        _leave(f"error: {error.filename or 'cannot write'}: {error.strerror}\nhint: df -h", 1)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def _leave(text: str, exit_code: int) -> None:
    print(text, file=sys.stderr)
    raise SystemExit(exit_code) from None


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
        share = min(1.0, done / total) if total else 0.0
        bar = f"[{'#' * int(share * _WIDTH):<{_WIDTH}}] {share:4.0%}  " if total else ""
        text = f"{self._what} {bar}{_count(done)}{self._unit}"
        line = (f"\r{text}\x1b[K", "") if self._terminal else (text, "\n")
        print(line[0], end=line[1], file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line free."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _count(number: int) -> str:
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return f"{number} "

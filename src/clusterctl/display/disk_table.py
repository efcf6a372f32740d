"""Tables of disk usage, of what can be removed, and of old runs that are kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterctl.display.columns import show_columns
from clusterctl.display.plain import as_bytes, duration

if TYPE_CHECKING:
    from rich.console import Console

    from clusterctl.api.clean import CleanUp

_NUMBERS = ("SIZE", "COUNT")


def show(console: Console, found: CleanUp) -> None:
    """Print the tables that are not empty."""
    taken = [(as_bytes(one.bytes), str(one.count), one.kind.value, os.fspath(one.path)) for one in found.taken]
    show_columns(console, ("SIZE", "COUNT", "WHAT", "WHERE"), taken, _NUMBERS)
    if found.removals:
        console.print()
        rows = [(as_bytes(one.bytes), _ago(one.since, found.as_of), os.fspath(one.path)) for one in found.removals]
        show_columns(console, ("SIZE", "ENDED", "TO REMOVE"), rows, _NUMBERS)
    if found.staying:
        console.print()
        show_columns(console, ("KEPT", "REASON"), found.staying)


def _ago(since: float | None, now: float) -> str:
    return "" if since is None else f"{duration(now - since)} ago"

"""The table of GPU-hours and CPU-hours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.display.columns import show_columns

if TYPE_CHECKING:
    from rich.console import Console

    from clusterctl.api.usage import UsageReport, UsageRow
    from clusterctl.display.columns import Row

_NUMBERS = ("RUNS", "GPU-HOURS", "GPU BUSY", "CPU-HOURS", "CPU BUSY", "REPEATED")


def show(console: Console, found: UsageReport) -> None:
    """Print one line per user, job or week, and their total if there are several."""
    rows = [*found.rows, found.total] if len(found.rows) > 1 else found.rows
    show_columns(console, (found.by.upper(), *_NUMBERS), [_cells(row) for row in rows], _NUMBERS)


def _cells(row: UsageRow) -> Row:
    hours = f"{row.gpu_hours:,.1f}" if row.gpu_hours else ""
    shares = [_percent(share) for share in (row.gpu_busy, row.cpu_busy, row.repeated or None)]
    return row.name, f"{row.runs:,}", hours, shares[0], f"{row.cpu_hours:,.1f}", shares[1], shares[2]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"

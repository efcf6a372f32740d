"""A plain table without lines; columns that are empty in every row are left out."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clusterctl.display.plain import as_bytes, duration, plain
from clusterctl.display.runs_table import row_of, show_runs
from clusterctl.errors import HostError
from clusterctl.observe.listing import Listing
from clusterctl.observe.status import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.api.clean import CleanUp
    from clusterctl.api.several_clusters import Answered
    from clusterctl.api.usage import UsageReport, UsageRow
    from clusterctl.containers.contents import Image


Row = tuple[str, ...]


def show_columns(console: Console, titles: Row, rows: Sequence[Row], numbers: Row = ()) -> None:
    """Print the table; the columns in `numbers` are right-aligned."""
    shown = [column for column in range(len(titles)) if any(row[column] for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        side = "right" if titles[column] in numbers else "left"
        table.add_column(titles[column], justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(plain(row[column])) for column in shown))
    console.print(table)


# Tables of disk usage, of what can be removed, and of old runs that are kept.


_DISK_NUMBERS = ("SIZE", "COUNT")


def show_disk(console: Console, found: CleanUp) -> None:
    """Print the tables that are not empty."""
    taken = [(as_bytes(one.bytes), str(one.count), one.kind.value, os.fspath(one.path)) for one in found.taken]
    show_columns(console, ("SIZE", "COUNT", "WHAT", "WHERE"), taken, _DISK_NUMBERS)
    if found.removals:
        console.print()
        rows = [(as_bytes(one.bytes), _ago(one.since, found.as_of), os.fspath(one.path)) for one in found.removals]
        show_columns(console, ("SIZE", "ENDED", "TO REMOVE"), rows, _DISK_NUMBERS)
    if found.staying:
        console.print()
        show_columns(console, ("KEPT", "REASON"), found.staying)


def _ago(since: float | None, now: float) -> str:
    return "" if since is None else f"{duration(now - since)} ago"


# The table of images.


def show_images(console: Console, images: Sequence[Image], now: float) -> None:
    """Print one line per image."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, right in (("IMAGE", False), ("MIB", True), ("AGE", True), ("PYTHON", False), ("TORCH", False)):
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    table.add_column("FROM", overflow="ellipsis", no_wrap=True)
    for image in images:
        status, record = image.path.stat(), image.record
        cells = [image.name, f"{status.st_size / 2**20:.0f}"]
        if record:
            torch = record.versions.get("torch", "")
            cells += [duration(now - record.created), record.python or "", torch, record.source]
        else:
            cells += [duration(now - status.st_mtime), "", "", image.problem or "no record"]
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console.print(table)


# The table of GPU-hours and CPU-hours.


_USAGE_NUMBERS = ("RUNS", "GPU-HOURS", "GPU BUSY", "CPU-HOURS", "CPU BUSY", "REPEATED")


def show_usage(console: Console, found: UsageReport) -> None:
    """Print one line per user, job or week, and their total if there are several."""
    rows = [*found.rows, found.total] if len(found.rows) > 1 else found.rows
    show_columns(console, (found.by.upper(), *_USAGE_NUMBERS), [_cells(row) for row in rows], _USAGE_NUMBERS)


def _cells(row: UsageRow) -> Row:
    hours = f"{row.gpu_hours:,.1f}" if row.gpu_hours else ""
    shares = [_percent(share) for share in (row.gpu_busy, row.cpu_busy, row.repeated or None)]
    return row.name, f"{row.runs:,}", hours, shares[0], f"{row.cpu_hours:,.1f}", shares[1], shares[2]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


# The runs of several clusters, one table per cluster.


def show(console: Console, clusters: Iterable[Answered], *, wide: bool) -> None:
    """Print each cluster's name and the age of its data, followed by its runs."""
    for number, one in enumerate(clusters):
        if number:
            console.print()
        console.print(Text(f"{plain(one.cluster)}: {_state(one)}", style="bold"))
        if one.report and one.report.statuses:
            rows = tuple(row_of(status, one.report.as_of) for status in one.report.statuses)
            show_runs(console, Listing(one.report.as_of, rows), wide=wide)


def if_shown(one: Answered) -> Answered:
    """`one`, or a problem in place of values that no table can show, such as a time beyond all calendars."""
    if one.report is None:
        return one
    try:
        to_json(one.report)
        show(Console(file=io.StringIO()), [one], wide=True)
    except (ArithmeticError, ValueError) as error:
        message = f"{one.cluster} sent values that cannot be shown: {error}"
        return one._replace(report=None, problem=HostError(message, f"clusterctl status --cluster {one.cluster}"))
    return one


def _state(one: Answered) -> str:
    if one.report is None:
        return "no answer"
    runs = "" if one.report.statuses else "no runs, "
    return f"{runs}not responding; as of {duration(one.age)} ago" if one.problem else f"{runs}up to date"

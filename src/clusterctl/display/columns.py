"""A plain table without lines; columns that are empty in every row are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from clusterctl.display.plain import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

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

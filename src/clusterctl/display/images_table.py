"""The table of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from clusterctl.display.plain import duration, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from clusterctl.containers.folder import Image


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

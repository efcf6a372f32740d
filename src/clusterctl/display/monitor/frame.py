"""One frame of the monitor, printed: `monitor --once`, also where there is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.display.monitor.arrange import Pane, arrange
from clusterctl.display.monitor.panes import draw, headline

if TYPE_CHECKING:
    from rich.console import Console

    from clusterctl.display.monitor.panes import MonitorView


def show_frame(console: Console, view: MonitorView, width: int, height: int, page: Pane | None = None) -> None:
    """Print `view` in `width` x `height` characters."""
    console.print(frame(view, width, height, page), soft_wrap=True)


def frame(view: MonitorView, width: int, height: int, page: Pane | None = None) -> Text:
    """The whole frame: a headline and every pane in its box."""
    boxes = [
        (region, list(_boxed(region.pane, view, region.width, region.height).split("\n")))
        for region in arrange(width, height, page)
    ]
    lines = [headline(view, width)]
    for y in range(1, height - 1):
        line = Text()
        for region, rows in sorted(boxes, key=lambda box: box[0].x):
            if region.y <= y < region.y + region.height:
                line.append_text(rows[y - region.y])
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def _boxed(pane: Pane, view: MonitorView, width: int, height: int) -> Text:
    """The text of a pane in a frame with its name, exactly `width` x `height` characters."""
    rows = list(draw(pane, view, width - 2, height - 2).split("\n", allow_blank=True))
    top = f"╭─ {pane} ".ljust(width - 1, "─")[: width - 1] + "╮"
    boxed = [Text(top, "dim")]
    for number in range(height - 2):
        row = rows[number] if number < len(rows) else Text()
        row.truncate(width - 2, pad=True)
        boxed.append(Text.assemble(("│", "dim"), row, ("│", "dim")))
    boxed.append(Text(f"╰{'─' * (width - 2)}╯", "dim"))
    return Text("\n").join(boxed)

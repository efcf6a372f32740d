"""What every pane is made of: lines that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence


def fitted(lines: Sequence[Text], width: int, height: int) -> Text:
    """At most `height` lines, each cut at `width` columns; of lines that are left out, the last one says so."""
    shown = list(lines[:height])
    if len(lines) > height > 1:
        shown[-1] = Text(f"... {len(lines) - height + 1} more", "dim")
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(shown)


def beside(left: Text, right: Text, left_width: int, gap: int = 2) -> Text:
    """Two texts side by side; `left` is padded to `left_width` columns."""
    lefts, rights = list(left.split("\n")), list(right.split("\n"))
    rows = []
    for index in range(max(len(lefts), len(rights))):
        row = lefts[index].copy() if index < len(lefts) else Text()
        row.set_length(left_width) if row.cell_len == len(row) else row.truncate(left_width, pad=True)
        row.append(" " * gap)
        if index < len(rights):
            row.append_text(rights[index])
        rows.append(row)
    return Text("\n").join(rows)

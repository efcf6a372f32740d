"""The rows of the table that `gpu_check` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Row(NamedTuple):
    """One result."""

    what: str
    value: str
    is_right: bool | None = None  # None: only a measurement

    @property
    def verdict(self) -> str:
        return {None: "", True: "ok", False: "WRONG"}[self.is_right]


def compared(what: str, difference: float, bound: float) -> Row:
    """A row that is right if two results differ by at most `bound`."""
    return Row(what, f"{difference:.1e}, at most {bound:.0e}", difference <= bound)


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown."""
    lines = [f"| {row.what} | {row.value} | {row.verdict} |" for row in rows]
    return "\n".join(["| what | result | |", "| --- | --- | --- |", *lines])

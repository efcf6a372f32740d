"""HTML that cannot be broken into: text is escaped by its type, markup is made here alone."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from clusterctl.display.plain import plain_lines

if TYPE_CHECKING:
    from collections.abc import Sequence


class Markup(str):
    """Text that is HTML already. Made by `tag` and `join`, from nothing that a user wrote."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. Children that are no Markup are escaped; attributes are, always; `class_` stands for `class`.

    An attribute of None is left out; an underscore in a name stands for a hyphen.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(_shown(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children and name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Sequence[str]) -> Markup:
    """Children one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children))


def table(rows: Sequence[Markup], *titles: Markup, class_: str | None = None) -> Markup:
    """Rows, below those titles if any, in a frame that scrolls."""
    head = [tag("thead", tag("tr", join(titles)))] if titles else []
    return tag("div", tag("table", *head, tag("tbody", join(rows)), class_=class_), class_="scroll")


_VOID = frozenset({"meta", "link", "br", "hr"})


def _escaped(text: str) -> str:
    """Without control characters and escape sequences, and without meaning for HTML."""
    return html.escape(plain_lines(text), quote=True)


def _shown(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

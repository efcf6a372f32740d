"""Injection-safe HTML: plain str is always escaped, and Markup is only created here."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from clusterctl.display.plain import plain_lines

if TYPE_CHECKING:
    from collections.abc import Sequence


class Markup(str):
    """Text that is already HTML. Created by `tag` and `join`, never from user input."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. Children are escaped unless they are Markup; attributes are always escaped; `class_` means `class`.

    Attributes that are None are left out; an underscore in a name becomes a hyphen.
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
    """The concatenated children, escaped unless they are Markup."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children))


def table(rows: Sequence[Markup], *titles: Markup, class_: str | None = None) -> Markup:
    """A scrollable table with optional titles."""
    head = [tag("thead", tag("tr", join(titles)))] if titles else []
    return tag("div", tag("table", *head, tag("tbody", join(rows)), class_=class_), class_="scroll")


_VOID = frozenset({"meta", "link", "br", "hr"})


def _escaped(text: str) -> str:
    """Text without control characters and escape sequences, escaped for HTML."""
    return html.escape(plain_lines(text), quote=True)


def _shown(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)

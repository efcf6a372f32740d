"""Injection-safe HTML: plain str is always escaped, and Markup is only created here. `document` is the whole file."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from typing import TYPE_CHECKING

from clusterctl import __version__
from clusterctl.launcher.display.plain import plain_lines
from clusterctl.shared.record.files import write_text as write_text

if TYPE_CHECKING:
    from collections.abc import Sequence


class Markup(str):
    """Text that is already HTML. Created by `tag` and `join`, never from user input."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. Children are escaped unless they are Markup; attributes are always escaped; `class_` means `class`.

    Attributes that are None are left out; an underscore in a name becomes a hyphen.
    """
    given = ""
    for key, value in attributes.items():
        if value is not None:
            text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            given += f' {key.rstrip("_").replace("_", "-")}="{_escaped(text)}"'
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


_VOID = frozenset({"meta", "link", "br", "hr", "input", "wbr"})


def _escaped(text: str) -> str:
    """Text without control characters and escape sequences, escaped for HTML."""
    return html.escape(plain_lines(text), quote=True)


# The HTML file around a report: its style, and a content security policy that forbids all external content.


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, *content: Markup, script: str = "") -> str:
    """A whole file with `content` and a footer. Only `script`, the name of a file in this folder, may run.

    A browser that opens it requests nothing else.
    """
    code = Markup(_ours(script)) if script else Markup()
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy_with(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(_ours("style.css"))),
    )
    footer = tag("footer", tag("p", f"clusterctl {__version__}", class_="faint"))
    body = tag("body", *content, footer, *([tag("script", code)] if code else []))
    return "<!doctype html>\n" + join([tag("html", head, body, lang="en")]) + "\n"


def policy_with(script: str) -> str:
    """The content security policy of a `document` with this script."""
    if not script:
        return _POLICY
    digest = base64.b64encode(hashlib.sha256(_ours(script).encode()).digest()).decode()
    return f"{_POLICY}; script-src 'sha256-{digest}'"


def _ours(name: str) -> str:
    return files("clusterctl.launcher.display.report").joinpath(name).read_text(encoding="utf-8")

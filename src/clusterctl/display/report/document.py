"""The HTML file around a report: its style, and a content security policy that forbids all external content."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from clusterctl import __version__
from clusterctl.display.report.markup import Markup, join, tag
from clusterctl.runs.files import write_text as write_text

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, *content: Markup, script: str = "") -> str:
    """A whole file with `content` and a footer. Only `script`, the name of a file in this folder, may run.

    A browser that opens it requests nothing else.
    """
    policy, code = _POLICY, Markup()
    if script:
        code = Markup(_ours(script))
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Markup(_ours("style.css"))),
    )
    footer = tag("footer", tag("p", f"clusterctl {__version__}", class_="faint"))
    body = tag("body", *content, footer, *([tag("script", code)] if code else []))
    return "<!doctype html>\n" + join([tag("html", head, body, lang="en")]) + "\n"


def _ours(name: str) -> str:
    return files("clusterctl.display.report").joinpath(name).read_text(encoding="utf-8")

"""The page of a report: its sections, one style sheet, and a policy that forbids everything else."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from clusterctl import __version__
from clusterctl.display.report import origins, sections
from clusterctl.display.report.markup import Markup, join, tag
from clusterctl.runs.files import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.display.report.post_mortem import PostMortem

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(told: PostMortem) -> str:
    """The whole HTML file. A browser that opens it asks for nothing else."""
    run = told.status.record.run.id
    style = Markup(files("clusterctl.display.report").joinpath("style.css").read_text(encoding="utf-8"))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{run} - {told.status.stage}"),
        tag("style", style),
    )
    body = tag(
        "body",
        tag("header", tag("h1", run)),
        tag(
            "main",
            sections.summary(told),
            sections.curves(told),
            sections.advice(told),
            sections.phases(told),
            sections.machines(told),
            origins.environment(told),
            origins.configuration(told),
            origins.logs(told),
        ),
        tag("footer", tag("p", f"clusterctl {__version__}", class_="faint")),
    )
    return "<!doctype html>\n" + join([tag("html", head, body, lang="en")]) + "\n"


def write(path: Path, text: str) -> None:
    """Leave the page at `path`, whole at once."""
    write_text(path, text)

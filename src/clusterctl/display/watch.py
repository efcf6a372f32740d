"""The table of runs, shown again and again: in place on a terminal, elsewhere whenever it has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from clusterctl.display.plain import plain
from clusterctl.display.runs_table import runs_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from clusterctl.observe.status import Report


def show(reports: Iterable[Report], console: Console, *, wide: bool = False) -> None:
    """Show each of `reports` as it comes."""
    if not console.is_terminal or console.is_dumb_terminal:
        _show_changes(reports, console, wide=wide)
        return
    with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        for report in reports:
            problems = _problems(report)
            width, rows = console.width, console.height - len(problems) - 1
            table = runs_table(report.statuses, report.as_of, width, rows) if report.statuses else Text("no runs yet")
            live.update(Group(table, *problems), refresh=True)


def _show_changes(reports: Iterable[Report], console: Console, *, wide: bool) -> None:
    before = ""
    for report in reports:
        table = runs_table(report.statuses, report.as_of, None if wide else console.width)
        shown = "\n".join([table.plain, *(problem.plain for problem in _problems(report))])
        if shown != before:
            console.print(Text(("\n" if before else "") + shown), soft_wrap=True)
            before = shown


def _problems(report: Report) -> list[Text]:
    lines = [f"warning: {plain(problem.message)}" for problem in report.problems]
    return [Text(line, "yellow", no_wrap=True, overflow="ellipsis") for line in lines]

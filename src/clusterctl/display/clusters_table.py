"""The runs of several clusters, one table per cluster."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from clusterctl.display.plain import duration, plain
from clusterctl.display.runs_table import row_of, show_runs
from clusterctl.errors import HostError
from clusterctl.observe.listing import Listing
from clusterctl.observe.status import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.api.several_clusters import Answered


def show(console: Console, clusters: Iterable[Answered], *, wide: bool) -> None:
    """Print each cluster's name and the age of its data, followed by its runs."""
    for number, one in enumerate(clusters):
        if number:
            console.print()
        console.print(Text(f"{plain(one.cluster)}: {_state(one)}", style="bold"))
        if one.report and one.report.statuses:
            rows = tuple(row_of(status, one.report.as_of) for status in one.report.statuses)
            show_runs(console, Listing(one.report.as_of, rows), wide=wide)


def if_shown(one: Answered) -> Answered:
    """`one`, or a problem in place of values that no table can show, such as a time beyond all calendars."""
    if one.report is None:
        return one
    try:
        to_json(one.report)
        show(Console(file=io.StringIO()), [one], wide=True)
    except (ArithmeticError, ValueError) as error:
        message = f"{one.cluster} sent values that cannot be shown: {error}"
        return one._replace(report=None, problem=HostError(message, f"clusterctl status --cluster {one.cluster}"))
    return one


def _state(one: Answered) -> str:
    if one.report is None:
        return "no answer"
    runs = "" if one.report.statuses else "no runs, "
    return f"{runs}not responding; as of {duration(one.age)} ago" if one.problem else f"{runs}up to date"

"""Runs as rows of a table. Of those that have ended, the rows that were made once are kept (`ended_runs`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.observe.ended_runs import Row
from clusterctl.observe.status import report
from clusterctl.runs.files import exists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.errors import ConfigError, SlurmError
    from clusterctl.observe.ended_runs import EndedRuns
    from clusterctl.observe.stage import Status
    from clusterctl.observe.status import Filter
    from clusterctl.runs.layout import RunDir


@dataclass(frozen=True)
class Listing:
    """Runs as they are at `as_of`, and what stood in the way of knowing."""

    as_of: float
    rows: tuple[Row, ...]
    problems: tuple[ConfigError | SlurmError, ...] = ()
    head: str = ""  # of a sweep: how it stands
    varied: tuple[str, ...] = ()  # the columns of what its runs change


def listing(
    runs: Iterable[RunDir], wanted: Filter, row_of: Callable[[Status, float], Row], ended: EndedRuns
) -> Listing:
    """The rows of those of `runs` that `wanted` takes, in their order; `row_of` makes those that are not kept."""
    found = [ended.row(run) or run for run in runs]
    unknown = (one for one in found if not isinstance(one, Row))
    looked = report((run for run in unknown if exists(run.run_json)), ended=ended)
    made = {status.record.run: row_of(status, looked.as_of) for status in looked.statuses}
    for row in made.values():
        ended.keep_row(row)
    rows = (one if isinstance(one, Row) else made.get(one) for one in found)
    taken = (row for row in rows if row and wanted.takes(row.stage, row.created, looked.as_of))
    return Listing(looked.as_of, tuple(taken), looked.problems)

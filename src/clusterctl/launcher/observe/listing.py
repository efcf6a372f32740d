"""Runs as rows of a table. The rows of ended runs are cached (`ended_runs`)."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.run_record import newer_records
from clusterctl.launcher.observe.runs import is_written, newest_first, newest_ids, newest_submissions
from clusterctl.launcher.observe.status import report
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from clusterctl.launcher.observe.ended_runs import EndedRuns, Row
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import Filter
    from clusterctl.shared.errors import ConfigError, SlurmError


@dataclass(frozen=True)
class Listing:
    """Runs at the time `as_of`, and the problems in reading them."""

    as_of: float
    rows: tuple[Row, ...]
    problems: tuple[ConfigError | SlurmError, ...] = ()
    looked: tuple[Status, ...] = ()  # of the rows that were not cached
    head: str = ""  # the headline of a sweep
    varied: tuple[str, ...] = ()  # columns for the settings varied by a sweep


def listing(
    folder: Path,
    wanted: Filter,
    count: int | None,
    row_of: Callable[[Status, float], Row],
    ended: EndedRuns,
    together: Callable[[Iterable[Row]], Iterable[Row]] = iter,
) -> Listing:
    """The newest `count` submissions in `folder` (None: all) that match `wanted`.

    `row_of` makes a row that is not cached, and `together` combines the rows of a sweep into one.
    """
    if count is None or wanted.needs_reading:
        ids = [*newest_ids(folder, wanted.takes_id, wanted.since(time.time()))]
    else:
        ids = [*newest_submissions((run.id for run in newest_first(folder, wanted.takes_id)), count)]
    where = os.fspath(folder)
    rows = {run: row for run in ids if (row := ended.row(where, run))}
    unknown = (run for run in ids if run not in rows and is_written(folder, run))
    looked = report((RunDir(folder / run) for run in unknown), ended=ended)
    for status in looked.statuses:
        run = status.record.run
        rows[run.id] = row = row_of(status, looked.as_of)
        ended.keep_row(run, row)
    found = (rows[run] for run in ids if run in rows)
    taken = (row for row in found if wanted.takes(row.state, row.created, looked.as_of))
    problems = (*looked.problems, *newer_records(status.record for status in looked.statuses))
    return Listing(looked.as_of, tuple(itertools.islice(together(taken), count)), problems, looked.statuses)

"""Rows for sweeps in the table of runs: one row per sweep, or one per run with the settings it varies."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.display.plain import duration, plain, progress_bar
from clusterctl.observe.ended_runs import Row
from clusterctl.observe.listing import Listing
from clusterctl.observe.run_names import submission
from clusterctl.observe.sweep_summary import stages_in_words
from clusterctl.observe.sweeps import values_of
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterctl.observe.stage import Status
    from clusterctl.observe.status import Report
    from clusterctl.observe.sweep_summary import SweepSummary

_MOST_COLUMNS = 6  # for varied settings


def together(rows: Iterable[Row]) -> list[Row]:
    """`rows` with the runs of each sweep combined into one row, in place of the first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(submission(row.run), []).append(row)
    return [_one(name, group) if group[0].run != name else group[0] for name, group in groups.items()]


def _one(sweep: str, rows: Sequence[Row]) -> Row:
    counts = Counter(row.stage for row in rows)
    ended = sum(row.stage.ended for row in rows) / len(rows)
    cells = {
        "RUN": sweep,
        "STAGE": f"{len(rows)} runs",
        "PROGRESS": progress_bar(ended),
        "NOTE": stages_in_words(counts),
    }
    return Row(sweep, _stage(counts), max(row.created for row in rows), cells)


def _stage(counts: Mapping[Stage, int]) -> Stage:
    """The stage that determines a sweep's colour: of active runs, else of runs that ended badly."""
    going = [stage for stage in counts if not stage.ended]
    badly = [stage for stage in counts if stage.ended and stage is not Stage.FINISHED]
    return next(itertools.chain((one for one in going if one is not Stage.QUEUED), going, badly), Stage.FINISHED)


def apart(rows: Iterable[Row], settings: Mapping[str, Sequence[str]]) -> tuple[list[Row], list[str]]:
    """`rows` with their runs' `settings` in additional columns, and the titles of those columns."""
    values = {run: values_of(row) for run, row in settings.items()}
    titles = _titles(dict.fromkeys(key for row in values.values() for key in row))
    changed = []
    for row in rows:
        mine = {titles[key]: plain(text) for key, text in values.get(row.run, {}).items() if key in titles}
        changed.append(row._replace(cells={**row.cells, "RUN": f".{row.run.rpartition('.')[2]}", **mine}))
    return changed, [*titles.values()]


def listing(summary: SweepSummary, looked: Report, row_of: Callable[[Status, float], Row]) -> Listing:
    """A sweep as a table of its runs, by index, with its headline."""
    record = summary.record
    settings = {run.id: row for run, row in zip(record.runs, record.settings, strict=True)}
    rows, varied = apart((row_of(status, looked.as_of) for status in summary.statuses), settings)
    return Listing(looked.as_of, tuple(rows), looked.problems, head=headline(summary), varied=tuple(varied))


def headline(found: SweepSummary) -> str:
    """The state of the sweep in one or two lines."""
    lines = [f"{found.record.sweep.id}: {len(found.statuses)} runs: {stages_in_words(found.stages)}"]
    if found.seconds_left:
        lines[0] += f"; about {duration(found.seconds_left)} left"
    if best := found.best:
        place = best.status.record.run.id.rpartition(".")[2]
        settings = " ".join(found.record.settings[int(place)])
        lines.append(f"best {best.metric.label}: {best.metric.text(best.value)} of .{place}: {settings}")
    return "\n".join(map(plain, lines))


def _titles(keys: Iterable[str]) -> dict[str, str]:
    """The columns of the first keys: `train.lr` -> `lr`, unless another key ends in the same word."""
    some = [*itertools.islice(keys, _MOST_COLUMNS)]
    ends = Counter(key.rpartition(".")[2] for key in some)
    return {key: plain(end if ends[end := key.rpartition(".")[2]] == 1 else key) for key in some}

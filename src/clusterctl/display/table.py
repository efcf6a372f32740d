"""The table of runs: as many columns as the terminal has room for, the least needed one left out first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table
from rich.text import Text

from clusterctl.display.plain import duration, number, plain, share
from clusterctl.runs.metrics import score_of
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from clusterctl.observe.stage import Status

_STYLES = {Stage.FINISHED: "green", Stage.QUEUED: "yellow", Stage.CANCELLED: "dim"}
_GAP = 2


class Column(NamedTuple):
    title: str
    cell: Callable[[Status, float], str]
    rank: int  # of importance: 0 is never left out
    right: bool = False


_COLUMNS = (
    Column("RUN", lambda status, _: status.record.run.id, 0),
    Column("STAGE", lambda status, _: _stage_text(status), 0),
    Column("EPOCH", lambda status, _: share(status.metrics.get("epoch"), status.metrics.get("epochs")), 1, True),
    Column("STEP", lambda status, _: share(status.metrics.get("step"), status.metrics.get("steps")), 7, True),
    Column("LOSS", lambda status, _: number(status.metrics.get("loss")), 1, True),
    Column("VAL", lambda status, _: _score(status, "val"), 3, True),
    Column("TEST", lambda status, _: _score(status, "test"), 2, True),
    Column("TASKS", lambda status, _: f"{status.record.job.resources.nodes}x{status.record.tasks_per_node}", 6, True),
    Column("AGE", lambda status, now: duration(now - status.record.created), 4, True),
    Column("RAN", lambda status, now: _ran(status, now), 8, True),
    Column("TRY", lambda status, _: str(status.attempts or ""), 9, True),
    Column("JOB", lambda status, _: status.job_id or "", 10, True),
    Column("NOTE", lambda status, _: note(status), 5),
)


def show_runs(console: Console, statuses: Sequence[Status], now: float) -> None:
    """Print one line a run, newest first as given."""
    columns = _fitting(statuses, now, console.width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for status in statuses:
        style = _STYLES.get(status.stage, "red" if status.stage.ended else "cyan")
        texts = (Text(column.cell(status, now), style if column.title == "STAGE" else "") for column in columns)
        table.add_row(*texts)
    console.print(table)


def note(status: Status) -> str:
    """What else there is to say: that it is being cancelled, why it waits, how it failed."""
    if status.cancelling:
        return "being cancelled"
    if status.reason:
        return plain(status.reason)
    return f"exit code {status.exit_code}" if status.stage is Stage.FAILED and status.exit_code else ""


def _fitting(statuses: Sequence[Status], now: float, width: int) -> list[Column]:
    widths = {
        column: max(len(column.title), *(len(column.cell(status, now)) for status in statuses)) for column in _COLUMNS
    }
    filled = [column for column in _COLUMNS if any(column.cell(status, now) for status in statuses)]
    while sum(widths[column] + _GAP for column in filled) - _GAP > width and any(column.rank for column in filled):
        filled.remove(max(filled, key=lambda column: column.rank))
    return filled


def _score(status: Status, split: str) -> str:
    score = score_of(status.metrics, split)
    return number(score[1]) if score else ""


def _ran(status: Status, now: float) -> str:
    if status.started is None:
        return ""
    return duration((status.ended if status.stage.ended and status.ended else now) - status.started)


def _stage_text(status: Status) -> str:
    """The stage, with a question mark where Slurm would have to say and has not."""
    return status.stage.value if status.sure else f"{status.stage}?"

"""The table of runs: as many columns as the terminal has room for, the least needed one left out first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from clusterctl.diagnosis.learning import not_learning
from clusterctl.display.plain import duration, plain, share
from clusterctl.display.units import bar
from clusterctl.observe.measurements import progress, seconds_left
from clusterctl.runs.stages import Stage
from clusterctl.runs.vocabulary import KNOWN, number, score_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from clusterctl.observe.stage import Status

_STYLES = {Stage.FINISHED: "green", Stage.QUEUED: "yellow", Stage.CANCELLED: "dim"}
_AT_WORK = frozenset({Stage.TRAINING, Stage.EVALUATING, Stage.CHECKPOINTING})
_GAP = 2
_BAR_CELLS = 10


class Column(NamedTuple):
    title: str
    cell: Callable[[Status, float], str]
    rank: int  # of importance: 0 is never left out
    right: bool = False


_COLUMNS = (
    Column("RUN", lambda status, _: status.record.run.id, 0),
    Column("STAGE", lambda status, _: _stage_text(status), 0),
    Column("PROGRESS", lambda status, _: _bar(status), 5),
    Column("EPOCH", lambda status, _: share(status.metrics.get("epoch"), status.metrics.get("epochs")), 1, True),
    Column("STEP", lambda status, _: share(status.metrics.get("step"), status.metrics.get("steps")), 10, True),
    Column("ETA", lambda status, now: _time_left(status, now), 3, True),
    Column("LOSS", lambda status, _: number(status.metrics.get("loss")), 1, True),
    Column("VAL", lambda status, _: _score(status, "val"), 4, True),
    Column("TEST", lambda status, _: _score(status, "test"), 2, True),
    Column("NODES/S", lambda status, _: _throughput(status), 8, True),
    Column("GPU", lambda status, _: _gpu(status), 7, True),
    Column("TASKS", lambda status, _: f"{status.record.job.resources.nodes}x{status.record.tasks_per_node}", 9, True),
    Column("AGE", lambda status, now: duration(now - status.record.created), 4, True),
    Column("RAN", lambda status, now: _ran(status, now), 11, True),
    Column("TRY", lambda status, _: str(len(status.attempts) or ""), 12, True),
    Column("JOB", lambda status, _: status.job_id or "", 13, True),
    Column("NOTE", lambda status, _: note(status), 6),
)
_NODES = Column("ON", lambda status, _: plain(status.attempt.nodes) if status.attempt else "", 14)


def show_runs(console: Console, statuses: Sequence[Status], now: float, *, wide: bool = False) -> None:
    """Print one line a run, newest first as given; `wide` prints every column, however long the lines get."""
    console.print(runs_table(statuses, now, None if wide else console.width), soft_wrap=True)


def runs_table(statuses: Sequence[Status], now: float, width: int | None, rows: int | None = None) -> Text:
    """The table, in lines of at most `width` cells (None: as they come) and at most `rows` of them with its head.

    Put together here: rich's own table takes a millisecond a line.
    """
    left_out = len(statuses) - (rows - 2) if rows is not None and len(statuses) + 1 > rows else 0
    shown = statuses[: len(statuses) - left_out]
    columns = [*_COLUMNS, _NODES] if width is None else list(_COLUMNS)
    cells = {column: [column.cell(status, now) for status in shown] for column in columns}
    widths = {column: max(map(cell_len, (column.title, *cells[column]))) for column in columns}
    columns = _fitting([column for column in columns if any(cells[column])], widths, width)
    lines = [Text("  ".join(_padded(column.title, widths[column], column) for column in columns).rstrip(), "bold")]
    for place, status in enumerate(shown):
        line = Text()
        for column in columns:
            style = _style(status) if column.title == "STAGE" else ""
            line.append("  " if line else "").append(_padded(cells[column][place], widths[column], column), style)
        line.rstrip()
        lines.append(line)
    if left_out:
        lines.append(Text(f"and {left_out} more", "dim"))
    if width is not None:
        for line in lines:
            line.truncate(width)
    return Text("\n").join(lines)


def note(status: Status) -> str:
    """What else there is to say: that it is being cancelled, why it waits, how it failed, why it does not learn."""
    if status.cancelling:
        return "being cancelled"
    if status.reason:
        return plain(status.reason)
    if status.stage is Stage.FAILED and status.exit_code:
        return f"exit code {status.exit_code}"
    lesson = not_learning(status.attempt.course if status.attempt else None)
    return lesson.note if lesson else ""


def _fitting(filled: list[Column], widths: dict[Column, int], width: int | None) -> list[Column]:
    """The columns that `width` has room for."""
    while width is not None and sum(widths[column] + _GAP for column in filled) - _GAP > width:
        if not any(column.rank for column in filled):
            break
        filled.remove(max(filled, key=lambda column: column.rank))
    return filled


def _padded(text: str, width: int, column: Column) -> str:
    blank = " " * (width - cell_len(text))
    return blank + text if column.right else text + blank


def _style(status: Status) -> str:
    return _STYLES.get(status.stage, "red" if status.stage.ended else "cyan")


def _bar(status: Status) -> str:
    """`█████▌     55%`: legible without colour."""
    done = progress(status.metrics)
    if done is None or status.stage in (Stage.QUEUED, Stage.STARTING):
        return ""
    return f"{bar(done, _BAR_CELLS)}{int(done * 100):>4}%"


def _time_left(status: Status, now: float) -> str:
    if status.stage not in _AT_WORK or status.attempt is None:
        return ""
    left = seconds_left(status.metrics, status.attempt.pace, now)
    return "" if left is None else duration(left)


def _throughput(status: Status) -> str:
    """Seed nodes a second, over all ranks."""
    if status.stage not in _AT_WORK:
        return ""
    return KNOWN["nodes_per_second"].text(status.metrics.get("nodes_per_second"))


def _gpu(status: Status) -> str:
    used = status.attempt.gpu if status.attempt and not status.stage.ended else None
    return "" if used is None else f"{used:.0f}%"


def _score(status: Status, split: str) -> str:
    score = score_of(status.metrics, split)
    return score[0].text(score[1]) if score else ""


def _ran(status: Status, now: float) -> str:
    if status.started is None:
        return ""
    return duration((status.ended if status.stage.ended and status.ended else now) - status.started)


def _stage_text(status: Status) -> str:
    """The stage, with a question mark where Slurm would have to say and has not."""
    return status.stage.value if status.sure else f"{status.stage}?"

"""The table of runs: as many columns as the terminal has room for, the least needed one left out first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from clusterctl.diagnosis.learning import not_learning, single_steps
from clusterctl.display.plain import bar, duration, plain, share
from clusterctl.observe.measurements import progress, seconds_left
from clusterctl.runs.stages import Stage
from clusterctl.runs.vocabulary import KNOWN, number, own_metrics, score_of
from clusterctl.runs.watchdog import IDLE_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions

    from clusterctl.observe.attempt import AttemptEvidence
    from clusterctl.observe.stage import Status
    from clusterctl.observe.status import Report

_STYLES = {Stage.FINISHED: "green", Stage.QUEUED: "yellow", Stage.CANCELLED: "dim"}
_AT_WORK = frozenset({Stage.TRAINING, Stage.EVALUATING, Stage.CHECKPOINTING})
_GAP = 2
_BAR_CELLS = 10
_SHORT = 0.9  # of its steps: a program may log each tenth
_IMPORTANCE = {  # 0 is never left out; the column with the greatest number goes first
    "RUN": 0, "STAGE": 0, "PROGRESS": 5, "EPOCH": 1, "STEP": 10, "ETA": 3, "LOSS": 1, "VAL": 4, "TEST": 2, "NODES/S": 8,
    "GPU": 7, "TASKS": 9, "AGE": 4, "RAN": 11, "TRY": 12, "JOB": 13, "NOTE": 6,
}  # fmt: skip
_LEFT_ALIGNED = ("RUN", "STAGE", "PROGRESS", "NOTE", "ON")


def show_runs(console: Console, statuses: Sequence[Status], now: float, *, wide: bool = False) -> None:
    """Print one line a run, newest first as given; `wide` prints every column, however long the lines get."""
    console.print(RunsTable(statuses, now, None if wide else console.width), soft_wrap=True)


def watch_runs(reports: Iterable[Report], console: Console, *, wide: bool = False) -> None:
    """Show each of `reports` as it comes: in place on a terminal, elsewhere whenever the table has changed."""
    from rich.console import Group
    from rich.live import Live

    if not console.is_terminal or console.is_dumb_terminal:
        _show_changes(reports, console, wide=wide)
        return
    with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        for report in reports:
            problems = _problems(report)
            width, rows = console.width, console.height - len(problems) - 1
            table = RunsTable(report.statuses, report.as_of, width, rows) if report.statuses else Text("no runs yet")
            live.update(Group(table, *problems), refresh=True)


def _show_changes(reports: Iterable[Report], console: Console, *, wide: bool) -> None:
    before = ""
    for report in reports:
        table = RunsTable(report.statuses, report.as_of, None if wide else console.width)
        shown = "\n".join([table.plain, *(problem.plain for problem in _problems(report))])
        if shown != before:
            console.print(Text(("\n" if before else "") + shown), soft_wrap=True)
            before = shown


def _problems(report: Report) -> list[Text]:
    lines = [f"warning: {plain(problem.message)}" for problem in report.problems]
    return [Text(line, "yellow", no_wrap=True, overflow="ellipsis") for line in lines]


class RunsTable:
    """The table, in lines of at most `width` cells (None: as they come) and at most `rows` of them with its head.

    Made of segments, as the console writes them: rich's own table takes a millisecond a line, and a text a line a tenth
    of that.
    """

    def __init__(self, statuses: Sequence[Status], now: float, width: int | None, rows: int | None = None) -> None:
        left_out = len(statuses) - (rows - 2) if rows is not None and len(statuses) + 1 > rows else 0
        shown = statuses[: len(statuses) - left_out]
        cells = [_cells(status, now) for status in shown]
        columns = [*_IMPORTANCE, *(["ON"] if width is None else [])]
        texts = {column: {row[column] for row in cells} for column in columns}
        widths = {column: max(map(cell_len, (column, *texts[column]))) for column in columns}
        columns = _fitting([column for column in columns if texts[column] != {""}], widths, width)
        head = "  ".join(_padded(column, widths[column], column) for column in columns).rstrip()
        self._lines = [[Segment(head, Style(bold=True))]]
        padded = {column: {text: _padded(text, widths[column], column) for text in texts[column]} for column in columns}
        place = columns.index("STAGE")
        for status, row in zip(shown, cells, strict=True):
            *before, stage = (padded[column][row[column]] for column in columns[: place + 1])
            name = Segment(row["STAGE"], Style.parse(stage_style(status.stage)))
            blank = stage.removeprefix(row["STAGE"])
            after = (padded[column][row[column]] for column in columns[place + 1 :])
            rest = Segment("  ".join([blank, *after]).rstrip())
            self._lines.append([Segment("  ".join([*before, ""])), name, rest])
        if left_out:
            self._lines.append([Segment(f"and {left_out} more", Style(dim=True))])
        if width is not None and sum(widths[column] + _GAP for column in columns) - _GAP > width:
            self._lines = [Segment.adjust_line_length(line, width, pad=False) for line in self._lines]

    @property
    def plain(self) -> str:
        return "\n".join("".join(segment.text for segment in line) for line in self._lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._lines:
            yield from line
            yield Segment.line()


def note(status: Status) -> str:
    """What no column shows: that it is being cancelled or idle, why it waits, how it failed, why it does not learn."""
    if status.cancelling:
        return "being cancelled"
    if status.reason:
        return plain(status.held_up_by)
    if status.stage is Stage.FAILED and status.attempt:
        return _end(status.attempt)
    if not status.stage.ended and status.attempt and (since := status.attempt.idle_since) is not None:
        return f"idle since {time.strftime('%H:%M', time.localtime(since))}, logs no steps"
    if not status.stage.ended and status.attempt and (since := status.attempt.gpus_idle_since) is not None:
        return f"GPUs idle since {time.strftime('%H:%M', time.localtime(since))}"
    done = progress(status.metrics)
    if status.stage is Stage.FINISHED and status.record.job.workload == "command" and done and done < _SHORT:
        return f"left after step {share(status.metrics.get('step'), status.metrics.get('steps'))}"
    lesson = not_learning(status.attempt.course if status.attempt else None)
    return lesson.note if lesson else "1 step per epoch" * bool(single_steps(status))


def _end(attempt: AttemptEvidence) -> str:
    """How the first rank ended that did so by itself: srun's own code is the highest of all, 143 of those it ended."""
    if attempt.hung:
        return "GPUs idle" if attempt.hung == IDLE_GPUS else "stood still"
    death = attempt.death
    if death and death.code is None:
        return plain(death.how).lower()
    code = death.code if death else attempt.exit_code
    return f"exit code {code}" if code else ""


def _fitting(filled: list[str], widths: dict[str, int], width: int | None) -> list[str]:
    """The columns that `width` has room for."""
    while width is not None and sum(widths[column] + _GAP for column in filled) - _GAP > width:
        if not any(_IMPORTANCE[column] for column in filled):
            break
        filled.remove(max(filled, key=_IMPORTANCE.__getitem__))
    return filled


def _padded(text: str, width: int, column: str) -> str:
    blank = " " * (width - cell_len(text))
    return text + blank if column in _LEFT_ALIGNED else blank + text


def stage_style(stage: Stage) -> str:
    return _STYLES.get(stage, "red" if stage.ended else "cyan")


def stage_text(status: Status) -> str:
    """The stage, with a question mark where only Slurm knows and has not answered."""
    return status.stage.value if status.sure else f"{status.stage}?"


def _cells(status: Status, now: float) -> dict[str, str]:
    """The text of one run in every column, by its title."""
    stage, metrics, attempt, job = status.stage, status.metrics, status.attempt, status.record.job
    at_work = stage in _AT_WORK
    done = progress(metrics) if stage not in (Stage.QUEUED, Stage.STARTING) else None
    left = seconds_left(metrics, attempt.pace, now) if at_work and attempt else None
    gpu = attempt.gpu if attempt and not stage.ended else None
    ran = status.ran(now)
    scores = (score_of(metrics, "val"), score_of(metrics, "test"))
    val, test = (score[0].text(score[1]) if score else "" for score in scores)
    return {
        "RUN": status.record.run.id,
        "STAGE": stage_text(status),
        "PROGRESS": "" if done is None else f"{bar(done, _BAR_CELLS)}{int(done * 100):>4}%",
        "EPOCH": share(metrics.get("epoch"), metrics.get("epochs")),
        "STEP": share(metrics.get("step"), metrics.get("steps")),
        "ETA": "" if left is None else duration(left),
        "LOSS": number(metrics.get("loss")),
        "VAL": val,
        "TEST": test,
        "NODES/S": KNOWN["nodes_per_second"].text(metrics.get("nodes_per_second") if at_work else None),
        "GPU": "" if gpu is None else f"{gpu:.0f}%",
        "TASKS": f"{job.resources.nodes}x{status.record.tasks_per_node}",
        "AGE": duration(now - status.record.created),
        "RAN": "" if ran is None else duration(ran),
        "TRY": str(len(status.attempts) or ""),
        "JOB": status.job_id or "",
        "NOTE": note(status) or "  ".join(f"{plain(name)} {number(own)}" for name, own in own_metrics(metrics).items()),
        "ON": plain(attempt.nodes) if attempt else "",
    }

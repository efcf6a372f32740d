"""One run, followed: a progress bar on a terminal, one line an epoch or stage elsewhere. Ctrl-C detaches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from clusterctl.display import terminal
from clusterctl.display.plain import share
from clusterctl.display.runs_table import note
from clusterctl.display.summary import show_end, show_next
from clusterctl.observe.follow import REAL_SOURCES, Sources, watch
from clusterctl.observe.lines import Growing
from clusterctl.observe.measurements import measurements_in
from clusterctl.observe.run_record import read_record
from clusterctl.runs.vocabulary import number, score_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from clusterctl.observe.attempt import AttemptEvidence
    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import RunDir
    from clusterctl.runs.stages import Stage
    from clusterctl.runs.vocabulary import Number


def show(run: RunDir, console: Console | None = None, sources: Sources = REAL_SOURCES) -> Stage:
    """Show `run` until it ends, then how it ended and what to type next.

    On KeyboardInterrupt it says that the run goes on, and lets the interrupt pass: the run is never touched.
    """
    console = console or terminal.messages()
    status = None
    try:
        with _view(console) as view:
            for status in watch(run, read_record(run).cluster, sources):
                view.update(status)
    except KeyboardInterrupt:
        console.print("detached; the run goes on")
        show_next(console, f"clusterctl logs -f {run.id}", f"clusterctl status {run.id}")
        raise
    assert status is not None  # watch yields at least once
    show_end(console, status, sources.slurm_of)
    return status.stage


class _View(Protocol):
    def update(self, status: Status) -> None: ...


@contextmanager
def _view(console: Console) -> Iterator[_View]:
    if not console.is_terminal or console.is_dumb_terminal:
        yield _PlainLines(console)
        return
    columns: list[ProgressColumn] = [
        TextColumn("{task.fields[stage]:<13}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[facts]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    ]
    with Progress(*columns, console=console, auto_refresh=False, expand=True) as progress:
        yield _Bar(progress, progress.add_task("", total=None, stage="", facts=""))


class _Bar:
    """The bar counts steps, of all epochs."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def update(self, status: Status) -> None:
        metrics = status.metrics
        reason = [note(status)] if note(status) else []
        self._progress.update(
            self._task,
            completed=metrics.get("step", 0),
            total=metrics.get("steps"),
            stage=status.stage.value,
            facts="  ".join([*_facts(metrics), *reason]),
            refresh=True,
        )


class _PlainLines:
    """One line for every stage when it is first entered, and for every epoch when it is over.

    The metrics are read record by record: between two looks several epochs may pass, and none is left out.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[str] = set()
        self._metrics: Growing | None = None
        self._epoch: dict[str, Number] = {}

    def update(self, status: Status) -> None:
        for values in self._added(status.record.run, status.attempt):
            if values.get("epoch", self._epoch.get("epoch")) != self._epoch.get("epoch"):
                self._tell_epoch()
            self._epoch |= values
        if status.stage.ended:
            self._tell_epoch()
        else:
            self._tell(f"{status.stage} {note(status)}".strip())

    def _tell(self, stage: str) -> None:
        if stage not in self._told:
            self._told.add(stage)
            self._console.print(Text(stage), soft_wrap=True)

    def _tell_epoch(self) -> None:
        if "epoch" in self._epoch:
            self._console.print(Text("  ".join(_facts(self._epoch))), soft_wrap=True)
        self._epoch = {}

    def _added(self, run: RunDir, attempt: AttemptEvidence | None) -> list[dict[str, Number]]:
        if attempt is None:
            return []
        path = run.attempt(attempt.number).metrics
        if self._metrics is None or self._metrics.path != path:
            if self._metrics:  # a new attempt goes through its stages again
                self._told.clear()
            self._metrics = Growing(path)
        return [measured.values for measured in measurements_in(self._metrics.read())]


def _facts(metrics: Mapping[str, Number]) -> list[str]:
    """Where the training stands: epoch, loss, accuracy on the validation split."""
    named = (
        ("epoch", share(metrics.get("epoch"), metrics.get("epochs"))),
        ("loss", number(metrics.get("loss"))),
        ("val", number(score[1] if (score := score_of(metrics, "val")) else None)),
    )
    return [f"{name} {text}" for name, text in named if text]

"""Follow one run: a progress bar on a terminal, one line per epoch or state elsewhere. Ctrl-C detaches.

The output of a `command` run's rank 0, or of a batch script, is shown, too.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from clusterctl.launcher.config.suggestions import suggested
from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.display import terminal
from clusterctl.launcher.display.plain import as_shown, duration, plain, share
from clusterctl.launcher.display.runs_table import note
from clusterctl.launcher.display.terminal import frame_of, times_of
from clusterctl.launcher.observe.attempt import read_host
from clusterctl.launcher.observe.follow import REAL_SOURCES, Sources, watch
from clusterctl.launcher.observe.lines import Growing
from clusterctl.launcher.observe.logs import Logs, Selection
from clusterctl.launcher.observe.measurements import measurements_in
from clusterctl.launcher.observe.run_record import read_record, read_submission
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.record.files import is_folder
from clusterctl.shared.record.metrics import counted_examples, number, own_metrics, score_of
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    from clusterctl.launcher.observe.measurements import Measurement
    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.record.metrics import Number
    from clusterctl.shared.spec import Cluster

_BETWEEN_SECONDS = 10.0


def show(run: RunDir, console: Console | None = None, sources: Sources = REAL_SOURCES) -> State:
    """Show `run` until it ends, then its outcome and what to type next.

    On KeyboardInterrupt, print that the run continues and re-raise: the run is never affected.
    """
    console = console or terminal.messages()
    status = None
    try:
        record = read_record(run)
        output = _Output(run, is_script=record.is_script) if record.job.workload in ("command", SCRIPT) else None
        with _view(console) as update:
            for status in watch(run, record.cluster, sources, closely=True):
                if output:
                    for line in output.added(sources.clock(), ended=status.state.ended and status.sure):
                        console.print(Text(line), soft_wrap=True)
                update(status, sources.clock(), output.frame if output and not status.state.ended else "")
    except KeyboardInterrupt:
        console.print("detached; the run continues")
        show_next(console, f"clusterctl logs -f {run.id}", f"clusterctl status {run.id}")
        raise
    assert status is not None  # watch yields at least once
    show_end(console, status, sources.slurm_of)
    return status.state


@contextmanager
def _view(console: Console) -> Iterator[Callable[[Status, float, str], None]]:
    """A function that shows a status now and a program's bar: as a bar over all steps, or line by line."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield _PlainLines(console).update
        return
    columns = (
        TextColumn("{task.fields[state]:<13}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[facts]}", markup=False),
    )
    progress = Progress(*columns, console=console, auto_refresh=False, expand=True)
    task = progress.add_task("", total=None, state="", facts="")
    with Live(console=console, auto_refresh=False) as live:

        def update(status: Status, now: float, frame: str) -> None:
            steps, total = status.metrics.get("step", 0), status.metrics.get("steps")
            facts = "  ".join(filter(None, [*_facts(status.metrics), note(status), times_of(status, now)]))
            progress.update(task, completed=steps, total=total, state=status.state.value, facts=facts)
            below = [Text(frame, no_wrap=True, overflow="ellipsis")] if frame else []
            live.update(Group(progress, *below), refresh=True)

        yield update


class _PlainLines:
    """Prints one line for each new state and for each completed epoch.

    A program that logs no epochs gets a line with its newest values every ten seconds. The metrics are read record by
    record, so that no epoch is missed between two updates.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: set[str] = set()
        self._metrics: Growing | None = None
        self._epoch: dict[str, Number] = {}
        self._has_epochs = False
        self._shown_at = 0.0  # time of the newest values shown

    def update(self, status: Status, now: float, frame: str) -> None:  # noqa: ARG002 - for terminals
        added: list[Measurement] = []
        if status.attempt:
            path = status.record.run.attempt(status.attempt.number).metrics
            if self._metrics is None or self._metrics.path != path:
                if self._metrics:  # a new attempt goes through its states again
                    self._shown.clear()
                self._metrics = Growing(path)
            added = list(measurements_in(self._metrics.read()))
        for time, values in added:
            if values.get("epoch", self._epoch.get("epoch")) != self._epoch.get("epoch"):
                self._show()
            self._epoch |= values
            self._has_epochs |= "epoch" in values
            if not self._has_epochs and time is not None and time - self._shown_at >= _BETWEEN_SECONDS:
                self._shown_at = time
                self._show()
        state = f"{status.state} {note(status)}".strip()
        if status.state.ended:
            self._show()
        elif state not in self._shown:
            self._shown.add(state)
            self._console.print(Text(state), soft_wrap=True)

    def _show(self) -> None:
        if (facts := _facts(self._epoch)) and ("epoch" in self._epoch or not self._has_epochs):
            self._console.print(Text("  ".join(facts)), soft_wrap=True)
        self._epoch = {}


class _Output:
    """The output of rank 0, or of a batch script, in the attempts since the run was submitted or resumed."""

    def __init__(self, run: RunDir, *, is_script: bool = False) -> None:
        submitted = read_submission(run).time or 0.0
        past = [attempt.number for attempt in run.attempts() if (read_host(attempt).end or math.inf) < submitted]
        self._run, self._is_script = run, is_script
        self._number = max(past, default=-1) + 1
        self._logs: Logs | None = None

    def added(self, now: float, *, ended: bool) -> Iterator[str]:
        """The lines since the last call; with `ended`, including one without a newline."""
        while True:
            if self._logs is None:
                self._logs = Logs(self._run, Selection(self._number, None if self._is_script else 0))
            over = self._run.attempt(self._number + 1) in self._run.attempts()
            for line in self._logs.read(ended=True) if ended or over else self._logs.added(now):
                if self._is_script or line.source.rank is not None:  # not that of our own batch script
                    yield as_shown(line.text)
            if not over:
                return
            self._number, self._logs = self._number + 1, None

    @property
    def frame(self) -> str:
        """The newest frame of its progress bar."""
        return frame_of(self._logs.unfinished()) if self._logs else ""


def _facts(metrics: Mapping[str, Number]) -> list[str]:
    """Progress of the training: epoch or step, loss, validation score, and the program's own metrics."""
    steps = "" if "epoch" in metrics else share(metrics.get("step"), metrics.get("steps"))
    named = (
        ("epoch", share(metrics.get("epoch"), metrics.get("epochs"))),
        ("step", steps),
        ("loss", number(metrics.get("loss"))),
        ("val", number(score[1] if (score := score_of(metrics, "val")) else None)),
        *((plain(name), number(value)) for name, value in own_metrics(metrics).items()),
    )
    return [f"{name} {text}" for name, text in named if text]


def show_end(console: Console, status: Status, slurm_of: Callable[[Cluster], Slurm] = Slurm.of) -> None:
    """Print one line with the state, exact test score, number of nodes tested, loss and time, then two commands.

    If the run did not finish, the first cause follows on a second line.
    """
    run, finished = status.record.run.id, status.state is State.FINISHED
    facts = [note(status)]
    if score := score_of(status.metrics, "test"):
        metric, value = score
        examples = counted_examples(status.metrics)
        facts.append(f"{metric.label} {metric.text(value)}{f' on {examples}' if examples else ''}")
    if "loss" in status.metrics:
        facts.append(f"loss {number(status.metrics['loss'])}")
    if status.ended is not None and (ran := status.ran(status.ended)) is not None:
        facts.append(f"in {duration(ran)}")
    verdict = (status.state.value, "bold green" if finished else "bold red")
    console.print(Text.assemble(verdict, " ", ", ".join(filter(None, facts))), soft_wrap=True)
    for attempt in status.record.run.attempts():
        if is_folder(attempt.profile):
            where = f"traces of all ranks, for https://ui.perfetto.dev: {plain(str(attempt.profile))}"
            console.print(Text(where), soft_wrap=True)
    if finished:
        show_next(console, f"clusterctl status {run}", f"clusterctl logs {run}")
    else:
        console.print(Text(plain(str(diagnose_status(status, slurm_of).headline))), soft_wrap=True)
        show_next(console, f"clusterctl why {run}", f"clusterctl logs {run} --tail 40")


def show_next(console: Console, *commands: str) -> None:
    """Print the next commands to type, one per line."""
    for position, command in enumerate(commands):
        console.print(
            Text.assemble(("      " if position else "next: ", "dim"), plain(suggested(command))), soft_wrap=True
        )

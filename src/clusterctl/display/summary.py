"""How a run ended, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.diagnosis.diagnose import diagnose_status
from clusterctl.display.plain import duration, plain
from clusterctl.display.runs_table import note
from clusterctl.runs.stages import Stage
from clusterctl.runs.vocabulary import counted_examples, number, score_of
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from clusterctl.observe.stage import Status
    from clusterctl.spec import Cluster


def show_end(console: Console, status: Status, slurm_of: Callable[[Cluster], Slurm] = Slurm.of) -> None:
    """One line - the stage, the exact accuracy with the nodes it counts, the loss, the time - and two commands.

    Where it did not finish, the first cause in a second line.
    """
    run, finished = status.record.run.id, status.stage is Stage.FINISHED
    stage = (status.stage.value, "bold green" if finished else "bold red")
    console.print(Text.assemble(stage, " ", ", ".join(_facts(status))), soft_wrap=True)
    for attempt in status.record.run.attempts():
        if attempt.profile.is_dir():
            told = f"trace of every rank, for https://ui.perfetto.dev: {plain(str(attempt.profile))}"
            console.print(Text(told), soft_wrap=True)
    if finished:
        show_next(console, f"clusterctl status {run}", f"clusterctl logs {run}")
    else:
        console.print(Text(plain(str(diagnose_status(status, slurm_of).headline))), soft_wrap=True)
        show_next(console, f"clusterctl why {run}", f"clusterctl logs {run} --tail 40")


def show_next(console: Console, *commands: str) -> None:
    """The commands that make sense now, one a line, ready to be copied."""
    for position, command in enumerate(commands):
        console.print(Text.assemble(("      " if position else "next: ", "dim"), command), soft_wrap=True)


def _facts(status: Status) -> list[str]:
    metrics, facts = status.metrics, [note(status)]
    if score := score_of(metrics, "test"):
        metric, value = score
        count = f" on {counted_examples(metrics)}" if counted_examples(metrics) else ""
        facts.append(f"{metric.label} {metric.text(value)}{count}")
    if "loss" in metrics:
        facts.append(f"loss {number(metrics['loss'])}")
    if status.started is not None and status.ended is not None:
        facts.append(f"in {duration(status.ended - status.started)}")
    return [fact for fact in facts if fact]

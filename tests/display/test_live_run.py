"""Following one run, on a terminal and in a file."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from support.recorded import claim

from clusterctl.launcher.display.live_run import show
from clusterctl.launcher.observe.follow import Sources
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.record.files import Lines, read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import CommandTrain, Job, to_record

Consoles = Callable[..., tuple[Console, StringIO]]


@pytest.fixture
def run(fabricate: Callable[..., RunDir]) -> RunDir:
    host = {"job_id": "12", "start": 100}
    return fabricate(files={"submission.json": {"job_id": "12"}, "attempts/0/host.json": host})


def playing(*scenes: Callable[[], Any]) -> Sources:
    """Sources that play one scene per look, a second apart; Slurm reports the job as running."""
    rest, times = iter(scenes), itertools.count(0.0, 1.0)
    line = "\x1f".join(["12", "RUNNING", *["0"] * 6, ""])
    slurm = Slurm(str, {}, lambda argv, environment: subprocess.CompletedProcess(argv, 0, line, ""))
    return Sources(lambda _: slurm, lambda: next(times), lambda _: next(rest)())


def training(run: RunDir, *, from_epoch: int, to_epoch: int) -> None:
    metrics = Lines(run.attempt(0).metrics)
    for epoch in range(from_epoch, to_epoch + 1):
        step = {"step": epoch * 10, "steps": 30, "epoch": epoch, "epochs": 3}
        metrics.append({**step, "loss": 1 / epoch})
        metrics.append({"epoch": epoch, "val_accuracy": epoch / 4})


def finish(run: RunDir) -> None:
    Lines(run.attempt(0).metrics).append({"test_accuracy": 0.875, "test_nodes": 8})
    write_json(run.finished_json, {"attempt": 0, "time": 130})


def test_in_a_file_every_state_and_every_epoch_has_its_line(run: RunDir, console: Consoles) -> None:
    events = Lines(run.attempt(0).events(0))
    sources = playing(
        lambda: events.append({"event": "stage", "stage": "training"}),
        lambda: training(run, from_epoch=1, to_epoch=2),  # two epochs between two looks
        lambda: events.append({"event": "stage", "stage": "evaluating"}),
        lambda: events.append({"event": "stage", "stage": "training"}),
        lambda: training(run, from_epoch=3, to_epoch=3),
        lambda: finish(run),
    )
    out, file = console()
    assert show(run, out, sources) is State.FINISHED
    lines = file.getvalue().splitlines()
    assert lines[:6] == [
        "starting",
        "training",
        "epoch 1/3  loss 1.0000  val 0.2500",
        "evaluating",
        "epoch 2/3  loss 0.5000  val 0.5000",
        "epoch 3/3  loss 0.3333  val 0.7500",
    ]
    assert lines[6] == "finished test accuracy 0.8750 on 8 nodes, loss 0.3333, in 30s"
    assert lines[7].startswith("next: clusterctl status ")


def test_a_program_without_epochs_shows_its_own_metrics_and_steps(run: RunDir, console: Consoles) -> None:
    metrics = Lines(run.attempt(0).metrics)

    def log(*steps: int) -> None:
        for step in steps:
            metrics.append({"time": 100.0 + step, "step": step, "acc": step / 40, "mse": 1 / step, "\x1b[2Jodd": 1})

    out, file = console()
    show(run, out, playing(lambda: log(*range(1, 13)), lambda: log(*range(13, 25)), lambda: finish(run)))
    assert [line for line in file.getvalue().splitlines() if line.startswith("step")] == [
        "step 1  odd 1.0000  acc 0.0250  mse 1.0000",
        "step 11  odd 1.0000  acc 0.2750  mse 0.0909",
        "step 21  odd 1.0000  acc 0.5250  mse 0.0476",
        "step 24  odd 1.0000  acc 0.6000  mse 0.0417",
    ]


def own_program(run: RunDir) -> None:
    record = read_json(run.run_json)
    record["job"] = to_record(Job(name="own", workload="command", argv=("./a",), train=CommandTrain()))
    write_json(run.run_json, record)


def write_log(run: RunDir, text: str, rank: int = 0, stream: str = "out", attempt: int = 0) -> None:
    path = run.attempt(attempt).log(rank, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        log.write(text)


@pytest.mark.parametrize("at_terminal", [False, True])
def test_output_of_rank_0_is_streamed(run: RunDir, console: Consoles, at_terminal: bool) -> None:
    own_program(run)
    Lines(run.attempt(0).events(0)).append({"event": "stage", "stage": "training"})
    (run.attempt(0).path / "host.log").write_text("from the batch script\n")
    out, file = console(width=100, force_terminal=at_terminal, no_color=True)
    sources = playing(
        lambda: write_log(run, "loading [1/2]\n\x1b[2Jhalf a "),
        lambda: write_log(run, "not shown\n", rank=1),
        lambda: (write_log(run, "line\n"), write_log(run, "a warning\n", stream="err")),
        lambda: (write_log(run, "the end, without a newline"), finish(run)),
    )
    assert show(run, out, sources) is State.FINISHED
    shown = file.getvalue()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rpartition("\r")[2] for line in shown.split("\n")]
    expected = ["loading [1/2]", "half a line", "a warning", "the end, without a newline"]
    assert [line for line in lines if line in expected] == expected
    assert "\x1b[2J" not in shown.replace("\x1b[2K", "")
    assert "not shown" not in shown
    assert "batch script" not in shown


def test_the_newest_frame_of_a_progress_bar_is_shown_below(run: RunDir, console: Consoles) -> None:
    own_program(run)
    write_log(run, "", stream="err")
    out, file = console(width=40, height=10, force_terminal=True, no_color=True)
    sources = playing(
        lambda: write_log(run, "\r0%|     | 0/9", stream="err"),
        lambda: None,
        lambda: write_log(run, "\r55%|##   | 5/9 and more text than fits", stream="err"),
        lambda: None,
        lambda: (write_log(run, "\r100%|#####| 9/9\n", stream="err"), finish(run)),
    )
    assert show(run, out, sources) is State.FINISHED
    shown = file.getvalue()
    assert "\n0%|     | 0/9\r" in shown
    assert "\n55%|##   | 5/9 and more text than fits\r" in shown
    assert shown.count("100%|#####| 9/9") == 1


def test_after_a_resume_only_the_new_attempts_are_shown(run: RunDir, console: Consoles) -> None:
    own_program(run)
    write_json(run.attempt(0).host_json, {"job_id": "11", "start": 100, "end": 120})
    write_json(run.submission_json, {"job_id": "12", "time": 125})
    write_log(run, "of the first\n")
    sources = playing(
        lambda: write_log(run, "of the second, torn", attempt=1),
        lambda: write_log(run, "of the third\n", attempt=2),
        lambda: write_json(run.finished_json, {"attempt": 2, "time": 130}),
    )
    out, file = console()
    show(run, out, sources)
    assert [line for line in file.getvalue().splitlines() if line.startswith("of the")] == [
        "of the second, torn",
        "of the third",
    ]


def test_a_second_attempt_shows_its_states_again_each_once(fabricate: Callable[..., RunDir], console: Consoles) -> None:
    run = fabricate(files={"submission.json": {"job_id": "12"}})
    sources = playing(
        lambda: run.attempt(0).path.mkdir(parents=True),
        lambda: write_json(run.attempt(0).host_json, {"job_id": "12", "start": 100}),
        lambda: Lines(run.attempt(0).events(0)).append({"event": "stage", "stage": "training"}),
        lambda: claim(run.attempt(1)),
        lambda: Lines(run.attempt(1).events(0)).append({"event": "stage", "stage": "training"}),
        lambda: write_json(run.finished_json, {"attempt": 1, "time": 130}),
    )
    out, file = console()
    show(run, out, sources)
    assert file.getvalue().splitlines()[:4] == ["starting", "training", "starting", "training"]


def test_on_a_terminal_a_bar_shows_state_epoch_loss_and_accuracy(run: RunDir, console: Consoles) -> None:
    sources = playing(lambda: training(run, from_epoch=1, to_epoch=2), lambda: finish(run))
    out, file = console(width=100, force_terminal=True, no_color=True)
    assert show(run, out, sources) is State.FINISHED
    shown = file.getvalue()
    assert "starting" in shown
    assert "epoch 2/3  loss 0.5000  val 0.5000" in shown
    assert "test accuracy 0.8750 on 8 nodes, loss 0.5000, in 30s" in shown.splitlines()[-3]


def test_an_interrupt_detaches_and_leaves_the_run_alone(run: RunDir, console: Consoles) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    out, file = console()
    with pytest.raises(KeyboardInterrupt):
        show(run, out, playing(interrupt))
    assert file.getvalue().splitlines()[-3:] == [
        "detached; the run continues",
        f"next: clusterctl logs -f {run.id}",
        f"      clusterctl status {run.id}",
    ]
    assert not run.cancel_json.exists()

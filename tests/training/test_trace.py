"""Tracing steps of the loop on one rank; several ranks are tested in tests/end_to_end/test_profile.py."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.checkpoint import fingerprint
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objective import Accuracy
from clusterctl.engine.training.trace import StepTrace
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import LoopTrain
from clusterctl.shared.spec.records import InvalidRecord, from_record

PARTS = ["wait for batch", "forward", "backward", "all-reduce", "optimizer"]


class Squares:
    """Learns y = 2 x on ten numbers, two a step."""

    unit, unit_of_seeds, classes, own_training = "nodes", "nodes", 2, None

    def __init__(self, seeds: int = 10) -> None:
        torch.manual_seed(0)
        self.seeds, self.model = torch.arange(seeds), torch.nn.Linear(1, 1)

    def prepare(self, batch: Batch) -> Tensor:
        return batch.seeds[:, None] / 10

    def loss(self, batch: Batch, prepared: Tensor) -> Tensor:
        return ((self.model(prepared) - 2 * prepared).square().squeeze(1) * batch.weights).sum() / batch.total

    def evaluate(self, splits: Any) -> dict[str, Accuracy]:
        return {split: Accuracy(3, 4) for split in splits}


@pytest.fixture
def task(lone_task: Task, tmp_path: Path) -> Task:
    return replace(lone_task, attempt=RunDir(tmp_path / "run").attempt(0))


def train(**settings: Any) -> LoopTrain:
    return LoopTrain(**{"epochs": 3, "batch_size": 2, "evaluate_every": 1, **settings})


def trace_in(folder: Path) -> list[dict[str, Any]]:
    """The events that have a duration, in order of their start."""
    with gzip.open(folder / "rank_00000.json.gz") as file:
        events = json.load(file)["traceEvents"]
    return sorted((event for event in events if event["ph"] == "X"), key=lambda event: float(event["ts"]))


def steps_of(events: list[dict[str, Any]]) -> list[int]:
    return [int(event["name"].partition("#")[2]) for event in events if event["name"].startswith("ProfilerStep#")]


def within(outer: dict[str, Any], events: list[dict[str, Any]], category: str) -> list[str]:
    begin, end = outer["ts"], outer["ts"] + outer["dur"]
    return [
        event["name"]
        for event in events
        if event is not outer
        and event["cat"] == category
        and event["tid"] == outer["tid"]
        and begin <= event["ts"] <= event["ts"] + event["dur"] <= end + 0.01
    ]


def test_traced_steps_hold_the_parts_of_the_loop_and_their_operators(task: Task, tmp_path: Path) -> None:
    fit(Squares(), train(profile=(4, 7)), task)  # five steps an epoch
    events = trace_in(tmp_path / "run/attempts/0/profile")
    assert steps_of(events) == [4, 5, 6, 7]
    for step in (event for event in events if event["name"].startswith("ProfilerStep#")):
        assert within(step, events, "user_annotation") == PARTS
        assert "aten::linear" in within(step, events, "cpu_op")
    for name, operator in (("forward", "aten::linear"), ("backward", "aten::mul"), ("all-reduce", "aten::clone")):
        region = next(event for event in events if event["name"] == name)
        assert operator in within(region, events, "cpu_op")
        assert "c10d::allreduce_" not in within(region, events, "cpu_op"), "a lone rank has nothing to add up"
    sampled = [event for event in events if event["name"] == "sample"]
    assert sampled or torch.__version__ < "2.8"  # older torch traces only the main thread
    assert {event["tid"] for event in sampled}.isdisjoint({event["tid"] for event in events if event["name"] in PARTS})
    table = (tmp_path / "run/attempts/0/profile/rank_00000.txt").read_text()
    assert "aten::" in table
    assert "wait for batch" in table


def test_tracing_does_not_change_the_results(task: Task, tmp_path: Path) -> None:
    def losses_and_weights(**settings: Any) -> tuple[list[float], list[float]]:
        attempt = RunDir(tmp_path / "run").attempt(0)
        before = sum("loss" in record for record in read_lines(attempt.metrics))
        objective = Squares()
        fit(objective, train(**settings), task)
        losses = [record["loss"] for record in read_lines(attempt.metrics) if "loss" in record]
        return losses[before:], [value.item() for value in objective.model.parameters()]

    assert losses_and_weights() == losses_and_weights(profile=(2, 9))
    assert (tmp_path / "run/attempts/0/profile/rank_00000.json.gz").exists()


def test_without_a_window_nothing_is_recorded_wrapped_or_written(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.engine.training.trace.record_function", None)
    fit(Squares(), train(), task)
    assert not (tmp_path / "run/attempts/0/profile").exists()
    assert task.clock.listener is None
    prepare = Squares().prepare
    assert StepTrace(task, (), done=0, left=15).named("sample", prepare) is prepare


@pytest.mark.parametrize(
    ("window", "epochs", "expected"),
    [
        ((10, 20), 1, [3, 4, 5]),  # the second half of a training that ends before the window
        ((10, 20), 2, [10]),
        ((10, 20), 3, [10, 11, 12, 13, 14, 15]),
        ((1, 2), 1, [1, 2]),
        ((15, 15), 3, [15]),
    ],
)
def test_a_training_shorter_than_the_window_is_still_traced(
    task: Task, tmp_path: Path, window: tuple[int, int], epochs: int, expected: list[int]
) -> None:
    fit(Squares(), train(epochs=epochs, profile=window), task)
    assert steps_of(trace_in(tmp_path / "run/attempts/0/profile")) == expected


def test_ending_before_the_window_is_reported(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(Squares(), train(epochs=9, patience=1, profile=(12, 20)), task)  # no score is better than the first
    assert "no trace: the training ended before step 12" in capsys.readouterr().out
    assert not (tmp_path / "run/attempts/0/profile").exists()


def test_rank_0_reports_where_the_trace_is_and_how_to_open_it(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(Squares(), train(profile=(4, 7)), task)
    output = capsys.readouterr().out
    assert f"trace of steps 4 to 7, a file a rank: {tmp_path}/run/attempts/0/profile\n" in output
    assert "https://ui.perfetto.dev" in output


def test_exiting_inside_the_window_keeps_the_exit_code_and_writes_no_trace(tmp_path: Path) -> None:
    """Otherwise Python crashes on exit: torch 2.13 cannot be unloaded while it profiles."""
    program = """
from types import SimpleNamespace
import torch
from clusterctl.engine.task.step_clock import StepClock
from clusterctl.engine.training.loop import prefetched
from clusterctl.engine.training.trace import StepTrace

trace = StepTrace(SimpleNamespace(device=torch.device("cpu"), clock=StepClock()), (2, 99), 0, 99)
for number, _ in trace.steps(prefetched(range(99), trace.named("sample", lambda _: torch.ones(99).sum())), 99):
    torch.ones(99, requires_grad=True).sum().backward()
    if number == 30:
        raise SystemExit(143)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_cannot_be_written_does_not_stop_training(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/attempts/0/profile").touch()
    assert fit(Squares(), train(profile=(4, 7)), task) == (3, 4)
    assert "warning: the trace could not be written" in capsys.readouterr().err


def test_the_window_counts_the_attempts_steps_and_labels_use_the_runs_numbers(task: Task, tmp_path: Path) -> None:
    trace = StepTrace(task, (2, 3), done=100, left=4)
    assert list(trace.steps(iter("abcd"), 4)) == list("abcd")
    trace.close()
    assert steps_of(trace_in(tmp_path / "run/attempts/0/profile")) == [102, 103]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run/attempts/0/profile").iterdir()} == {0o600}


def test_a_run_may_be_resumed_with_another_window_or_none() -> None:
    assert fingerprint(train(profile=(4, 7))) == fingerprint(train())


def test_an_older_torch_traces_the_main_thread_alone(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older:
        """As in torch 2.6, which cannot trace other threads."""

        def __new__(cls) -> Any:
            return _ExperimentalConfig()

    monkeypatch.setattr("clusterctl.engine.training.trace._ExperimentalConfig", Older)
    fit(Squares(), train(profile=(4, 7)), task)
    names = {event["name"] for event in trace_in(tmp_path / "run/attempts/0/profile")}
    assert names >= set(PARTS)
    assert "sample" not in names


def test_writing_a_trace_counts_as_checkpointing_for_the_watchdog(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = []

    def compress(export: object, path: Path) -> None:
        phases.append(task.events.heart.beat_at(0.0).phase)

    monkeypatch.setattr("clusterctl.engine.training.trace._compress", compress)
    fit(Squares(), train(profile=(4, 7), evaluate_every=0), task)
    assert phases == ["checkpointing"]


def test_without_a_run_directory_the_trace_is_in_the_current_folder(
    lone_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fit(Squares(), train(profile=(4, 7)), lone_task)
    assert steps_of(trace_in(tmp_path / "profile")) == [4, 5, 6, 7]


@pytest.mark.parametrize("window", [[5], [5, 4], [0, 4], [1, 2, 3], [1, 2**31]])
def test_a_window_has_a_first_and_a_last_step(window: list[int]) -> None:
    with pytest.raises(InvalidRecord, match=r"profile: must be \[first, last\]"):
        from_record(LoopTrain, {"profile": window})

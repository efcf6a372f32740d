"""When the loop saves, what it resumes from, and what happens when saving fails. One rank, a toy objective."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recorded import claim, recorded
from torch import Tensor, nn

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objective import Accuracy
from clusterctl.shared.node.events import Events
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.record.files import read_json, read_lines, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import MetricsWriter
from clusterctl.shared.spec import Checkpoint, LoopTrain

TRAIN = LoopTrain(epochs=4, batch_size=5)  # two steps an epoch


@dataclass
class Line:
    """Learns y = 2 x; calls `then` with the number of the step that is about to run."""

    unit, unit_of_seeds, classes, own_training = "nodes", "nodes", 2, None
    then: Callable[[int], None] = lambda step: None
    seeds: Tensor = field(default_factory=lambda: torch.arange(10))
    width: int = 1

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, self.width)
        self.steps = 0

    def prepare(self, batch: Batch) -> Tensor:
        return batch.seeds[:, None] / 10

    def loss(self, batch: Batch, prepared: Tensor) -> Tensor:
        self.steps += 1
        self.then(self.steps)
        return ((self.model(prepared) - 2 * prepared).square().mean(1) * batch.weights).sum() / batch.total

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        return {split: Accuracy(3, 4) for split in splits}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


@pytest.fixture
def begin(lone_task: Task, run: RunDir) -> Callable[..., Task]:
    """Make the task of an attempt."""

    def begin(number: int = 0, *, restarts: bool = True, every: int = 0, keep: int = 2) -> Task:
        attempt = claim(run.attempt(number))
        return replace(
            lone_task,
            attempt=attempt,
            stop=StopRequest(),
            restarts=restarts,
            checkpoint=Checkpoint(every=every, keep=keep),
            events=Events(attempt, 0),
            metrics=MetricsWriter(attempt, 0),
        )

    return begin


def warn_at(task: Task, step: int) -> Callable[[int], None]:
    def then(now: int) -> None:
        task.stop.warned = task.stop.warned or now == step

    return then


def interrupt(task: Task, step: int) -> None:
    """Train until the warning at `step` ends the attempt."""
    with pytest.raises(SystemExit) as leaving:
        fit(Line(warn_at(task, step)), TRAIN, task)
    assert leaving.value.code == 75


def events(run: RunDir, attempt: int, name: str) -> list[dict[str, Any]]:
    return [event for event in recorded(run.attempt(attempt), 0) if event["event"] == name]


def first_step(run: RunDir, attempt: int) -> int:
    return next(line["step"] for line in read_lines(run.attempt(attempt).metrics) if "loss" in line)


def saved(run: RunDir) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_a_warned_attempt_saves_and_requeues_and_the_next_one_repeats_its_scores(
    run: RunDir, begin: Callable[..., Task]
) -> None:
    interrupt(begin(0), 3)
    assert saved(run) == ["0-3"]
    request = read_json(run.requeue_json)
    assert (request["attempt"], request["reason"], request["step"], request["progress"]) == (0, "warned", 3, True)
    fit(Line(), TRAIN, begin(1))
    lines = list(read_lines(run.attempt(1).metrics))
    assert (lines[0]["step"], lines[0]["val_accuracy"], lines[0]["epoch"]) == (3, 0.75, 2)
    assert [line["step"] for line in lines if "loss" in line] == [4, 5, 6, 7, 8]
    assert torch.load(run.weights).keys() == {"weight", "bias"}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FILE = "rank_00000.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit-flipped": (lambda folder: flip(folder / FILE), f"{FILE} is damaged"),
    "truncated": (
        lambda folder: (folder / FILE).write_bytes(b"x"),
        f"{FILE} is damaged",
    ),
    "torn": (lambda folder: (folder / "manifest.json").unlink(), "incomplete"),
    "missing a file": (lambda folder: (folder / FILE).unlink(), "No such file"),
    "of another model": (
        lambda folder: write_json(
            folder / "manifest.json",
            {**read_json(folder / "manifest.json"), "fingerprint": {"train": "LoopTrain", "seed": 7}},
        ),
        "seed = 7, not 0",
    ),
    "foreign": (lambda folder: (folder / "manifest.json").write_text('{"schema_version": 1}'), "incomplete"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_is_used(
    run: RunDir, begin: Callable[..., Task], capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    interrupt(begin(0), 3)
    interrupt(begin(1), 2)
    assert saved(run) == ["0-3", "1-5"]
    corrupt, why = DAMAGES[damage]
    corrupt(run.checkpoints / "1-5")
    capsys.readouterr()
    fit(Line(), TRAIN, begin(2))
    assert first_step(run, 2) == 4
    (refused,) = events(run, 2, "checkpoint-refused")
    assert refused["name"] == "1-5"
    assert why in refused["why"]
    assert "checkpoint 1-5 is passed over: " in capsys.readouterr().out
    assert read_json(run.attempt(2).origin_json)["checkpoint"] == "0-3"


def test_without_a_usable_checkpoint_training_starts_over(run: RunDir, begin: Callable[..., Task]) -> None:
    interrupt(begin(0), 3)
    flip(run.checkpoints / "0-3" / FILE)
    fit(Line(), TRAIN, begin(1))
    assert first_step(run, 1) == 1
    assert read_json(run.attempt(1).origin_json)["checkpoint"] is None


def test_a_training_that_is_interrupted_leaves_no_thread(run: RunDir, begin: Callable[..., Task]) -> None:
    """Else the garbage collector ends it at any time, and waits for it, perhaps with a lock that it needs."""
    task = begin(0)
    with pytest.raises(SystemExit) as interrupted:
        fit(Line(warn_at(task, 3)), TRAIN, task)
    assert interrupted.tb  # it keeps what `fit` was doing
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")] == []


def test_a_checkpoint_that_does_not_fit_the_model_is_a_user_error(run: RunDir, begin: Callable[..., Task]) -> None:
    """The settings are the same, so the data must have changed."""
    from clusterctl.shared.errors import TaskError

    interrupt(begin(0), 3)
    with pytest.raises(TaskError, match=r"checkpoint 0-3 does not fit: its model.values is 2 of float32, not 6"):
        fit(Line(width=3), TRAIN, begin(1))


def test_a_warned_run_without_restarts_saves_and_continues(run: RunDir, begin: Callable[..., Task]) -> None:
    task = begin(0, restarts=False)
    fit(Line(warn_at(task, 3)), TRAIN, task)
    assert saved(run) == ["0-3"]
    assert not run.requeue_json.exists()
    assert [line["step"] for line in read_lines(run.attempt(0).metrics) if "loss" in line] == list(range(1, 9))


@pytest.mark.parametrize(("cancelled", "left"), [(False, ["0-2"]), (True, [])])
def test_sigterm_saves_a_checkpoint_unless_the_run_was_cancelled(
    run: RunDir, begin: Callable[..., Task], cancelled: bool, left: list[str]
) -> None:
    task = begin(0)

    def terminate(step: int) -> None:
        task.stop.terminated = step == 2

    if cancelled:
        write_json(run.cancel_json, {})
    with pytest.raises(SystemExit) as leaving:
        fit(Line(terminate), TRAIN, task)
    assert leaving.value.code == 143
    assert (saved(run) if run.checkpoints.exists() else []) == left


def test_a_warning_during_evaluation_is_handled_afterwards(run: RunDir, begin: Callable[..., Task]) -> None:
    task = begin(0)
    objective = Line()
    evaluate = objective.evaluate

    def warned(splits: Sequence[str]) -> dict[str, Accuracy]:
        task.stop.warned = True
        return evaluate(splits)

    objective.evaluate = warned  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        fit(objective, TRAIN, task)
    assert objective.steps == 2
    assert saved(run) == ["0-2"]
    fit(Line(), TRAIN, begin(1))
    assert first_step(run, 1) == 3
    assert [e["epoch"] for e in events(run, 1, "stage") if e["stage"] == "evaluating"] == [2, 3, 4]


def test_an_attempt_without_a_step_makes_no_progress(run: RunDir, begin: Callable[..., Task]) -> None:
    interrupt(begin(0), 2)
    task = begin(1)
    objective = Line()
    task.stop.warned = True
    with pytest.raises(SystemExit):
        fit(objective, TRAIN, task)
    assert read_json(run.requeue_json)["progress"] is (objective.steps > 0)
    assert objective.steps <= 1


def test_due_checkpoints_are_saved_in_the_background_and_the_newest_kept(
    run: RunDir, begin: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusterctl.engine.training.checkpoint import Checkpoints

    monkeypatch.setattr(Checkpoints, "due", property(lambda self: True))
    fit(Line(), TRAIN, begin(0, every=1, keep=3))
    assert saved(run) == ["0-6", "0-7", "0-8"]
    assert [event["name"] for event in events(run, 0, "checkpoint")] == [f"0-{step}" for step in range(1, 9)]
    assert [line["step"] for line in read_lines(run.attempt(0).metrics) if "checkpoint_seconds" in line] == [
        *range(1, 9)
    ]


def test_a_checkpoint_that_cannot_be_written_is_reported_and_training_continues(
    run: RunDir, begin: Callable[..., Task], capsys: pytest.CaptureFixture[str]
) -> None:
    task = begin(0, restarts=False)
    run.checkpoints.write_text("in the way")
    fit(Line(warn_at(task, 3)), TRAIN, task)
    (failed,) = events(run, 0, "checkpoint-failed")
    assert failed["step"] == 3
    assert "checkpoint of step 3 failed: " in capsys.readouterr().err
    assert [line["step"] for line in read_lines(run.attempt(0).metrics) if "loss" in line][-1] == 8


def test_a_replaced_attempt_publishes_nothing(run: RunDir, begin: Callable[..., Task]) -> None:
    old, new = begin(0), begin(1)
    fit(Line(warn_at(old, 3)), TRAIN, replace(old, restarts=False))
    assert saved(run) == []
    assert not run.weights.exists()
    assert "attempt 1 has taken over" in events(run, 0, "checkpoint-failed")[0]["why"]
    fit(Line(), TRAIN, new)
    assert first_step(run, 1) == 1
    shutil.rmtree(run.checkpoints)

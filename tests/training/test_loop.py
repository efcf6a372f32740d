"""The loop on a toy objective, one rank. Several ranks are tested in test_rank_counts.py."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recorded import recorded
from torch import Tensor, nn

import clusterctl
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objective import Accuracy, Score
from clusterctl.engine.training.objectives.graph import GraphClassification
from clusterctl.engine.training.objectives.link import Auc, LinkPrediction
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.progress import Fold, TrainingLog
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import KNOWN
from clusterctl.shared.spec import Batches, LoopTrain, TrainingSet


@dataclass
class Doubling:
    """Learns y = 2 x on the seeds' numbers, and records its calls."""

    unit, unit_of_seeds, classes, own_training = "nodes", "nodes", 2, None
    seeds: Tensor = field(default_factory=lambda: torch.arange(10))
    model: nn.Module = field(default_factory=lambda: nn.Linear(1, 1, bias=False))
    calls: list[tuple[str, bool]] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)  # correct out of five, in the first evaluations
    weights: list[float] = field(default_factory=list)  # at each evaluation

    def prepare(self, batch: Batch) -> Tensor:
        return batch.seeds[:, None] / 10

    def loss(self, batch: Batch, prepared: Tensor) -> Tensor:
        self.calls.append(("loss", self.model.training))
        return ((self.model(prepared) - 2 * prepared).square().squeeze(1) * batch.weights).sum() / batch.total

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        self.calls.append(("+".join(splits), self.model.training))
        self.weights.append(float(next(self.model.parameters()).detach()))
        if len(self.weights) <= len(self.shares) and list(splits) == ["val"]:
            return {"val": Accuracy(self.shares[len(self.weights) - 1], 5)}
        return {split: Accuracy(3, 4) for split in splits}


@pytest.mark.parametrize("tf32", [False, True])
def test_a_cpu_says_that_it_has_no_tf32(tf32: bool, lone_task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    fit(Doubling(), LoopTrain(batch_size=5, tf32=tf32), lone_task)
    assert ("train.tf32 changes nothing: this training runs on CPUs\n" in capsys.readouterr().out) == tf32


def written(folder: Path, what: str) -> list[dict[str, Any]]:
    attempt = RunDir(folder / "run").attempt(0)
    return list(read_lines(attempt.metrics) if what == "metrics" else recorded(attempt, 0))


def test_the_model_is_in_train_and_eval_mode_and_tested_once(lone_task: Task) -> None:
    objective = Doubling()
    score = fit(objective, LoopTrain(epochs=3, batch_size=6, evaluate_every=1), lone_task)
    epoch = [("loss", True), ("loss", True)]
    assert objective.calls == [*epoch, ("val", False), *epoch, ("val", False), *epoch, ("val+test", False)]
    assert score == (3, 4)


def test_evaluate_every_never_skips_the_last_evaluation(lone_task: Task) -> None:
    for every, expected in ((2, ["val", "val+test"]), (0, ["val+test"])):
        objective = Doubling()
        fit(objective, LoopTrain(epochs=3, batch_size=10, evaluate_every=every), lone_task)
        assert [name for name, _ in objective.calls if name != "loss"] == expected


def test_every_step_and_every_score_is_in_the_metrics(lone_task: Task, tmp_path: Path) -> None:
    fit(Doubling(), LoopTrain(epochs=2, batch_size=4), lone_task)
    records = written(tmp_path, "metrics")
    losses = [record for record in records if "loss" in record]
    assert [(record["step"], record["epoch"]) for record in losses] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
    assert {(record["steps"], record["epochs"]) for record in records} == {(6, 2)}
    scores = [record for record in records if "loss" not in record]
    assert [record["val_accuracy"] for record in scores] == [0.75, 0.75]
    assert (scores[-1]["test_accuracy"], scores[-1]["test_nodes"]) == (0.75, 4)
    assert "test_accuracy" not in scores[0]
    assert all(record["evaluation_seconds"] > 0 for record in scores)
    for record in losses:
        assert record["seconds"] > 0
        parts = sum(record[part] for part in ("sampling", "gathering", "compute", "communication"))
        assert record["seconds"] == pytest.approx(parts, abs=1e-5)


def test_the_model_learns_and_rank_0_logs_every_epoch(lone_task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    objective = Doubling()
    fit(objective, LoopTrain(epochs=60, batch_size=4, lr=0.05), lone_task)
    (weight,) = objective.model.parameters()
    assert abs(float(weight.detach()) - 2) < 0.05
    sizes, *lines = capsys.readouterr().out.splitlines()
    assert sizes == "global batch 4; 3 steps per epoch of 10 nodes"
    assert len(lines) == 60
    assert lines[0].startswith("epoch 1/60  loss ")
    assert "val accuracy 0.7500  test accuracy 0.7500" in lines[-1]


def test_the_log_warns_of_a_batch_larger_than_the_training_set(
    lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = Batches(LoopTrain(batch_size=4), 8, TrainingSet(10, "nodes"))
    TrainingLog(lone_task, LoopTrain(), 1, Doubling(), None, {}).batches(sizes)
    captured = capsys.readouterr()
    assert captured.out == "global batch 32 (8 ranks x 4); 1 step per epoch of 10 nodes\n"
    assert captured.err.startswith("warning: the global batch of 32 (8 ranks x 4) exceeds the training set of 10 nodes")


def test_sigterm_on_one_rank_ends_all_ranks_with_143(lone_task: Task, tmp_path: Path) -> None:
    lone_task.stop.terminated = True
    with pytest.raises(SystemExit) as leaving:
        fit(Doubling(), LoopTrain(epochs=3, batch_size=4), lone_task)
    assert leaving.value.code == 143
    assert [record["step"] for record in written(tmp_path, "metrics")] == [1]


def test_a_warning_is_recorded_once_and_training_continues(lone_task: Task, tmp_path: Path) -> None:
    lone_task.stop.warned = True
    fit(Doubling(), LoopTrain(epochs=3, batch_size=4), lone_task)
    assert [event.get("epoch") for event in written(tmp_path, "events") if event.get("warned")] == [1]


def test_an_empty_training_split_is_a_user_error(lone_task: Task) -> None:
    with pytest.raises(TaskError, match="training split is empty"):
        fit(Doubling(seeds=torch.arange(0)), LoopTrain(), lone_task)


def test_patience_stops_early_and_tests_the_best_weights_once(lone_task: Task, tmp_path: Path) -> None:
    objective = Doubling(shares=[1, 3, 3, 2, 4])
    fit(objective, LoopTrain(epochs=9, batch_size=10, patience=2), lone_task)
    names = [name for name, _ in objective.calls if name != "loss"]
    assert names == ["val", "val", "val", "val", "val+test"]  # the third and fourth are no better than the second
    assert objective.weights[-1] == objective.weights[1] != objective.weights[3]
    assert written(tmp_path, "metrics")[-1]["test_accuracy"] == 0.75


def test_patience_as_long_as_the_training_uses_every_epoch(lone_task: Task) -> None:
    objective = Doubling(shares=[1, 3, 3, 2, 2])
    fit(objective, LoopTrain(epochs=5, batch_size=10, patience=5), lone_task)
    assert [name for name, _ in objective.calls if name != "loss"] == [*["val"] * 5, "val+test"]
    assert objective.weights[-1] == objective.weights[1]


def test_a_fold_is_labelled_and_continues_the_step_count(lone_task: Task, tmp_path: Path) -> None:
    fit(Doubling(), LoopTrain(epochs=2, batch_size=5), lone_task, Fold(2, 3))
    records = written(tmp_path, "metrics")
    assert {(record["fold"], record["folds"], record["steps"]) for record in records} == {(2, 3, 12)}
    assert [record["step"] for record in records if "loss" in record] == [5, 6, 7, 8]
    events = [event for event in written(tmp_path, "events") if event["event"] == "stage"]
    assert {event["fold"] for event in events} == {2}


def test_schedule_warmup_and_clip_norm_reach_the_optimizer(lone_task: Task) -> None:
    def weights(**settings: Any) -> float:
        torch.manual_seed(0)
        objective = Doubling()
        fit(objective, LoopTrain(epochs=2, batch_size=5, evaluate_every=0, **settings), lone_task)
        return objective.weights[-1]

    plain = weights()
    assert weights(schedule="constant", warmup=0.0, clip_norm=0.0) == plain
    others = [weights(schedule="cosine"), weights(warmup=0.5), weights(clip_norm=1e-6)]  # Adam hides a constant scale
    assert len({plain, *others}) == 4


def test_every_metric_of_the_loop_is_in_the_vocabulary(lone_task: Task, tmp_path: Path) -> None:
    lone_task.clock.count(nodes=10, edges=10)
    fit(Doubling(), LoopTrain(epochs=2, batch_size=4), lone_task, Fold(1, 2))
    names = {name for record in written(tmp_path, "metrics") for name in record}
    assert names - {"time"} <= KNOWN.keys()
    assert {"classes", "fold", "loss", "val_accuracy", "test_nodes", "nodes_per_second", "edges_per_second"} <= names


@pytest.mark.parametrize("score", [Accuracy(1, 2), Auc(1, 1, 1)])
@pytest.mark.parametrize("objective", [NodeClassification, GraphClassification, LinkPrediction])
def test_every_score_and_unit_is_in_the_vocabulary(score: Score, objective: Any) -> None:
    names = [f"{split}_{score.name.lower()}" for split in ("val", "test")]
    assert KNOWN.keys() >= {*names, f"test_{objective.unit}"}


def test_every_metric_written_directly_is_in_the_vocabulary() -> None:
    names = set()
    for room in ("training", "workloads", "graph", "task"):
        for path in (Path(clusterctl.__file__).parent / "engine" / room).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "metrics.write" in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("metrics.write"):
                    names |= {keyword.arg for keyword in node.keywords if keyword.arg}
    assert {"step", "checkpoint_seconds", "best_possible_auc"} <= names <= KNOWN.keys()

"""Trainings with other losses, accumulation, a running mean and a schedule by scores, on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.own_nets import targets_of
from torch import Tensor

from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objective import Score
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeClassificationTrain

MakeGraph = Callable[..., Graph]
TRAIN = NodeClassificationTrain(
    model="support.own_nets:Gat", loss="mse", fan_out=(3, 2), batch_size=8, precision="float64", epochs=3
)


@pytest.fixture
def numbers(random_graph: MakeGraph) -> Graph:
    graph = random_graph()
    return replace(graph, y=targets_of(graph.x), num_classes=2)


class Records(list[dict[str, float]]):
    """Instead of a file of metrics."""

    def write(self, **values: float) -> None:
        self.append(values)

    def of(self, name: str) -> list[float]:
        return [record[name] for record in self if name in record]


def trained(graph: Graph, task: Task, **settings: Any) -> tuple[OwnNodeClassification, Score, Records]:
    """The objective, the test score, and the metrics."""
    train, records = replace(TRAIN, **settings), Records()
    own: Any = replace(task, metrics=records)  # type: ignore[arg-type]
    objective = OwnNodeClassification(graph, train, own)
    return objective, fit(objective, train, own), records


def weights(objective: OwnNodeClassification) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in objective.model.parameters()])


def test_accumulated_batches_are_one_larger_batch(numbers: Graph, lone_task: Task) -> None:
    larger, score, at_once = trained(numbers, lone_task, batch_size=16, clip_norm=0.1)
    parts, same, in_parts = trained(numbers, lone_task, accumulate=2, clip_norm=0.1)
    torch.testing.assert_close(weights(parts), weights(larger), rtol=0, atol=1e-9)
    assert in_parts.of("loss") == pytest.approx(at_once.of("loss"), rel=0, abs=1e-9)
    assert len(at_once.of("loss")) == 6
    assert same.value == pytest.approx(score.value, rel=0, abs=1e-9)


def test_the_running_mean_is_measured_and_kept(numbers: Graph, lone_task: Task) -> None:
    plain, score, _ = trained(numbers, lone_task, epochs=2)
    objective, averaged, _ = trained(numbers, lone_task, epochs=2, ema=0.9)
    assert not torch.equal(weights(objective), weights(plain))
    objective.model.eval()
    assert objective.evaluate(("test",))["test"] == averaged != score  # of the weights that were kept


@pytest.mark.parametrize(("direction", "loses"), [("lower", False), ("higher", True)])
def test_patience_keeps_the_best_weights_in_the_direction_of_the_metric(
    numbers: Graph, lone_task: Task, capsys: pytest.CaptureFixture[str], direction: str, loses: bool
) -> None:
    """Errors fall at first: where more is better, the first epoch is the best."""
    settings = {"metric": "support.own_nets:largest_error", "metric_better": direction, "patience": 2, "lr": 0.02}
    _, _, records = trained(numbers, lone_task, epochs=4, **settings)
    values = records.of("val_error_largest_error" if direction == "lower" else "val_score_largest_error")
    assert "val largest_error" in capsys.readouterr().out
    assert values[-1] == (max if loses else min)(values[:-1])
    assert (len(values) < 5) == loses


def test_the_training_split_is_measured_on_demand(
    numbers: Graph, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, records = trained(numbers, lone_task, epochs=1, report_train=True)
    (record,) = (record for record in records if "train_rmse" in record)
    assert record["test_rmse"] > 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert f"train rmse {record['train_rmse']:.4f}  val rmse {record['val_rmse']:.4f}" in line


def test_a_split_that_the_metric_cannot_measure_ends_the_run_before_it_trains(numbers: Graph, lone_task: Task) -> None:
    y = numbers.y.clone()
    y[numbers.test] = torch.nan
    with pytest.raises(TaskError, match="rmse has no value on the test split"):
        trained(replace(numbers, y=y), lone_task)

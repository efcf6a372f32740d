"""On a device that runs behind the host, a step's results are read once the next step is queued."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training import progress
from clusterctl.engine.training.flat import LossReading
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.node.events import Events
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import MetricsWriter
from clusterctl.shared.spec import RedditTrain

MakeGraph = Callable[..., Graph]
TRAIN = RedditTrain(epochs=2, batch_size=8, hidden_channels=4, fan_out=(3, 2), lr=0.01)  # four steps an epoch


@pytest.fixture(params=[0, 1])
def behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setitem(progress.STEPS_BEHIND, "cpu", request.param)
    return int(request.param)


@pytest.fixture
def graph(random_graph: MakeGraph) -> Graph:
    graph = random_graph()
    return replace(graph, x=graph.x.float())


class Stopping(MetricsWriter):
    """Asks the run to stop when a step is recorded."""

    def __init__(self, task: Task, step: int | None) -> None:
        super().__init__(task.attempt, 0)
        self._stop, self._step = task.stop, step

    def write(self, **values: Any) -> None:
        super().write(**values)
        if "loss" in values and values["step"] == self._step:
            self._stop.warned = True


def trained(task: Task, run: RunDir, graph: Graph, stops: list[int]) -> tuple[torch.Tensor, dict[int, float]]:
    """The weights and the loss of every step of a training that is stopped at the given steps and restarted."""
    losses: dict[int, float] = {}
    for number, step in enumerate([*stops, None]):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        own = replace(task, attempt=attempt, stop=StopRequest(), events=Events(attempt, 0), restarts=True)
        own = replace(own, metrics=Stopping(own, step))
        objective = NodeClassification(graph, TRAIN, own)
        try:
            fit(objective, TRAIN, own)
        except SystemExit as leaving:
            assert leaving.code == 75
        losses |= {record["step"]: record["loss"] for record in read_lines(attempt.metrics) if "loss" in record}
    return torch.cat([parameter.detach().flatten() for parameter in objective.model.parameters()]), losses


def test_an_interrupted_training_ends_with_the_same_weights_and_losses(
    behind: int, graph: Graph, lone_task: Task, tmp_path: Path
) -> None:
    undisturbed = trained(lone_task, RunDir(tmp_path / "undisturbed"), graph, [])
    stopped = trained(lone_task, RunDir(tmp_path / "stopped"), graph, [1, 4])  # the last step of an epoch, too
    assert torch.equal(stopped[0], undisturbed[0])
    assert stopped[1] == undisturbed[1]
    assert [*stopped[1]] == [*range(1, 9)]


def test_a_step_is_queued_before_the_previous_loss_is_read(
    behind: int, graph: Graph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    step, read = Learner.train_step, LossReading.read
    monkeypatch.setattr(Learner, "train_step", lambda *given: order.append("queue") or step(*given))
    monkeypatch.setattr(LossReading, "read", lambda reading: order.append("read") or read(reading))
    fit(NodeClassification(graph, TRAIN, lone_task), replace(TRAIN, epochs=1), lone_task)
    late = ["queue", "queue", "read", "queue", "read", "queue", "read", "read"]
    assert order == (late if behind else ["queue", "read"] * 4)

"""Steps captured once and replayed without Python give the same losses and weights as eager steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.pretended_gpu import capture

from clusterctl.engine.graph import sampling
from clusterctl.engine.graph.hashing import Purpose, ReplayedKeys, draws, stream
from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.training.loop import CapturedStep
from clusterctl.engine.training.objectives import node as node_objective
from clusterctl.engine.training.objectives.node import NodeClassification, check_capturable
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import RedditTrain

MakeGraph = Callable[..., Graph]
GPU = torch.device("cuda")
TRAIN = RedditTrain(batch_size=7, fan_out=(3, 2), hidden_channels=4, lr=0.02, weight_decay=0.01, precision="float64")


@pytest.mark.parametrize("changes", [{}, {"model": "gcn", "clip_norm": 0.1}, {"cache_first_aggregation": True}])
def test_replayed_steps_match_eager_steps(
    changes: dict[str, Any], random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, new neighbours and a new learning rate in every step, and a padded last step."""
    monkeypatch.setattr(node_objective, "worth_static", lambda _, *sizes: sampling.worth_static(GPU, *sizes))
    train = replace(TRAIN, **changes)
    results = []
    for captured in (False, True):
        objective = NodeClassification(random_graph(), train, lone_task)
        learner = Learner(objective, train, lone_task)
        step = CapturedStep(learner, lone_task.device, capture) if captured else learner
        losses = []
        lone_task.clock.restart("sampling")
        plan = EpochPlan(objective.seeds, 7, train.seed, 0, 1)
        for batch in [*plan.batches(1), *plan.batches(2)]:
            prepared = None if captured else objective.prepare(batch)
            queued = step.train_step(batch, prepared, 1 / (1 + batch.step), checkpoint_due=False)
            losses.append(queued.reading.read()[0])
            assert queued.lap.read()["edges_per_second"] > 0
        results.append((torch.tensor(losses, dtype=torch.float64), learner.flat.values))
    assert results[0][0].numel() == 10
    for eager, replayed in zip(*results, strict=True):
        torch.testing.assert_close(replayed, eager, rtol=0, atol=1e-8)  # the learning rate is in float32


def test_keys_follow_the_step_passed_to_fill() -> None:
    keys, counters = ReplayedKeys(torch.device("cpu")), torch.arange(5)
    for epoch, step in ((1, 0), (1, 1), (2, 0)):
        keys.fill(epoch, step)
        for hop in (0, 1):
            place = stream(Purpose.SAMPLING, 1, keys.epoch, keys.step, hop)
            assert torch.equal(draws(place, counters), draws(stream(Purpose.SAMPLING, 1, epoch, step, hop), counters))


@pytest.mark.parametrize(
    ("changes", "static", "on_gpu", "why"),
    [
        ({}, True, False, "it trains on a CPU"),
        ({"sampling": "labor"}, True, True, "LABOR"),
        ({"fan_out": (25, -1)}, False, True, r"not known beforehand, with fan_out = \[25, -1\]"),
    ],
)
def test_settings_that_cannot_be_captured_are_refused(
    changes: dict[str, Any], static: bool, on_gpu: bool, why: str
) -> None:
    with pytest.raises(TaskError, match=why):
        check_capturable(replace(TRAIN, **changes), static=static, on_gpu=on_gpu)
    check_capturable(TRAIN, static=True, on_gpu=True)


def test_cuda_graph_on_a_cpu_is_refused(random_graph: MakeGraph, lone_task: Task) -> None:
    with pytest.raises(TaskError, match="it trains on a CPU"):
        NodeClassification(random_graph(), replace(TRAIN, cuda_graph=True), lone_task)

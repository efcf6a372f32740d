"""Models with `forward(x, edge_index)`, unchanged: exact, and the same on any number of ranks."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from support import pyg_models
from torch import nn

from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.own_objective import OwnNodeClassification
from clusterctl.shared.spec import NodeClassificationTrain

MakeGraph = Callable[..., Graph]
TRAIN = NodeClassificationTrain(model="support.pyg_models:Sage", fan_out=(-1, -1), precision="float64", options={"hidden_channels": 8})


def edges_of(graph: Graph):
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    return torch.stack([graph.indices.long(), targets])


def test_thin(random_graph: MakeGraph, lone_task: Task) -> None:
    graph = random_graph()
    objective = OwnNodeClassification(graph, TRAIN, lone_task)
    objective.model.eval()
    with torch.no_grad():
        expected = objective.model(graph.x, edges_of(graph))
    batch = Batch(1, 0, graph.train, torch.ones(graph.train.numel()), graph.train.numel(), graph.train)
    loss = nn.functional.cross_entropy(expected[graph.train], graph.y[graph.train])
    torch.testing.assert_close(objective.loss(batch, objective.prepare(batch)).detach(), loss, rtol=0, atol=1e-12)
    correct = {split: int((expected.argmax(1) == graph.y)[getattr(graph, split)].sum()) for split in ("val", "test")}
    assert {split: score.correct for split, score in objective.evaluate(("val", "test")).items()} == correct

"""The buffers of a user's model: with the best weights, in checkpoints, and among ranks."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributed as dist

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.checkpoint import read, write
from clusterctl.engine.training.loop import Best, fit
from clusterctl.engine.training.objective import Accuracy
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.own import model as own_model
from clusterctl.engine.training.own.model import OwnTraining
from clusterctl.engine.training.state import pieces, wholes
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import NodeClassificationTrain

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


class Buffers(nn.Module):
    """Buffers of every kind, which change and which do not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.register_buffer("transposed", torch.arange(6.0).view(2, 3).t())
        self.register_buffer("expanded", torch.full((1,), 7.0).expand(5))
        self.register_buffer("number", torch.tensor(0))
        self.register_buffer("waves", torch.tensor([1 + 2j]))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("running", torch.zeros(4), persistent=False)

    def step(self, by: float) -> None:
        with torch.no_grad():
            for tensor in (self.weight, self.frozen, self.transposed, self.number, self.waves, self.running):
                tensor += by  # type: ignore[misc]

    @property
    def values(self) -> dict[str, Any]:
        tensors = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name: tensor.to_dense().tolist() for name, tensor in tensors.items()}


def best_of(model: Buffers) -> Best:
    return Best(model.weight.data, 2, model=model)


def test_the_best_weights_come_with_their_buffers() -> None:
    model = Buffers()
    best = best_of(model)
    model.step(1)
    assert not best.offer(Accuracy(4, 5))
    expected = model.values
    model.step(1)
    assert not best.offer(Accuracy(3, 5))
    assert model.values != expected
    best.restore()
    assert model.values == expected


def test_buffers_of_any_shape_strides_and_dtype_and_those_of_the_best_weights_survive_a_checkpoint(
    tmp_path: Path, lone_task: Task
) -> None:
    model = Buffers()
    training, best = OwnTraining(model, "users:Net", lone_task), best_of(model)
    model.step(1)
    best.offer(Accuracy(4, 5))
    expected_best = model.values
    model.step(1)
    expected = model.values
    write(pieces({"objective": training, "best": best}, 0, 1), tmp_path, 0)

    model = Buffers()
    parts = {"objective": OwnTraining(model, "users:Net", lone_task), "best": best_of(model)}
    wanted = wholes(parts)
    read(wanted, tmp_path)
    for name, part in parts.items():
        state = part.state()
        part.load(state._replace(same={key: wanted[f"{name}.{key}"].rows for key in state.same}))
    of_forward = set(expected) - {"weight"}  # the weights are the optimizer's
    assert {name: model.values[name] for name in of_forward} == {name: expected[name] for name in of_forward}
    parts["best"].restore()  # type: ignore[attr-defined]
    assert model.values == expected_best


class Normal(nn.Module):
    """Predicts class 0 with the buffer of epoch 1, and another one later."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(features, classes)
        self.register_buffer("epoch", torch.tensor(0.0))

    def layer(self, i: int, hop: Any, x: Tensor) -> Tensor:
        if self.training:
            self.epoch += 1
        right = torch.tensor([1.0, 0.0, 0.0], dtype=x.dtype) * (1.5 - self.epoch)
        return self.scores(x[: hop.targets]) * 1e-6 + right


def test_a_training_with_patience_ends_with_the_buffers_of_its_best_epoch_also_in_the_file_of_weights(
    random_graph: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = types.ModuleType("users")
    users.Normal = Normal  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users", users)
    monkeypatch.setattr("clusterctl.engine.training.objectives.own_node.built", lambda *_, **__: Normal(7, 3))
    train = NodeClassificationTrain(
        model="users:Normal", fan_out=(2,), batch_size=64, epochs=5, patience=2, lr=1e-12, precision="float64"
    )
    graph = random_graph()
    objective = OwnNodeClassification(replace(graph, y=torch.zeros_like(graph.y)), train, lone_task)
    folder = RunDir(lone_task.cache.parent / "run")
    fit(objective, train, replace(lone_task, attempt=folder.attempt(0)))
    assert objective.model.epoch == 1
    assert torch.load(folder.weights)["epoch"] == 1


def test_a_checkpoint_from_before_the_best_weights_had_buffers_still_resumes(lone_task: Task) -> None:
    model = Buffers()
    best = best_of(model)
    state = best.state()
    model.step(3)
    best.load(state._replace(same={name: state.same[name] for name in state.same if name not in state.optional}))
    expected = model.values["running"]
    model.step(1)
    best.restore()
    assert model.values["running"] == expected


def test_only_buffers_that_changed_are_averaged_however_they_were_written(
    lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks: the other one's tensors are larger by two."""
    averaged: list[int] = []

    def all_reduce(tensor: Tensor, op: object = None, group: object = None) -> None:
        if tensor.dtype != torch.uint8:  # the flags of the buffers that changed
            averaged.append(tensor.numel())
            tensor += tensor + 2

    monkeypatch.setattr(own_model.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    model = Buffers()
    model.register_buffer("moved", torch.zeros(9))
    model.register_buffer("once", torch.zeros(2))
    training = OwnTraining(model, "users:Net", lone_task)

    def step(number: int) -> None:
        training.begin_step(number)
        model.running.add_(1)  # type: ignore[operator]
        model.moved.data.add_(1)  # type: ignore[operator, union-attr]
        if number == 1:
            model.once.fill_(1)  # type: ignore[operator]

    step(1)
    assert averaged == []
    step(2)
    assert averaged == [4 + 9 + 2]  # of the constant buffers, none; together, in one collective
    averaged.clear()
    assert model.running.tolist() == [3.0] * 4  # 1 and 3 give 2, and this step's own
    step(3)
    assert averaged == [4 + 9]
    training.agree_on_buffers()
    assert averaged == [4 + 9] * 2
    training.agree_on_buffers()
    assert averaged == [4 + 9] * 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), shapes), max_size=6))
def test_buffers_of_any_shapes_are_averaged_as_if_each_were_alone(
    lone_task: Task, kinds: list[tuple[torch.dtype, tuple[int, ...]]]
) -> None:
    """In one collective for each type of numbers, in the order of the model. The other rank has the same values."""
    collectives: list[torch.dtype] = []

    def all_reduce(tensor: Tensor, op: object = None, group: object = None) -> None:
        if tensor.dtype != torch.uint8:
            collectives.append(tensor.dtype)
            tensor += tensor * 2

    model = nn.Module()
    for number, (dtype, shape) in enumerate(kinds):
        buffer = torch.zeros(shape, dtype=dtype)
        model.register_buffer(f"b{number}", buffer.t() if len(shape) == 2 else buffer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_model.dist, "all_reduce", all_reduce)
        patch.setattr(dist, "get_world_size", lambda: 2)
        training = OwnTraining(model, "users:Net", lone_task)
        training.begin_step(1)
        before = {}
        for name, buffer in model.named_buffers():
            buffer.copy_(torch.randint(-9, 9, buffer.shape))
            before[name] = buffer.clone()
        training.agree_on_buffers()
    assert collectives == list(dict.fromkeys(dtype for dtype, _ in kinds))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name] * 3 / 2)

"""What no seed's output depends on is left out, in models that know nothing of it, and nothing else changes."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch_geometric import nn as pyg
from torch_geometric.utils import dropout_edge

from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.own.trimming import Way
from clusterctl.shared.spec import NodeClassificationTrain

MakeGraph = Callable[..., Graph]
TRAIN = NodeClassificationTrain(model="users:Net", fan_out=(4, 3), precision="float64")


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    module = sys.modules["users"] = types.ModuleType("users")
    yield module
    del sys.modules["users"]


class Stack(nn.Module):
    """Layers of one kind."""

    kind: Callable[..., nn.Module]

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([self.kind(in_channels, 6), self.kind(6, out_channels)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.convs[1](self.between(self.convs[0](x, edge_index)), edge_index)
        return out

    def between(self, x: Tensor) -> Tensor:
        return x.relu()


def rows_of(given: Any) -> int:
    """The rows of what a layer gets, or its edges."""
    given = given[0] if isinstance(given, tuple) else given
    return int(given.size(-1 if given.dtype == torch.int64 else 0))


def batch_of(graph: Graph) -> Batch:
    """All training nodes."""
    seeds = graph.train
    return Batch(1, 0, seeds, torch.ones(seeds.numel()), seeds.numel(), seeds)


def step(objective: OwnNodeClassification, graph: Graph) -> tuple[float, list[Tensor]]:
    """The loss and the gradients of a step with all training nodes as seeds."""
    batch = batch_of(graph)
    objective.model.train()
    objective.model.zero_grad()
    loss = objective.loss(batch, objective.prepare(batch))
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), [one.grad.clone() for one in objective.model.parameters() if one.grad is not None]


def made(users: types.ModuleType, kind: type[nn.Module], graph: Graph, task: Task, **others: Any) -> Any:
    users.Net = kind  # type: ignore[attr-defined]
    return OwnNodeClassification(graph, replace(TRAIN, **others), task)


def gin(width: int, out: int) -> nn.Module:
    layer: nn.Module = pyg.GINConv(nn.Linear(width, out))
    return layer


class OnEdges(nn.Module):
    """Embeds the attributes of edges, so that its layers get other tensors than the sample has."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 6)
        self.convs = nn.ModuleList(
            [pyg.GINEConv(nn.Linear(7, 6), edge_dim=6), pyg.GINEConv(nn.Linear(6, out_channels))]
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        attributes = self.embed(edge_attr)
        x = self.convs[0](x, edge_index, attributes).relu()
        out: Tensor = self.convs[1](x, edge_index, edge_attr=attributes)
        return out


@pytest.mark.parametrize("more", range(-2, 3))
def test_attributes_of_edges_are_told_from_rows_of_as_many_nodes(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, more: int
) -> None:
    """A sample with exactly as many edges as rows is rare, and there is one in every long training."""
    graph = random_graph()
    edges = graph.indices.numel()
    graph = replace(graph, edge_attr=torch.randn(edges, 2, generator=torch.Generator().manual_seed(3)).double())
    trained = made(users, OnEdges, graph, lone_task)
    trimming = trained._own.trimming
    assert trimming.is_on
    sample = trained._form._sampler.sample(graph.train[:6], 0, 0)
    rows, count = len(sample.places), sample.edge_index.size(1)
    # Copies of the rows of the last depth, which nothing reads, or of the first edges into them, make up the numbers.
    wanted = max(rows, count) + 4
    places = torch.cat([sample.places, sample.places[:1].expand(wanted - rows)])
    last = sample.edge_index[:, -1:].expand(2, wanted + more - count)
    sample = replace(
        sample,
        places=places,
        edge_index=torch.cat([sample.edge_index, last], 1),
        edges=torch.cat([sample.edges, sample.edges[-1:].expand(wanted + more - count)]),
        rows_by_depth=(*sample.rows_by_depth[:-1], sample.rows_by_depth[-1] + wanted - rows),
        edges_by_depth=(*sample.edges_by_depth[:-1], sample.edges_by_depth[-1] + wanted + more - count),
    )
    assert sample.edge_index.size(1) - len(sample.places) == more
    x = graph.x[places]
    found = trained._own.outputs([sample], x)
    assert trimming.is_on
    trimming.is_on = False
    torch.testing.assert_close(found, trained._own.outputs([sample], x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "apart"),
    [
        (pyg.SAGEConv, 2),
        (pyg.GraphConv, 2),
        (pyg.GATv2Conv, 2),
        (pyg.TransformerConv, 2),
        (gin, 2),
        (pyg.LEConv, 2),
        (pyg.SGConv, None),  # degrees
        (pyg.GCNConv, 0),  # the degrees are those of the whole sample
    ],
)
def test_losses_and_gradients_are_those_of_the_whole_sample(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, kind: Any, apart: int | None
) -> None:
    graph = random_graph()
    objective = made(users, type("Net", (Stack,), {"kind": staticmethod(kind)}), graph, lone_task)
    trimming = objective._own.trimming
    assert trimming.is_on == (apart is not None)
    assert len(trimming._apart) == (apart or 0)
    seen: list[int] = []
    objective.model.convs[1].register_forward_pre_hook(lambda _, given: seen.extend(map(rows_of, given[:2])))
    loss, gradients = step(objective, graph)
    if trimming.is_on:
        assert seen[1] <= 4 * graph.train.numel(), "the last layer gets the edges into the seeds alone"
        assert seen[0] <= 5 * graph.train.numel()
    trimming.is_on = False
    whole, of_whole = step(objective, graph)
    assert loss == pytest.approx(whole, rel=0, abs=1e-12)
    for one, other in zip(gradients, of_whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


class Jumping(Stack):
    kind = pyg.SAGEConv

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, 6)
        self.last = nn.Linear(12, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = self.convs[0](x, edge_index)
        out: Tensor = self.last(torch.cat([first, self.convs[1](first.relu(), edge_index)], 1))
        return out


class JumpingByPyg(Jumping):
    """With an attention-free jump of PyG's, and a norm that divides by what may be zero in rows that nobody reads."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.jump = pyg.JumpingKnowledge("cat")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = self.convs[0](x, edge_index)
        second = self.convs[1]((first / first.norm(dim=1, keepdim=True)).relu(), edge_index)
        out: Tensor = self.last(self.jump([first, second]))
        return out


class Beside(Stack):
    """A linear map of all rows beside each layer."""

    kind = pyg.GATv2Conv

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.lins = nn.ModuleList([nn.Linear(in_channels, 6), nn.Linear(6, out_channels)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, lin in zip(self.convs, self.lins, strict=True):
            x = F.elu(conv(x, edge_index) + lin(x))
        return x


class BesideFirst(Beside):
    """The last linear map gives all rows before the last layer is called."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, lin in zip(self.convs, self.lins, strict=True):
            x = lin(x) + conv(x, edge_index)
        return x


class Centred(Stack):
    """In evaluation and training, a row depends on all others."""

    kind = pyg.SAGEConv

    def between(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("kind", "way", "computed", "at_the_end"),
    [
        (Jumping, Way.FILLED, False, False),
        (JumpingByPyg, Way.FILLED_TO_THE_END, False, True),
        (Beside, Way.FILLED_TO_THE_END, False, True),
        (BesideFirst, Way.FILLED, False, False),
        (Centred, Way.EDGES, True, False),
    ],
)
def test_a_layer_whose_other_rows_are_used_gives_all_and_computes_those_that_count(
    users: types.ModuleType,
    random_graph: MakeGraph,
    lone_task: Task,
    kind: type[nn.Module],
    way: Way,
    computed: bool,
    at_the_end: bool,
) -> None:
    graph = random_graph()
    objective = made(users, kind, graph, lone_task)
    trimming = objective._own.trimming
    assert (trimming.is_on, trimming.way) == (True, way)
    counts: dict[nn.Module, int] = {}
    for part in objective.model.modules():
        part.register_forward_hook(lambda part, _, output: counts.__setitem__(part, len(output)))
    loss, gradients = step(objective, graph)
    sample = objective.prepare(batch_of(graph)).hops[0]
    within = [counts[part] for part in objective.model.convs[1].modules() if type(part).__name__ == "Linear"]
    assert (max(within) == sample.num_rows) == computed
    assert (counts[objective.model] == graph.train.numel()) == at_the_end
    trimming.is_on = False
    whole, of_whole = step(objective, graph)
    assert loss == pytest.approx(whole, rel=0, abs=1e-12)
    for one, other in zip(gradients, of_whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


class Normed(Stack):
    kind = pyg.SAGEConv

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.norm = pyg.BatchNorm(6)

    def between(self, x: Tensor) -> Tensor:
        return self.norm(x).relu()  # type: ignore[no-any-return]


class FewerEdges(Stack):
    """It makes edges of its own."""

    kind = pyg.SAGEConv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        edge_index, _ = dropout_edge(edge_index, 0.5, training=self.training)
        return super().forward(x, edge_index.clone())


class Spreading(Stack):
    """One of its layers looks further than a hop."""

    kind = pyg.SAGEConv

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.spread = pyg.APPNP(3, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.spread(super().forward(x, edge_index), edge_index)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [Normed, FewerEdges, Spreading])
def test_a_model_that_needs_the_rest_gets_it(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, kind: type[nn.Module]
) -> None:
    objective = made(users, kind, random_graph(), lone_task)
    assert not objective._own.trimming.is_on


class Recomputed(Stack):
    """Saves memory: the first layer runs again in the backward."""

    kind, reentrant = pyg.GCNConv, False

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = checkpoint(self.convs[0], x.requires_grad_(), edge_index, use_reentrant=self.reentrant)
        out: Tensor = self.convs[1](self.between(rows), edge_index)
        return out


class RecomputedAsBefore(Recomputed):
    reentrant = True


@pytest.mark.parametrize("kind", [Recomputed, RecomputedAsBefore])
def test_what_is_computed_again_in_the_backward_is_the_same_then(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, kind: type[nn.Module]
) -> None:
    graph = random_graph()
    objective = made(users, kind, graph, lone_task)
    loss, gradients = step(objective, graph)
    assert not objective._own.trimming.is_on
    sample = objective.prepare(batch_of(graph)).hops[0]
    rows = Stack.forward(objective.model, graph.x[sample.places], sample.edge_index)
    expected = F.cross_entropy(rows[: sample.seeds], graph.y[graph.train])
    assert loss == pytest.approx(expected.item(), rel=0, abs=1e-12)
    objective.model.zero_grad()
    expected.backward()  # type: ignore[no-untyped-call]
    for one, parameter in zip(gradients, objective.model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=0, atol=1e-12)


class Deeper(Stack):
    """In training it calls a layer more."""

    kind = pyg.SAGEConv

    def between(self, x: Tensor) -> Tensor:
        return x.relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = super().forward(x, edge_index)
        return F.softplus(self.convs[1](out.new_zeros(len(x), 6), edge_index)) + out if self.training else out


def test_a_model_with_another_forward_in_training_is_trained_whole(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    graph = random_graph()
    objective = made(users, Deeper, graph, lone_task)
    step(objective, graph)
    assert not objective._own.trimming.is_on

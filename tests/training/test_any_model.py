"""Models with `forward(x, edge_index)`, unchanged: exact outputs, a tree of its own for each seed, clear errors."""

from __future__ import annotations

import inspect
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.utils import trim_to_layer

from clusterctl.engine.graph.dropout import draw_attention_by_edge, rows_of_a_step
from clusterctl.engine.graph.features.arrangement import renumbered
from clusterctl.engine.graph.storage import Graph, compressed
from clusterctl.engine.graph.subgraphs import Subgraph, SubgraphSampler, neighbourhood, whole
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch, EpochPlan
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.own import pyg_inference
from clusterctl.engine.training.own.forward_memory import Need, _peak, free_memory, measured
from clusterctl.engine.training.own.model import arguments_of
from clusterctl.engine.training.own.pyg_model import forward_of
from clusterctl.engine.workloads.node_classification import graph_of
from clusterctl.pyg import Dropout, dropout
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeClassificationTrain, from_record

MakeGraph = Callable[..., Graph]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "pyg"
NAMES = (
    *("appnp", "arxiv_gcn", "gatv2", "gine", "graphconv"),
    *("pna", "products_sage", "reddit_sage", "sage_jk"),
)
HOPS = {"appnp": 11, "arxiv_gcn": 4, "graphconv": 2, "sage_jk": 3}  # one more where degrees count
TRAIN = NodeClassificationTrain(model="users:Net", fan_out=(-1, -1), precision="float64")


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The user's module, beside the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = types.ModuleType("users")
    sys.modules["users"] = module
    yield module
    for name in (*NAMES, "communities", "users"):
        sys.modules.pop(name, None)


class Sage(nn.Module):
    """Two layers, as in PyG's examples."""

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 6) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv(in_channels, hidden), pyg.SAGEConv(hidden, out_channels)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)
        return out


def edges_of(graph: Graph) -> Tensor:
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    return torch.stack([graph.indices.long(), targets])


def loss_of(objective: OwnNodeClassification, graph: Graph, seeds: Tensor | None = None) -> Tensor:
    seeds = graph.train if seeds is None else seeds
    batch = Batch(1, 0, seeds, torch.ones(seeds.numel()), seeds.numel(), seeds)
    return objective.loss(batch, objective.prepare(batch))


def outputs_of(objective: OwnNodeClassification) -> Tensor:
    objective.model.eval()
    nodes = torch.arange(objective._graph.num_nodes)
    with torch.no_grad():
        parts = list(objective._inference.rows_at_once(nodes))
    assert torch.equal(torch.cat([some for some, _ in parts]), nodes)
    return torch.cat([rows for _, rows in parts])


def example(name: str, **others: Any) -> tuple[NodeClassificationTrain, Graph, Any]:
    """The settings, the graph and PyG's `Data` of an example, in float64."""
    record = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())["train"]
    data = import_module("communities").load()
    graph = graph_of(data, "load")
    for attribute in ("x", "edge_weight", "edge_attr"):
        data[attribute] = data[attribute].double()
    return from_record(NodeClassificationTrain, {**record, "precision": "float64", **others}), graph, data


@torch.no_grad()
def by_pyg(model: nn.Module, data: Any) -> Tensor:
    """The outputs of a plain call on the whole graph."""
    model.eval()
    form = forward_of(model)
    if form.takes_data:
        return model(data)  # type: ignore[no-any-return]
    return model(**{name: data[name] for name in form.names if name in data})  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_a_plain_forward_on_the_whole_graph(
    name: str, lone_task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, graph, data = example(name)
    objective = OwnNodeClassification(graph, train, lone_task)
    expected = by_pyg(objective.model, data)
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-9)
    assert "is evaluated on the whole graph at once" in capsys.readouterr().out
    if name in HOPS:  # and in pieces, whose size it finds out
        of = Need.of
        monkeypatch.setattr(
            Need, "of", lambda self, rows, edges: of(self, rows, edges) * (4**30 if rows == 1000 else 1)
        )
        monkeypatch.setattr(pyg_inference, "free_memory", lambda _: 1 << 32)
        sparse = replace_edges(graph, 1500)
        objective = OwnNodeClassification(sparse, train, lone_task)
        assert f"in pieces of {HOPS[name]} hops" in capsys.readouterr().out
        pieces = outputs_of(objective)
        objective._inference._hops = 0  # type: ignore[union-attr]
        torch.testing.assert_close(pieces, outputs_of(objective), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_in_float32_are_those_in_float64_to_rounding(name: str, lone_task: Task) -> None:
    train, graph, data = example(name, precision="float32")
    objective = OwnNodeClassification(graph, train, lone_task)
    outputs = outputs_of(objective).double()
    expected = by_pyg(objective.model.double(), data)
    assert (outputs - expected).abs().max() <= 1e-4 * expected.abs().max()


def replace_edges(graph: Graph, most: int) -> Graph:
    """The graph with only some of its edges, so that pieces of many hops are small."""
    kept = torch.randperm(graph.indices.numel(), generator=torch.Generator().manual_seed(1))[:most].sort().values
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)[kept]
    indptr = torch.zeros_like(graph.indptr)
    torch.cumsum(targets.bincount(minlength=graph.num_nodes), 0, out=indptr[1:])
    assert graph.edge_attr is not None
    assert graph.edge_weight is not None
    weight, attr = graph.edge_weight[kept], graph.edge_attr[kept]
    return replace(graph, indptr=indptr, indices=graph.indices[kept], edge_weight=weight, edge_attr=attr)


@pytest.mark.parametrize("labor", [False, True])
def test_the_output_of_a_seed_depends_on_its_own_tree_only(random_graph: MakeGraph, labor: bool) -> None:
    graph = random_graph()
    sampler = SubgraphSampler(graph, (3, 2), 0, labor=labor, places=True)
    model = Sage(7, 3).double()
    together = sampler.sample(graph.train, 1, 2)
    rows = model(graph.x[together.places], together.edge_index)
    for number, seed in enumerate(graph.train):
        alone = sampler.sample(seed[None], 1, 2)
        own = model(graph.x[alone.places], alone.edge_index)
        torch.testing.assert_close(own[0], rows[number], rtol=0, atol=1e-12)
    assert sum(together.rows_by_depth) == len(together.places)
    assert sum(together.edges_by_depth) == together.edge_index.size(1)
    depth = torch.arange(3).repeat_interleave(torch.tensor(together.rows_by_depth))
    assert torch.equal(depth[together.edge_index[0]], depth[together.edge_index[1]] + 1)
    for one in range(3):  # a node has one row for each depth
        assert len(torch.unique(together.places[depth == one])) == together.rows_by_depth[one]
    assert together.edges is not None
    sources, targets = edges_of(graph)[:, together.edges]
    assert torch.equal(torch.stack([sources, targets]), together.places[together.edge_index])


@pytest.mark.parametrize("with_loops", [False, True])
@pytest.mark.parametrize("fan_out", [(3, 2, 2), (-1, -1)])
def test_merged_samples_have_one_row_for_each_node_which_gets_neighbours_once(
    random_graph: MakeGraph, fan_out: tuple[int, ...], with_loops: bool
) -> None:
    """PyG's rule."""
    graph = random_graph()
    if with_loops:
        loops = torch.arange(graph.num_nodes).repeat(2, 1)
        indptr, indices = compressed(torch.cat([edges_of(graph), loops], 1), graph.num_nodes)
        graph = replace(graph, indptr=indptr, indices=indices)
    sample = SubgraphSampler(graph, fan_out, 0, places=True, merged=True).sample(graph.train, 1, 2)
    assert torch.equal(sample.places[: sample.seeds], graph.train)
    assert len(torch.unique(sample.places)) == len(sample.places) == sum(sample.rows_by_depth)
    assert sample.edges is not None
    assert torch.equal(edges_of(graph)[:, sample.edges], sample.places[sample.edge_index])
    rows = torch.arange(len(fan_out) + 1).repeat_interleave(torch.tensor(sample.rows_by_depth))
    hops = torch.arange(len(fan_out)).repeat_interleave(torch.tensor(sample.edges_by_depth))
    assert torch.equal(rows[sample.edge_index[1]], hops), "by hop, as trim_to_layer requires"
    assert (rows[sample.edge_index[0]] <= hops + 1).all()
    found = sample.edge_index[1].bincount(minlength=len(rows))
    for depth, count in enumerate(fan_out):
        degree = graph.degree[sample.places[rows == depth]]
        assert torch.equal(found[rows == depth], degree if count < 0 else degree.clamp(max=count))
    if fan_out == (-1, -1):
        around = neighbourhood(graph, graph.train, 2)
        assert around.edges is not None
        assert torch.equal(around.edges.sort().values, sample.edges.sort().values)


def averaged_twice(users: types.ModuleType, graph: Graph, task: Task) -> tuple[OwnNodeClassification, nn.Module]:
    """The training of an `Averaged`, and a copy of its model."""
    users.Net = Averaged  # type: ignore[attr-defined]
    objective, plain = OwnNodeClassification(graph, TRAIN, task), Averaged(7, 3).double()
    plain.load_state_dict(objective.model.state_dict())
    return objective, plain


def test_a_batch_norm_sees_each_node_of_a_step_once(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    """As in PyG's loop: statistics, loss and gradients are those of a plain forward on the neighbourhood."""
    graph = random_graph()
    objective, plain = averaged_twice(users, graph, lone_task)
    model = objective.model
    loss = loss_of(objective, graph)
    around = neighbourhood(graph, graph.train, 2)
    rows = plain.train()(graph.x[around.places], around.edge_index)
    expected = F.cross_entropy(rows[: around.seeds], graph.y[graph.train])
    for each in (loss, expected):
        each.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_batch_norm_does_not_see_the_padding_of_the_last_step(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    graph = random_graph()
    objective, plain = averaged_twice(users, graph, lone_task)
    *_, batch = EpochPlan(objective.seeds, 16, 0, 0, 1).batches(1)
    seeds = batch.seeds[: batch.total]
    assert len(seeds) < len(batch.seeds)
    objective.model.train()
    loss = objective.loss(batch, objective.prepare(batch))
    around = neighbourhood(graph, seeds, 2)
    rows = plain.train()(graph.x[around.places], around.edge_index)
    torch.testing.assert_close(loss, F.cross_entropy(rows[: len(seeds)], graph.y[seeds]), rtol=0, atol=1e-12)
    for one, other in zip(objective.model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


class Averaged(nn.Module):
    """Convolutions that count degrees, with a BatchNorm between them."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.GCNConv(in_channels, 6), pyg.GCNConv(6, out_channels)])
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.convs[1](self.norm(self.convs[0](x, edge_index)).relu(), edge_index)
        return out


def test_with_all_neighbours_the_loss_is_that_of_the_whole_graph(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    users.Net = Sage  # type: ignore[attr-defined]
    graph = random_graph()
    losses = []
    for train in (TRAIN, replace(TRAIN, batch="graph", fan_out=(25, 10))):
        objective = OwnNodeClassification(graph, train, lone_task)
        losses.append(loss_of(objective, graph).detach())
        rows = objective.model(graph.x, edges_of(graph))
        expected = F.cross_entropy(rows[graph.train], graph.y[graph.train])
        torch.testing.assert_close(losses[-1], expected.detach(), rtol=0, atol=1e-12)


class Everything(Sage):
    """Uses all that a forward may name."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        n_id: Tensor,
        batch_size: int,
        num_sampled_nodes_per_hop: list[int],
        num_sampled_edges_per_hop: list[int],
        *,
        scale: float = 1.0,
    ) -> Tensor:
        x = x + n_id[:, None] * 0.01 * scale
        for number, conv in enumerate(self.convs):
            x, edge_index, edge_weight = trim_to_layer(
                number, num_sampled_nodes_per_hop, num_sampled_edges_per_hop, x, edge_index, edge_weight
            )
            assert len(edge_weight) == edge_index.size(1)
            x = conv(x, edge_index) + x.new_zeros(len(x), 1).index_add_(0, edge_index[1], edge_weight[:, None])
        return x[:batch_size]


class OfBatch(Everything):
    """The same, in the names of PyG's NeighborLoader."""

    def forward(self, batch: Any) -> Tensor:  # type: ignore[override]
        counts = batch.num_sampled_nodes, batch.num_sampled_edges
        return super().forward(batch.x, batch.edge_index, batch.edge_weight, batch.n_id, batch.batch_size, *counts)


@pytest.mark.parametrize(("net", "by_neighbours"), [(Everything, False), (Everything, True), (OfBatch, False)])
def test_a_forward_gets_what_it_names_in_the_users_order(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, tmp_path: Path, net: type, by_neighbours: bool
) -> None:
    users.Net = net  # type: ignore[attr-defined]
    given = random_graph()
    given = replace(given, edge_weight=torch.rand(given.indices.numel(), dtype=torch.float64))
    order = torch.randperm(given.num_nodes) if by_neighbours else torch.arange(given.num_nodes)
    graph = renumbered(given, order, given.x.dtype, tmp_path)
    objective = OwnNodeClassification(graph, TRAIN, lone_task)
    edges, nodes = edges_of(given), torch.arange(given.num_nodes)
    counts = [len(nodes), 0, 0], [edges.size(1), 0]
    with torch.no_grad():
        whole = given.x, edges, given.edge_weight, nodes, len(nodes), *counts
        expected = Everything.forward(objective.model, *whole)  # type: ignore[arg-type]
    torch.testing.assert_close(outputs_of(objective), expected[order], rtol=0, atol=1e-12)
    loss = F.cross_entropy(expected[given.train], given.y[given.train])
    torch.testing.assert_close(loss_of(objective, graph).detach(), loss, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "options", "trims"),
    [
        ("GraphSAGE", {"norm": "LayerNorm", "aggr": "max"}, True),
        ("GraphSAGE", {"jk": "cat"}, True),
        ("GCN", {}, False),  # whose degrees would change
        ("GAT", {"heads": 2, "v2": True}, True),
        ("GIN", {"train_eps": True}, True),
        ("PNA", {"aggregators": "mean,max", "scalers": "identity,amplification", "hidden_channels": 8}, True),
        ("EdgeCNN", {"hidden_channels": 8}, True),
    ],
)
def test_pygs_models_train_by_name(lone_task: Task, model: str, options: dict[str, Any], trims: bool) -> None:
    _, graph, data = example("pna")
    train = replace(TRAIN, model=model, options=options, fan_out=(4, 3))
    objective = OwnNodeClassification(graph, train, lone_task)
    assert objective._own.trimming.is_on == trims  # type: ignore[attr-defined]
    loss_of(objective, graph).backward()  # type: ignore[no-untyped-call]
    known = {"edge_weight": data.edge_weight} if model == "GCN" else {}
    if model in ("GAT", "PNA"):
        known = {"edge_attr": data.edge_attr}
    objective.model.eval()
    with torch.no_grad():
        expected = objective.model(data.x, data.edge_index, **known)
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-9)


class Spread(nn.Module):
    """APPNP, whose outputs depend on more hops than the sample has."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin, self.prop = nn.Linear(in_channels, out_channels), pyg.APPNP(3, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.prop(self.lin(x), edge_index)
        return out


class Paired(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = pyg.PairNorm()(super().forward(x, edge_index))
        return out


def test_too_few_hops_are_named_and_the_right_ones_are_exact(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    users.Net = Spread  # type: ignore[attr-defined]
    graph = random_graph(nodes=200, edges=300)
    OwnNodeClassification(graph, replace(TRAIN, hops=2), lone_task)
    assert "outputs from 2 hops differ from those on the whole graph" in capsys.readouterr().out
    objective = OwnNodeClassification(graph, replace(TRAIN, hops=4), lone_task)
    assert "differ" not in capsys.readouterr().out
    with torch.no_grad():
        expected = objective.model(graph.x, edges_of(graph))
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-12)


def test_a_model_that_mixes_all_rows_is_refused_where_the_whole_graph_does_not_fit(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.Net = Paired  # type: ignore[attr-defined]
    graph = random_graph(nodes=400, edges=500)
    objective = OwnNodeClassification(graph, TRAIN, lone_task)
    with torch.no_grad():
        expected = objective.model(graph.x, edges_of(graph))
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-12)
    of = Need.of
    monkeypatch.setattr(Need, "of", lambda self, rows, edges: of(self, rows, edges) * (4**30 if rows == 400 else 1))
    with pytest.raises(TaskError, match="cannot be evaluated exactly: .*the whole graph needs about"):
        OwnNodeClassification(graph, TRAIN, lone_task)


def test_pieces_are_halved_until_they_fit(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.Net = Sage  # type: ignore[attr-defined]
    graph = random_graph()
    objective = OwnNodeClassification(graph, replace(TRAIN, hops=2), lone_task)
    whole_batches = outputs_of(objective)
    calls: list[int] = []

    def counted(graph: Graph, seeds: Tensor, hops: int, most: int) -> Subgraph:
        calls.append(len(seeds))
        return neighbourhood(graph, seeds, hops, most)

    monkeypatch.setattr(pyg_inference, "free_memory", lambda _: 1)
    monkeypatch.setattr(pyg_inference, "neighbourhood", counted)
    torch.testing.assert_close(outputs_of(objective), whole_batches, rtol=0, atol=1e-12)
    assert calls.count(1) == graph.num_nodes


def test_the_memory_of_a_forward_grows_with_rows_and_edges(random_graph: MakeGraph) -> None:
    graph = random_graph()
    model, edges = pyg.SAGEConv(7, 64).double(), edges_of(graph)

    def forward(times: int) -> Tensor:
        return model(graph.x, edges.repeat(1, times))  # type: ignore[no-any-return]

    with torch.no_grad():
        need = measured(forward, graph.num_nodes, edges.size(1))
    assert need.per_row >= 64 * 8  # its output
    assert need.per_edge >= 7 * 8  # the messages
    assert need.per_row < 64 * 8 * 10
    assert need.of(1000, 0) > 64 * 8 * 1000
    assert 0 < free_memory(torch.device("cpu")) < 1 << 50


class Normed(Sage):
    """With statistics, and random numbers."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(self.norm(self.convs[0](x, edge_index)).relu(), training=self.training)
        out: Tensor = self.convs[1](x, edge_index)
        return out


@pytest.mark.parametrize("name", ["appnp", "arxiv_gcn", "gatv2", "graphconv", "sage_jk"])
def test_a_step_needs_what_a_few_small_ones_let_expect(name: str, lone_task: Task) -> None:
    """Within a factor of two of what the tensors of a step on the whole graph take, saved ones included."""
    train, graph, _ = example(name, batch="graph", fan_out=(25, 10))
    objective = OwnNodeClassification(graph, train, lone_task)
    objective.model.train()
    own: Any = objective._own
    around: Any = pyg_inference.OneType(own, graph, own)
    need = pyg_inference.need_of(own, around, 2, torch.device("cpu"), trains=True)
    expected = need.bare(graph.num_nodes, graph.indices.numel())

    def step() -> None:
        own.outputs([whole(graph)], graph.x.double()).sum().backward()

    taken = _peak(step)
    assert taken / 2 < expected < 2 * taken


def test_training_on_a_graph_that_does_not_fit_is_refused_before_the_first_step(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    users.Net = Normed  # type: ignore[attr-defined]
    graph, train = random_graph(), replace(TRAIN, batch="graph", fan_out=(25, 10))
    torch.manual_seed(train.seed)
    plain = Normed(7, 3).double()
    objective = OwnNodeClassification(graph, train, lone_task)
    for (name, tensor), expected in zip(objective.model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(tensor, expected), name  # trying it left no trace, in its statistics either
    assert all(parameter.grad is None for parameter in objective.model.parameters())
    monkeypatch.setattr(pyg_inference, "free_memory", lambda _: 10_000)
    with pytest.raises(TaskError, match=r'users:Net: a step with train.batch = "graph" needs about 1 MB, of') as error:
        OwnNodeClassification(graph, train, lone_task)
    assert "leave train.batch out" in error.value.hint


def test_dropout_by_node_is_the_same_for_a_seed_in_any_batch(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dropped(Sage):
        def __init__(self, in_channels: int, out_channels: int) -> None:
            super().__init__(in_channels, out_channels)
            self.drop = Dropout(0.5)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.drop(self.convs[0](dropout(x, 0.5, self.training), edge_index))
            out: Tensor = self.convs[1](x, edge_index)
            return out

    class Torchs(Sage):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(F.dropout(x, 0.5, self.training), edge_index)

    graph = random_graph()
    users.Net = Dropped  # type: ignore[attr-defined]
    objective = OwnNodeClassification(graph, replace(TRAIN, fan_out=(3, 2)), lone_task)
    assert "random numbers" not in capsys.readouterr().out
    together, seeds = float(loss_of(objective, graph).detach()), graph.train
    apart = [float(loss_of(objective, graph, half).detach()) * len(half) for half in seeds.tensor_split(3)]
    assert sum(apart) / len(seeds) == pytest.approx(together, abs=1e-12)
    objective.model.eval()
    assert float(loss_of(objective, graph).detach()) != together
    users.Net = Torchs  # type: ignore[attr-defined]
    OwnNodeClassification(graph, TRAIN, lone_task)
    assert "forward draws random numbers" in capsys.readouterr().out
    x = torch.ones(5, 4)
    torch.manual_seed(0)
    ours = dropout(x, 0.5)  # outside of a step
    torch.manual_seed(0)
    assert torch.equal(ours, F.dropout(x, 0.5))


class Attentive(nn.Module):
    """Attention with dropout of its weights, as in PyG's examples: before or in the layer's own loops over edges."""

    kind: Any = pyg.GATConv

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = self.kind(in_channels, 4, heads=2, dropout=0.6)
        self.last = self.kind(8, out_channels, heads=1, concat=False, dropout=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.last(F.elu(self.first(x, edge_index)), edge_index)
        return out


class InLayers(Attentive):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        nn.Module.__init__(self)
        self.first = self.kind(in_channels, 4, heads=2, dropout=0.6, add_self_loops=False)
        self.last = self.kind(8, out_channels, heads=1, concat=False, dropout=0.6, add_self_loops=False)

    def layer(self, i: int, hop: Any, x: Tensor) -> Tensor:
        out: Tensor = (self.last if i else self.first)((x, x[: hop.targets]), hop.edge_index)
        return out


class Transformer(pyg.TransformerConv):
    """PyG's, which adds no self loops."""

    def __init__(self, *given: Any, add_self_loops: bool = False, **named: Any) -> None:
        assert not add_self_loops
        super().__init__(*given, **named)


@pytest.mark.parametrize("form", [Attentive, InLayers])
@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.GATv2Conv, Transformer])
def test_dropout_of_attention_is_drawn_by_edge(
    users: types.ModuleType,
    random_graph: MakeGraph,
    lone_task: Task,
    capsys: pytest.CaptureFixture[str],
    form: type[Attentive],
    kind: Any,
) -> None:
    users.Net = type("Net", (form,), {"kind": kind})  # type: ignore[attr-defined]
    graph = random_graph()
    objective = OwnNodeClassification(graph, replace(TRAIN, fan_out=(3, 2)), lone_task)
    assert "random numbers" not in capsys.readouterr().out
    objective.model.train()
    together, seeds = float(loss_of(objective, graph).detach()), graph.train
    apart = [float(loss_of(objective, graph, part).detach()) * len(part) for part in seeds.tensor_split(3)]
    assert sum(apart) / len(seeds) == pytest.approx(together, abs=1e-12)  # as on three ranks
    assert [part.dropout for part in (objective.model.first, objective.model.last)] == [0.6, 0.6]
    objective.model.eval()
    assert float(loss_of(objective, graph).detach()) != together


def test_by_edge_each_weight_is_dropped_with_its_probability_and_scaled(lone_task: Task) -> None:
    torch.manual_seed(0)
    conv = pyg.GATConv(3, 2, heads=4, dropout=0.6, add_self_loops=False)
    draw_attention_by_edge(conv)
    edges = torch.randint(200, (2, 5000)).unique(dim=1)
    graph = Graph(*compressed(edges, 200), torch.randn(200, 3), *[edges[0]] * 4, num_classes=2)
    sample = replace(whole(graph), randomness=(0, 0, 0))
    weights = {}
    for training in (False, True):
        conv.train(training)
        with rows_of_a_step(sample):
            weights[training] = conv(graph.x, graph.edge_index, return_attention_weights=True)[1][1].detach()
    kept = weights[True] != 0
    assert float(kept.double().mean()) == pytest.approx(0.4, abs=0.01)
    torch.testing.assert_close(weights[True][kept], weights[False][kept] / 0.4, rtol=1e-3, atol=0)
    assert abs(float(torch.corrcoef(kept.double().t())[0, 1])) < 0.05  # heads are independent
    again = conv(graph.x, graph.edge_index, return_attention_weights=True)[1][1]  # outside of a step it is PyG's
    assert not torch.equal(again != 0, kept)


def test_by_edge_a_dropped_weight_drops_its_message(lone_task: Task) -> None:
    """TransformerConv drops weights inside its message, which is a product with them."""
    torch.manual_seed(0)
    conv = pyg.TransformerConv(3, 2, heads=4, dropout=0.6, edge_dim=5)
    messages: list[Tensor] = []
    conv.register_message_forward_hook(lambda _, __, found: messages.append(found.detach()))  # before ours
    draw_attention_by_edge(conv)
    conv.register_message_forward_hook(lambda _, __, found: messages.append(found.detach()))
    edges = torch.randint(200, (2, 5000)).unique(dim=1)
    graph = Graph(*compressed(edges, 200), torch.randn(200, 3), *[edges[0]] * 4, num_classes=2)
    attributes = torch.randn(graph.indices.numel(), 5)
    with rows_of_a_step(replace(whole(graph), randomness=(0, 0, 0))):
        conv(graph.x, graph.edge_index, attributes)
        conv.eval()
        conv(graph.x, graph.edge_index, attributes)
    before, after, plain, in_evaluation = messages
    assert torch.equal(before, plain)  # the layer's own dropout was off
    assert torch.equal(plain, in_evaluation)
    kept = (after != 0).all(2)
    assert torch.equal(kept, (after != 0).any(2))  # all channels of a head, or none
    assert float(kept.double().mean()) == pytest.approx(0.4, abs=0.01)
    torch.testing.assert_close(after[kept], before[kept] / 0.4, rtol=1e-3, atol=0)
    assert conv.dropout == 0.6


@pytest.mark.parametrize("form", [Attentive, InLayers])
def test_random_numbers_that_no_key_replaces_are_named_with_their_layers(
    users: types.ModuleType,
    random_graph: MakeGraph,
    lone_task: Task,
    capsys: pytest.CaptureFixture[str],
    form: type[Attentive],
) -> None:
    class Own(pyg.GATConv):  # its dropout may be anywhere
        def edge_update(self, *given: Any, **named: Any) -> Tensor:
            return F.dropout(super().edge_update(*given, **named), 0.1, self.training)

    Own.edge_update.__signature__ = inspect.signature(pyg.GATConv.edge_update)  # type: ignore[attr-defined]
    users.Net = type("Net", (form,), {"kind": Own})  # type: ignore[attr-defined]
    OwnNodeClassification(random_graph(), TRAIN, lone_task)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "random numbers" in line]
    assert "first (Own) and last (Own)" in line
    assert "GATConv, GATv2Conv and TransformerConv draw by edge" in line


def test_lazy_layers_get_their_sizes_and_batch_norm_is_named(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lazy(nn.Module):
        def __init__(self, out_channels: int) -> None:
            super().__init__()
            self.first, self.norm = pyg.SAGEConv(-1, 8), nn.LazyBatchNorm1d()
            self.last = pyg.SAGEConv(-1, out_channels)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.last(self.norm(self.first(x, edge_index)), edge_index)
            return out

    users.Net = Lazy  # type: ignore[attr-defined]
    graph = random_graph()
    objectives = [OwnNodeClassification(graph, TRAIN, lone_task) for _ in range(2)]
    first, again = (one.model.state_dict() for one in objectives)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert int(first["norm.num_batches_tracked"]) == 0
    loss_of(objectives[0], graph).backward()  # type: ignore[no-untyped-call]
    assert "norm sees only the batch of its rank" in capsys.readouterr().out


class AlwaysDropping(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(F.dropout(x), edge_index)  # in evaluation, too


@pytest.mark.parametrize("net", [Paired, Sage, AlwaysDropping])
def test_outputs_that_depend_on_the_rest_of_the_batch_are_named(
    net: type, users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    users.Net = net  # type: ignore[attr-defined]
    OwnNodeClassification(random_graph(), TRAIN, lone_task)
    words = "users:Net: the output of a seed depends on the other seeds of its batch, so training depends on the number"
    assert (words in capsys.readouterr().out) == (net is Paired)


def test_a_compiled_model_is_the_original(users: types.ModuleType, random_graph: MakeGraph, lone_task: Task) -> None:
    users.Net = lambda features, classes: torch.compile(Sage(features, classes), backend="eager")  # type: ignore[attr-defined]
    objective = OwnNodeClassification(random_graph(), TRAIN, lone_task)
    with torch.no_grad():
        expected = objective.model(objective._graph.x, edges_of(objective._graph))
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-12)


def test_evaluation_leaves_torchs_generator_as_it_was(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    users.Net = Sage  # type: ignore[attr-defined]
    graph = random_graph()
    objective = OwnNodeClassification(graph, replace(TRAIN, hops=2), lone_task)
    state = torch.get_rng_state()
    objective.model.eval()
    objective.evaluate(("val", "test"))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_piece_has_all_edges_of_the_nodes_inside(random_graph: MakeGraph) -> None:
    graph = random_graph()
    seeds = graph.test[:3]
    piece, everything = neighbourhood(graph, seeds, 2), whole(graph)
    near, edges = set(seeds.tolist()), everything.edge_index
    for _ in range(2):
        into = [number for number, target in enumerate(edges[1].tolist()) if target in near]
        near |= set(edges[0, into].tolist())
    assert sorted(piece.places.tolist()) == sorted(near)
    assert piece.edges is not None
    assert sorted(piece.edges.tolist()) == into
    assert torch.equal(piece.places[piece.edge_index], edges[:, piece.edges])


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (lambda in_channels, hidden_channels, out_channels: 0, {"hidden_channels": 8}, ([], (7, 8, 3))),
        (lambda num_classes, num_features, hidden=4: 0, {}, ([], (3, 7, None))),
        (lambda features, labels: 0, {}, ([], (7, 3))),
        (lambda hidden, num_classes: 0, {"hidden": 8}, ([], (8, 3))),
        (lambda given, wanted, hidden: 0, {"hidden": 8}, ([7, 3], (None, None, 8))),
        (lambda *sizes: 0, {}, ([7, 3], (None,))),
        (lambda nfeat, nclass, num_layers: 0, {}, ([], (7, 3, 2))),
        (lambda nfeat, nclass, num_layers=5: 0, {}, ([], (7, 3, 2))),
        (lambda nfeat, nclass, num_layers=5: 0, {"num_layers": 4}, ([], (7, 3, 4))),
        (lambda in_channels, out_channels, **others: 0, {"act": "elu"}, ([], (7, 3, "elu"))),
    ],
)
def test_constructors_get_the_numbers_by_their_usual_names(
    make: Callable[..., int], options: dict[str, Any], expected: tuple[list[int], tuple[Any, ...]]
) -> None:
    positional, keywords = arguments_of(make, "users:Net", {"features": 7, "classes": 3}, options, 2)
    names = [*inspect.signature(make).parameters]
    values = tuple(keywords.get("act" if name == "others" else name) for name in names)
    assert (positional, values) == expected


# Mistakes of users, and the place that the message names.


class Lacks(Sage):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:  # type: ignore[override]
        return x


class Sparse(Sage):
    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        return x


class Starred(Sage):
    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return x


class Unknown(Sage):
    def forward(self, x: Tensor, edge_index: Tensor, time: Tensor) -> Tensor:  # type: ignore[override]
        return x


class Tuple(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return x, edge_index


class TooWide(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.cat([super().forward(x, edge_index)] * 2, 1)


class TooFew(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index)[:2]


class Pooled(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index).mean(0)


class Raises(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raise KeyError("missing")


class Detached(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index).detach()


class Infinite(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index) / 0


class Hidden(Sage):
    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, hidden_channels)


class NoClasses(Sage):
    def __init__(self, in_channels: int, hidden_size: int, number: int) -> None:
        super().__init__(in_channels, number, hidden_size)


class NoForward(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)


class NeverLazy(Sage):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.spare = nn.LazyLinear(3)


class FloatEdges(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index.float())


class NoGrad(Sage):
    @torch.no_grad()
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index)


class Squeezed(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index)[:, 0]


class AsList(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return super().forward(x, edge_index).tolist()


class Predictions(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return F.one_hot(super().forward(x, edge_index).argmax(1), 3)


class OnGpu(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x.to("cuda"), edge_index)


class OfMasks(Sage):
    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        return super().forward(data.x, data.edge_index)[data.train_mask]


class Embedded(Sage):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(4, out_channels)
        self.table = nn.Embedding(9, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(self.table(x[:, 0]), edge_index)


class WrongWidth(Sage):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels + 1, out_channels)


class NoSuper(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.conv = pyg.SAGEConv(in_channels, out_channels)


class Percent(Sage):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 50, self.training), edge_index)


class Frozen(Sage):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.requires_grad_(False)


class BrokenWeights(Sage):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        nn.init.constant_(self.convs[1].lin_l.bias, float("nan"))


class Plain:
    def __init__(self, in_channels: int, out_channels: int) -> None:
        pass


def nothing(in_channels: int, out_channels: int) -> None:
    return None


class ByLayer(Sage):
    def layer(self, i: int, hop: Any, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("net", "others", "expected"),
    [
        (Lacks, {}, "forward needs edge_attr, which the data does not have"),
        (Sparse, {}, r"forward\(x, adj_t\): adj_t is not supported"),
        (Starred, {}, r"forward\(x, \*others\): it is unknown what \*others takes"),
        (Unknown, {}, r"forward\(x, edge_index, time\): nobody fills time"),
        (Tuple, {}, "forward gives tuple, where a row for each"),
        (TooWide, {}, r"forward gives a tensor \[\d+, 6\], where a row for each"),
        (TooFew, {}, r"forward gives a tensor \[2, 3\], where a row for each"),
        (Pooled, {}, r"forward gives a tensor \[3\], where a row for each"),
        (Raises, {}, r"forward fails on x \[\d+, 7\], .*KeyError: 'missing' \(test_any_model.py, line \d+\)"),
        (Detached, {}, "forward gives rows without a gradient"),
        (Infinite, {}, "the loss is not finite: forward of users:Net gives NaN or infinity"),
        (Hidden, {}, "users:Net needs hidden_channels"),
        (Hidden, {"options": {"hidden_chanels": 3}}, "train.options.hidden_chanels: users:Net has no such argument"),
        (NoClasses, {"options": {"hidden_size": 3}}, ""),
        (NoClasses, {}, "it is unknown which is the number of classes"),
        (NoForward, {}, "users:Net has no forward"),
        (NeverLazy, {}, "lazy layers, .*: spare.weight, spare.bias"),
        (ByLayer, {"batch": "graph"}, 'train.batch = "graph" needs a model with forward'),
        (ByLayer, {"hops": 2}, r"train.hops needs a model with forward\(x, edge_index\)"),
        (Sage, {"options": {"hidden": "wide"}}, "users:Net cannot be made: "),
        (FloatEdges, {}, r"forward fails on x .*\(test_any_model.py, line \d+\)"),
        (NoGrad, {}, "forward gives rows without a gradient"),
        (Squeezed, {}, r"forward gives a tensor \[\d+\], where a row for each"),
        (AsList, {}, "forward gives list, where a row for each"),
        (Predictions, {}, "forward gives rows without a gradient"),
        (OnGpu, {}, r"forward fails on x .*\(test_any_model.py, line \d+\)"),
        (OfMasks, {}, r"forward fails on x .*train_mask.*\(test_any_model.py, line \d+\)"),
        (Embedded, {}, r"forward fails on x .*indices.*\(test_any_model.py, line \d+\)"),
        (WrongWidth, {}, r"forward fails on x \[\d+, 7\], .*\(test_any_model.py, line \d+\)"),
        (NoSuper, {}, r"users:Net cannot be made: .*before Module.__init__.*\(test_any_model.py, line \d+\)"),
        (Percent, {}, r"forward fails on x .*probability.*50.*\(test_any_model.py, line \d+\)"),
        (Frozen, {}, "users:Net has nothing to train"),
        (BrokenWeights, {}, "the parameter convs.1.lin_l.bias of users:Net"),
        (Plain, {}, "users:Net returned Plain, not a torch.nn.Module"),
        (nothing, {}, "users:Net returned NoneType, not a torch.nn.Module"),
        (Sage(7, 3), {}, r"users:Net cannot be made: .*\(test_any_model.py, line \d+\)"),
        (Sage, {"model": "users:Nett"}, "train.model = users:Nett: users has no Nett"),
        (Sage, {"model": "user:Net"}, "train.model = user:Net: there is no module user"),
        (Sage, {"options": {"out_channels": 2}}, r"forward gives a tensor \[\d+, 2\], where a row for each"),
        (Sage, {"options": {"in_channels": 5}}, r"forward fails on x \[\d+, 7\], "),
        (Sage, {"sampler": "users:Nothing"}, "train.sampler = users:Nothing: users has no Nothing"),
        (Sage, {"loss": "users:Nothing", "metric": "accuracy"}, "train.loss = users:Nothing: users has no Nothing"),
        (Sage, {"metric": "users:Nothing"}, "train.metric = users:Nothing: users has no Nothing"),
        (Sage, {"loss": "mse"}, "train.loss = mse is for numbers, and y of this data are classes"),
        (Sage, {"class_weights": (1.0, 2.0)}, "train.class_weights has 2 weights, and the data has 3 classes"),
        (Sage, {"sampling": "labor", "replace": True}, "labor draws without replacement"),
        (None, {"model": "GraphSAGE", "options": {"hidden": 3}}, "train.options.hidden: unknown key"),
        (None, {"model": "GAT", "options": {"hidden_channels": 3, "heads": 2}}, "GAT cannot be made: .*divisible"),
        (None, {"model": "GIN", "options": {"act": "none-such"}}, "GIN cannot be made: "),
    ],
)
def test_a_wrong_model_is_refused_with_the_place(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, net: Any, others: dict[str, Any], expected: str
) -> None:
    users.Net = net  # type: ignore[attr-defined]
    graph = random_graph()
    if not expected:  # one argument is left for the classes
        OwnNodeClassification(graph, replace(TRAIN, **others), lone_task)
        return
    with pytest.raises(TaskError, match=expected):
        loss_of(OwnNodeClassification(graph, replace(TRAIN, **others), lone_task), graph)


@pytest.mark.parametrize("name", ["arxiv_gcn", "reddit_sage"])
def test_the_hops_of_a_model_are_found_with_fewer_edges_too(name: str, lone_task: Task) -> None:
    train, graph, _ = example(name, batch="sampled", fan_out=(-1, -1))
    objective = OwnNodeClassification(graph, train, lone_task)
    objective.model.eval()
    inference: Any = objective._inference
    nodes = graph.degree.argsort(descending=True)[:4]
    with torch.no_grad():
        found = [inference._settled_with(most, nodes, Need(1.0, 1.0), 1 << 40)[0] for most in (2, -1)]
    assert found[0] >= found[1] > 0


def hops_in_pieces(
    graph: Graph, train: NodeClassificationTrain, task: Task, monkeypatch: pytest.MonkeyPatch
) -> OwnNodeClassification:
    """The objective on a graph that does not fit into the memory as a whole, but in pieces."""
    of, everything = Need.of, graph.indices.numel()
    monkeypatch.setattr(Need, "of", lambda self, rows, edges: of(self, rows, edges) if edges < everything else 1 << 50)
    monkeypatch.setattr(pyg_inference, "free_memory", lambda _: 1 << 40)
    return OwnNodeClassification(graph, train, task)


@pytest.mark.parametrize(("name", "hops"), [("appnp", 11), ("arxiv_gcn", 4), ("reddit_sage", 2)])
def test_nodes_with_little_around_them_hide_no_hops(
    name: str, hops: int, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a graph of citations: the nodes with the fewest edges have all that they depend on within a hop."""
    train, graph, _ = example(name, batch="sampled", fan_out=(3, 3, 3) if name == "arxiv_gcn" else (3, 3))
    few = replace_edges(graph, 1500)
    edges = edges_of(few)
    leaves = torch.arange(0, 200).view(-1, 2).t()  # each odd node has an edge from the even one before it
    edges = torch.cat([leaves, edges[:, edges[1] >= 200]], 1)
    indptr, indices = compressed(edges, graph.num_nodes)
    graph = replace(few, indptr=indptr, indices=indices, edge_weight=None, edge_attr=None)
    objective = hops_in_pieces(graph, train, lone_task, monkeypatch)
    assert objective._inference._hops == hops  # type: ignore[union-attr]
    pieces = outputs_of(objective)
    objective._inference._hops = 0  # type: ignore[union-attr]
    torch.testing.assert_close(pieces, outputs_of(objective), rtol=0, atol=1e-9)


def test_hops_that_no_way_in_the_graph_is_long_enough_to_show_are_refused(
    lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, graph, _ = example("appnp", batch="sampled", fan_out=(3, 3))
    edges = torch.arange(0, graph.num_nodes).view(-1, 2).t()
    indptr, indices = compressed(edges, graph.num_nodes)
    graph = replace(graph, indptr=indptr, indices=indices, edge_weight=None, edge_attr=None)
    with pytest.raises(TaskError, match=r"appnp:\S+ cannot be evaluated exactly") as error:
        hops_in_pieces(graph, train, lone_task, monkeypatch)
    assert "train.hops" in error.value.hint
    assert hops_in_pieces(graph, replace(train, hops=11), lone_task, monkeypatch)._inference._hops == 11  # type: ignore[union-attr]

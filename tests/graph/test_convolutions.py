"""Our layers against PyG's on the same sampled edges, in float64: outputs and gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, SAGEConv

from clusterctl.engine.graph import convolutions
from clusterctl.engine.graph.blocks import Block
from clusterctl.engine.graph.convolutions import GcnConv, Network, SageConv
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.graph.storage import Graph, compressed

MakeGraph = Callable[..., Graph]
WIDTHS = [(7, 5), (7, 7), (7, 11)]


def edges_of(block: Block) -> Tensor:
    """The block's edges in PyG's format: rows of the source table, then rows of the targets."""
    targets = torch.arange(block.nodes.numel()).repeat_interleave(block.offsets.diff())
    return torch.stack([block.columns.to(torch.int64), targets])


def pyg_sage(layer: SageConv) -> SAGEConv:
    theirs = SAGEConv(layer.neighbor.in_features, layer.neighbor.out_features).double()
    theirs.load_state_dict(
        {"lin_l.weight": layer.neighbor.weight, "lin_l.bias": layer.neighbor.bias, "lin_r.weight": layer.root.weight}
    )
    return theirs


def assert_close(ours: Tensor | None, theirs: Tensor | None) -> None:
    assert ours is not None
    assert theirs is not None
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_sage_matches_pyg_on_plain_and_projected_rows(random_graph: MakeGraph, inputs: int, outputs: int) -> None:
    graph = random_graph(features=inputs)
    outer, _ = NeighborSampler(graph, [4, 3], seed=0).sample(torch.arange(20), epoch=0, step=0)
    assert 0 in outer.offsets.diff().tolist()  # an isolated node is among the targets
    ours = SageConv(inputs, outputs).double()
    theirs = pyg_sage(ours)
    expected = theirs((graph.x, graph.x[outer.nodes]), edges_of(outer))
    expected.square().sum().backward()
    for compute in (
        lambda: ours(outer, graph.x, graph.x[outer.nodes]),
        lambda: ours.receive(outer, ours.send(graph.x), graph.x[outer.nodes]),
    ):
        ours.zero_grad()
        got = compute()
        got.square().sum().backward()
        assert_close(got, expected)
        assert_close(ours.neighbor.weight.grad, theirs.lin_l.weight.grad)
        assert_close(ours.neighbor.bias.grad, theirs.lin_l.bias.grad)
        assert_close(ours.root.weight.grad, theirs.lin_r.weight.grad)


def with_loops(graph: Graph) -> Graph:
    """Every third node has one self loop more than the one before, and every edge into some nodes is there twice."""
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    edges = torch.stack([graph.indices.long(), targets])
    loops = torch.arange(graph.num_nodes).repeat_interleave(torch.arange(graph.num_nodes) % 3)
    edges = torch.cat([edges, edges[:, edges[1] % 4 == 1], loops.expand(2, -1)], 1)
    indptr, indices = compressed(edges, graph.num_nodes)
    return dataclasses.replace(graph, indptr=indptr, indices=indices)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_gcn_on_all_neighbours_matches_pyg_on_the_whole_graph(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch, inputs: int, outputs: int, loops: bool
) -> None:
    monkeypatch.setattr("clusterctl.engine.graph.blocks._EDGES_AT_ONCE", 50 if loops else 1 << 20)
    graph = with_loops(random_graph(features=inputs)) if loops else random_graph(features=inputs)
    nodes = torch.arange(20)
    (block,) = NeighborSampler(graph, [-1], seed=0).sample(nodes, epoch=0, step=0)
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    ours = GcnConv(inputs, outputs).double()
    torch.nn.init.normal_(ours.bias)
    theirs = GCNConv(inputs, outputs).double()
    theirs.load_state_dict({"lin.weight": ours.weight, "bias": ours.bias})
    expected = theirs(graph.x, torch.stack([graph.indices.to(torch.int64), targets]))[nodes]
    expected.square().sum().backward()
    for compute in (
        lambda: ours(block, graph.x, graph.x[nodes]),
        lambda: ours.receive(block, ours.send(graph.x), graph.x[nodes]),
    ):
        ours.zero_grad()
        got = compute()
        got.square().sum().backward()
        assert_close(got, expected)
        assert_close(ours.weight.grad, theirs.lin.weight.grad)
        assert_close(ours.bias.grad, theirs.bias.grad)


@pytest.mark.parametrize("replace", [False, True])
def test_a_sampled_gcn_estimates_the_whole_neighbourhood(random_graph: MakeGraph, replace: bool) -> None:
    graph = with_loops(random_graph(nodes=40, edges=1200))
    nodes = torch.arange(20)
    layer = GcnConv(7, 5).double()
    whole = NeighborSampler(graph, [-1], seed=0).sample(nodes, 0, 0)[0]
    draws = 500
    with torch.no_grad():
        expected = layer(whole, graph.x, graph.x[nodes])
        sampler = NeighborSampler(graph, [10], seed=0, replace=replace)
        outputs = torch.stack([layer(sampler.sample(nodes, 0, s)[0], graph.x, graph.x[nodes]) for s in range(draws)])
    error = (outputs.mean(0) - expected).abs()
    assert (error < 5 * outputs.std(0) / draws**0.5 + 1e-12).all()
    assert outputs.std() > 0


def test_a_two_layer_network_matches_pyg_including_gradients(random_graph: MakeGraph) -> None:
    graph = random_graph()
    outer, inner = NeighborSampler(graph, [4, 3], seed=0).sample(torch.arange(20), epoch=0, step=0)
    network = Network(SageConv, [7, 9, 3], dropout=0.0).double()
    network([outer, inner], graph.x, (0,)).square().sum().backward()
    first, second = (pyg_sage(layer) for layer in network.layers)  # type: ignore[arg-type]
    hidden = first((graph.x, graph.x[outer.nodes]), edges_of(outer)).relu()
    second((hidden, hidden[: inner.nodes.numel()]), edges_of(inner)).square().sum().backward()
    for ours, theirs in zip(network.layers, (first, second), strict=True):
        assert_close(ours.neighbor.weight.grad, theirs.lin_l.weight.grad)  # type: ignore[union-attr]
        assert_close(ours.root.weight.grad, theirs.lin_r.weight.grad)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [SageConv, GcnConv])
def test_padded_blocks_change_nothing(random_graph: MakeGraph, kind: type[SageConv | GcnConv]) -> None:
    graph = random_graph(nodes=300, edges=1200)
    seeds = torch.arange(40)
    *outer, last = NeighborSampler(graph, [4, 4, 4], seed=0).sample(seeds, epoch=0, step=0)
    network = Network(kind, [7, 9, 8, 3], dropout=0.5).double()
    results = []
    for blocks in ([*outer, last], [*(block.padded() for block in outer), last]):
        network.zero_grad()
        outputs = network(blocks, graph.x, (0, 0, 0))
        outputs.square().sum().backward()
        results.append([outputs, *(parameter.grad for parameter in network.parameters())])
    assert any(block.padded().nodes.numel() > block.nodes.numel() for block in outer)
    for plain, padded in zip(*results, strict=True):
        assert_close(padded, plain)


@pytest.mark.parametrize("kind", [SageConv, GcnConv])
def test_the_order_of_projection_and_aggregation_does_not_change_a_network(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch, kind: type[SageConv | GcnConv]
) -> None:
    graph = random_graph()
    blocks = NeighborSampler(graph, [4, 3], seed=0).sample(torch.arange(20), epoch=0, step=0)
    model = Network(kind, [7, 9, 3], dropout=0.5).double()
    projected: list[Tensor] = []
    monkeypatch.setattr(kind, "send", lambda layer, rows, send=kind.send: projected.append(rows) or send(layer, rows))
    results = []
    for products_per_addition in (0, 1_000_000):
        monkeypatch.setattr(convolutions, "_PRODUCTS_PER_ADDITION", products_per_addition)
        model.zero_grad()
        outputs = model(blocks, graph.x, (0, 0, 0))
        outputs.square().sum().backward()
        results.append([outputs, *(parameter.grad for parameter in model.parameters())])
    assert len(projected) == 1
    for aggregated_first, projected_first in zip(*results, strict=True):
        assert_close(projected_first, aggregated_first)


def test_the_cheaper_order_is_chosen(random_graph: MakeGraph) -> None:
    graph = random_graph(nodes=100, edges=5_000)
    rows = torch.zeros(100, 64)
    whole, sampled = (NeighborSampler(graph, [count], seed=0).sample(torch.arange(50), 0, 0)[0] for count in (-1, 2))
    assert convolutions._worth_projecting(whole, rows, width=2)  # 2,500 edges: 6,400 products save 155,000 additions
    assert not convolutions._worth_projecting(sampled, rows, width=16)  # 51,200 products would save 4,800
    assert not convolutions._worth_projecting(whole, rows, width=64)

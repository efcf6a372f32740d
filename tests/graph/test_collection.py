from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.storage import compressed


def random_graphs(count: int = 12, seed: int = 0) -> list[Data]:
    """Small graphs, some without edges, some with a single node."""
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for number in range(count):
        nodes = 1 + number % 6
        pairs = torch.randint(0, nodes, (2, 3 * (number % 4)), generator=generator).unique(dim=1)
        x = torch.randn(nodes, 3, generator=generator, dtype=torch.float64)
        graphs.append(Data(x=x, edge_index=pairs, y=torch.tensor([number % 2]), num_nodes=nodes))
    return graphs


def collected(graphs: list[Data]) -> Collection:
    bounds, edges = joined_graphs([(graph.num_nodes, graph.edge_index) for graph in graphs])
    x, y = torch.cat([graph.x for graph in graphs]), torch.cat([graph.y for graph in graphs])
    return Collection(bounds, *compressed(edges, int(bounds[-1])), x, y, num_classes=2)


def pairs_of(columns: Tensor, offsets: Tensor) -> set[tuple[int, int]]:
    targets = torch.arange(offsets.numel() - 1).repeat_interleave(offsets.diff())
    return set(zip(columns.tolist(), targets.tolist(), strict=True))


@given(st.lists(st.integers(0, 11), min_size=1, max_size=20))
def test_a_batch_with_repeated_graphs_matches_pyg(numbers: list[int]) -> None:
    graphs = random_graphs()
    batch = collected(graphs).batch(torch.tensor(numbers))
    theirs = Batch.from_data_list([graphs[number] for number in numbers])
    assert torch.equal(batch.bounds, theirs.ptr)
    assert torch.equal(collected(graphs).x[batch.nodes], theirs.x)
    edges = set(zip(*theirs.edge_index.tolist(), strict=True))
    (offsets, sources), (offsets_out, targets) = batch.incoming, batch.outgoing
    assert (
        pairs_of(sources, offsets) == {(target, source) for source, target in pairs_of(targets, offsets_out)} == edges
    )
    assert sources.numel() == targets.numel() == theirs.edge_index.size(1)


def test_a_symmetric_collection_stores_its_edges_once() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    y, x = torch.zeros(1, dtype=torch.int64), torch.zeros(3, 1)
    both_ways = Collection(torch.tensor([0, 3]), *compressed(edges, 3), x, y, num_classes=1)
    assert both_ways.outgoing[1] is both_ways.indices
    one_way = Collection(torch.tensor([0, 3]), *compressed(edges[:, ::2], 3), x, y, num_classes=1)
    assert one_way.outgoing[1] is not one_way.indices


@pytest.mark.parametrize("symmetric", [False, True])
def test_gradients_of_neighbour_sums_and_readouts_match_finite_differences(symmetric: bool) -> None:
    graphs = random_graphs()
    for graph in graphs:
        graph.edge_index = to_undirected(graph.edge_index) if symmetric else graph.edge_index
    batch = collected(graphs).batch(torch.tensor([3, 11, 7, 3]))
    rows = torch.randn(batch.nodes.numel(), 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: batch.readout(batch.neighbor_sum(values) ** 2, "mean"), rows)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_readout_reduces_each_graph_separately(mode: str) -> None:
    graphs = random_graphs()
    collection = collected(graphs)
    numbers = torch.tensor([7, 0, 7, 3])
    batch = collection.batch(numbers)
    got = batch.readout(collection.x[batch.nodes], mode)
    expected = torch.stack([getattr(graphs[number].x, mode)(0) for number in numbers])
    torch.testing.assert_close(got, expected)

"""PyG's HGTLoader, ShaDowKHopSampler, old NeighborSampler and ClusterData with our sampling; backward and both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.made_graphs import BOUGHT, BOUGHT_BY, KNOWS, one_type, shop
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import k_hop_subgraph

from clusterctl.engine.graph.pyg.hgt import _Budget, _Growing
from clusterctl.engine.graph.pyg.older_loaders import subgraphs
from clusterctl.engine.graph.pyg.relation import Relation, kernels
from clusterctl.engine.graph.pyg.walk import TypedGraph
from clusterctl.engine.graph.storage import row_offsets
from clusterctl.pyg import (
    ClusterData,
    ClusterLoader,
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    PygBidirectionalSampler,
    PygHgtSampler,
    PygNeighborSampler,
    ShaDowKHopSampler,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch calls its own sparse tensors a beta
LOADERS: dict[str, Callable[..., Any]] = {
    "hgt": lambda **options: HGTLoader(shuffled_shop(), [6, 6], ("user", None), batch_size=4, **options),
    "shadow": lambda **options: ShaDowKHopSampler(unsorted(), 2, 3, batch_size=4, **options),
    "old": lambda **options: NeighborSampler(unsorted().edge_index, [3, 2], batch_size=4, **options),
    "both ways": lambda **options: NeighborLoader(
        unsorted(), [], batch_size=4, neighbor_sampler=PygBidirectionalSampler(unsorted(), [2]), **options
    ),
}


def unsorted(edges: int = 600) -> Data:
    """A graph whose edges are in no order."""
    data = one_type(edges=edges)
    order = torch.randperm(edges, generator=torch.Generator().manual_seed(1))
    data.edge_index = data.edge_index[:, order]
    data.weight = data.weight[order]
    return data


def shuffled_shop() -> HeteroData:
    data = shop()
    for edge_type in data.edge_types:
        order = torch.randperm(300, generator=torch.Generator().manual_seed(2))
        data[edge_type].edge_index = data[edge_type].edge_index[:, order]
        data[edge_type].e = torch.arange(300)
    return data


def assert_edges_of(batch: HeteroData, data: HeteroData) -> None:
    for edge_type in data.edge_types:
        source, _, target = edge_type
        rows, columns = batch[edge_type].edge_index
        ends = torch.stack([batch[source].n_id[rows], batch[target].n_id[columns]])
        assert torch.equal(ends, data[edge_type].edge_index[:, batch[edge_type].e_id]), edge_type
        assert torch.equal(batch[edge_type].e, batch[edge_type].e_id)


def flat(batch: Any) -> list[Any]:
    """All values of a batch, to compare."""
    if isinstance(batch, tuple):
        return [part.tolist() if isinstance(part, Tensor) else str(part) for part in batch]
    return [str(batch.to_dict())]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["shadow", "old", "sparse"])
def test_edges_are_those_of_the_data_whatever_the_type_of_their_numbers(name: str, dtype: torch.dtype) -> None:
    """Of 50,000 nodes, a product of two numbers is beyond int32."""
    nodes, random = 50_000, torch.Generator().manual_seed(0)
    pairs = torch.randint(nodes, (2, 200_000), generator=random).unique(dim=1)[:, 1:]
    data = Data(x=torch.arange(nodes)[:, None], edge_index=pairs.to(dtype), edge_attr=torch.arange(pairs.size(1)))
    if name == "old":
        loader = NeighborSampler(data.edge_index, [2], num_nodes=nodes, batch_size=256)
        _, n_id, (edges, e_id, _) = next(iter(loader))
        assert torch.equal(n_id[edges], pairs[:, e_id])
        return
    if name == "shadow":
        batch = next(iter(ShaDowKHopSampler(data, 2, 2, batch_size=256)))
        assert torch.equal(batch.x[batch.edge_index, 0], pairs[:, batch.edge_attr])
        return
    ordered = pairs.flip(0).unique(dim=1)
    offsets, sources = row_offsets(ordered[0], nodes).to(dtype), ordered[1].to(dtype)
    values = torch.arange(sources.numel(), dtype=torch.float64)
    held = Data(x=data.x, adj_t=torch.sparse_csr_tensor(offsets, sources, values, (nodes, nodes)))
    batch = next(iter(NeighborLoader(held, [2], batch_size=nodes)))
    found = batch.adj_t.to_sparse_coo().coalesce()
    assert torch.equal(batch.x[found.indices(), 0], ordered[:, found.values().long()])


@pytest.mark.parametrize("name", LOADERS)
def test_batches_depend_on_the_seed_and_the_epoch_but_not_on_workers(name: str) -> None:
    def batches(seed: int, epochs: int = 1, **options: Any) -> list[Any]:
        torch.manual_seed(seed)
        loader = LOADERS[name](**options)
        return [[flat(batch) for batch in loader] for _ in range(epochs)]

    first, second = batches(0, epochs=2)
    assert batches(0, num_workers=1) == [first]
    assert first != second
    assert batches(1) != [first]


# HGTLoader.


def test_an_hgt_batch_has_so_many_nodes_of_each_type_and_the_edges_among_them() -> None:
    data = shuffled_shop()
    counts = {"user": [3, 4], "item": [5, 2]}
    for batch in HGTLoader(data, counts, ("user", torch.arange(12)), batch_size=4):
        assert batch["user"].n_id[:4].tolist() == batch["user"].input_id.tolist()
        assert batch["user"].num_nodes == 4 + 7
        assert batch["item"].num_nodes == 7
        assert batch["user"].n_id.unique().numel() == 11
        assert_edges_of(batch, data)
        for edge_type in data.edge_types:  # targets here have at most 50 edges, so all are there
            sources, targets = data[edge_type].edge_index
            inside = torch.isin(sources, batch[edge_type[0]].n_id) & torch.isin(targets, batch[edge_type[2]].n_id)
            assert batch[edge_type].num_edges == int(inside.sum())


def test_hgt_draws_by_the_squares_of_the_budgets() -> None:
    # Node 0 has neighbours 1 (one of its four edges) and 2 (three of them), so budgets 1/4 and 3/4.
    relation = Relation(torch.tensor([0, 4, 4, 4]), torch.tensor([1, 2, 2, 2]))
    graph = TypedGraph({"a": 3}, {("a", "to", "a"): relation}, kernels(4))
    drawn = []
    for key in range(500):
        sample = _Growing(graph, key)
        sample.add(0, {"a": torch.tensor([0])})
        drawn += sample.drawn("a", 1, 0).tolist()
    assert set(drawn) == {1, 2}
    assert drawn.count(2) / 500 == pytest.approx(0.9, abs=0.05)


def test_budgets_add_up_and_lose_sampled_nodes() -> None:
    budget = _Budget()
    budget.add(torch.tensor([5, 2, 5]), torch.tensor([0.5, 1.0, 0.25], dtype=torch.float64))
    budget.add(torch.tensor([2]), torch.tensor([0.5], dtype=torch.float64))
    assert (budget.nodes.tolist(), budget.values.tolist()) == ([2, 5], [1.5, 0.75])
    budget.keep(torch.tensor([False, True]))
    assert budget.nodes.tolist() == [5]


def test_a_target_with_many_edges_gives_fifty_of_them_with_their_own_numbers() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.zeros(200, 1), torch.zeros(1, 1)
    data["a", "to", "b"].edge_index = torch.stack([torch.arange(200).flip(0), torch.zeros(200, dtype=torch.int64)])
    data["a", "to", "b"].e = torch.arange(200)
    (batch,) = HGTLoader(data, [200], ("b", None), batch_size=1)
    assert batch["a"].num_nodes == 50
    assert 0 < batch["a", "to", "b"].num_edges <= 50
    assert_edges_of(batch, data)


def test_hgt_refuses_what_pygs_refuses_and_names_missing_types() -> None:
    with pytest.raises(NotImplementedError, match="does not support a data object of type"):
        PygHgtSampler(one_type(), [3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no entry for these node types: item"):
        HGTLoader(shop(), {"user": [3]}, "user")
    with pytest.raises(ValueError, match="num_samples has shop, and the node types are user, item"):
        HGTLoader(shop(), {"user": [3], "item": [3], "shop": [3]}, "user")
    with pytest.raises(NotImplementedError):
        PygHgtSampler(shop(), [3]).sample_from_edges(None)


# ShaDow.


def test_a_shadow_subgraph_has_all_edges_among_the_nodes_that_the_hops_reach() -> None:
    data = unsorted(120)
    (batch,) = ShaDowKHopSampler(data, 2, 1000, torch.tensor([7, 3, 7]), batch_size=3)
    assert batch.ptr.numel() == 4
    for graph, root in enumerate([7, 3, 7]):
        nodes, _, _, mask = k_hop_subgraph(root, 2, data.edge_index, num_nodes=50)
        own = slice(int(batch.ptr[graph]), int(batch.ptr[graph + 1]))
        assert batch.x[own].squeeze(1).tolist() == nodes.tolist()  # ascending
        assert batch.x[batch.root_n_id[graph]] == root
        inside = batch.batch[batch.edge_index[0]] == graph
        among = torch.isin(data.edge_index, nodes).all(0)
        assert sorted(batch.edge_attr[inside].tolist()) == data.edge_attr[among].sort().values.tolist()
        assert int(mask.sum()) <= int(inside.sum())
    assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
    assert torch.equal(batch.x[batch.edge_index].squeeze(-1).long(), data.edge_index[:, batch.edge_attr])


def test_a_shadow_subgraph_does_not_depend_on_its_batch() -> None:
    data = unsorted()

    def of_five(batch_size: int) -> list[int]:
        torch.manual_seed(4)
        for batch in ShaDowKHopSampler(data, 2, 2, torch.tensor([1, 9, 5]), batch_size=batch_size):
            for graph in range(batch.num_graphs):
                if batch.x[batch.root_n_id[graph]] == 5:
                    return batch.x[batch.batch == graph].squeeze(1).tolist()  # type: ignore[no-any-return]
        raise AssertionError

    assert of_five(1) == of_five(3)


def test_shadow_hops_sample_once_for_each_edge_that_reaches_a_node_as_torch_sparse_does() -> None:
    # The root 0 hears from 1 and 2, both from 3, and 3 from 4 ... 9: three has two chances to sample one of the six.
    edges = torch.tensor([[1, 2, 3, 3, 4, 5, 6, 7, 8, 9], [0, 0, 1, 2, 3, 3, 3, 3, 3, 3]])
    relation = Relation(row_offsets(edges[1], 10), edges[0])
    roots, counts = torch.tensor([0]), []
    for key in range(300):  # by two's: the six are sampled twice two of six
        found = subgraphs(relation, roots, 3, 2, key)
        assert {0, 1, 2, 3} <= set(found.nodes.tolist())
        counts.append(found.nodes.numel() - 4)
    chances = {2: 1 / 15, 3: 8 / 15, 4: 6 / 15}  # of the size of the union of two pairs from six
    for size, chance in chances.items():
        assert counts.count(size) / 300 == pytest.approx(chance, abs=0.1)


def test_a_shadow_batch_of_a_sparse_matrix_has_one() -> None:
    data = unsorted()
    size = (50, 50)
    sparse = Data(
        x=data.x,
        y=torch.arange(50),
        num_nodes=50,
        adj_t=torch.sparse_coo_tensor(data.edge_index.flip(0), torch.arange(600.0), size).coalesce(),
    )
    torch.manual_seed(0)
    (batch,) = ShaDowKHopSampler(sparse, 1, 100, torch.tensor([4, 8]), batch_size=2)
    assert batch.adj_t.layout == torch.sparse_coo
    targets, sources = batch.adj_t.coalesce().indices()
    nodes = batch.x.squeeze(1).long()
    wanted = sparse.adj_t.to_dense()[nodes[targets], nodes[sources]]
    assert torch.equal(batch.adj_t.coalesce().values(), wanted)
    assert batch.y.tolist() == [4, 8]


# The old NeighborSampler.


def test_the_old_samplers_hops_sample_all_nodes_found_so_far_and_end_with_the_seeds() -> None:
    data = unsorted()
    seeds = torch.tensor([4, 30, 11])
    ((size, n_id, adjs),) = NeighborSampler(data.edge_index, [4, -1], seeds, batch_size=3)
    assert (size, n_id[:3].tolist()) == (3, [4, 30, 11])
    assert n_id.unique().numel() == n_id.numel()
    outer, inner = adjs
    assert inner.size[1] == 3
    assert outer.size == (n_id.numel(), inner.size[0])
    degree = torch.bincount(data.edge_index[1], minlength=50)
    for adj, most in ((outer, 1000), (inner, 4)):
        assert torch.equal(n_id[adj.edge_index], data.edge_index[:, adj.e_id])
        got = torch.bincount(adj.edge_index[1], minlength=adj.size[1])
        assert torch.equal(got, degree[n_id[: adj.size[1]]].clamp(max=most))


def test_the_old_sampler_takes_masks_transforms_and_sparse_matrices() -> None:
    data = unsorted()
    mask = torch.arange(50) < 6
    loader = NeighborSampler(
        data.edge_index, [2], mask, return_e_id=False, transform=lambda *parts: parts, batch_size=6, collate_fn=None
    )
    assert str(loader) == "NeighborSampler(sizes=[2])"
    ((_, n_id, adj),) = loader
    assert adj.e_id is None
    assert n_id[:6].tolist() == [*range(6)]
    matrix = torch.sparse_coo_tensor(data.edge_index.flip(0), torch.arange(600.0), (50, 50)).to_sparse_csr()
    ((_, n_id, adj),) = NeighborSampler(matrix, [3], torch.tensor([7]), batch_size=1)
    assert adj.adj_t.shape == (1, n_id.numel())
    assert torch.equal(adj.adj_t.values(), matrix.values()[adj.e_id])
    assert torch.equal(matrix.col_indices()[adj.e_id], n_id[adj.adj_t.col_indices()])


# ClusterData.


def test_cluster_data_is_partitioned_by_pymetis() -> None:
    pytest.importorskip("pymetis")
    community = torch.arange(60) % 3
    ends = torch.randint(60, (2, 900), generator=torch.Generator().manual_seed(0))
    ends = ends[:, community[ends[0]] == community[ends[1]]]
    data = Data(x=torch.arange(60)[:, None], edge_index=ends, e=torch.arange(ends.size(1)), num_nodes=60)
    clusters = ClusterData(data, 3, log=False)
    assert [set((part.x.squeeze(1) % 3).tolist()) for part in clusters] in (
        [[{a}, {b}, {c}] for a in range(3) for b in range(3) for c in range(3) if len({a, b, c}) == 3]
    )
    (batch,) = ClusterLoader(clusters, batch_size=3)
    assert batch.num_edges == ends.size(1)
    assert torch.equal(batch.x[batch.edge_index].squeeze(-1), ends[:, batch.e])


# Backward and bidirectional sampling.


@pytest.mark.parametrize("weight", [None, "weight"])
def test_backward_samples_follow_edges_to_their_targets(weight: str | None) -> None:
    data = unsorted()
    flipped = data.clone()
    flipped.edge_index = data.edge_index.flip(0)
    sampler = PygNeighborSampler(data, [4, 3], weight_attr=weight, sample_direction="backward")
    loader = NeighborLoader(data, [], torch.arange(8), batch_size=8, neighbor_sampler=sampler)
    (batch,) = loader
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, batch.e_id)
    degree = torch.bincount(data.edge_index[0], minlength=50)[batch.n_id[:8]]
    assert torch.equal(torch.bincount(batch.edge_index[0], minlength=batch.num_nodes)[:8], degree.clamp(max=4))


def test_backward_samples_of_several_types_keep_the_types_and_attributes_of_the_data() -> None:
    data = shuffled_shop()
    counts = {BOUGHT: [2, 1], BOUGHT_BY: [0, 3], KNOWS: [1, 1]}
    for num_neighbors in (counts, [2, 2]):
        sampler = PygNeighborSampler(data, num_neighbors, weight_attr="weight", sample_direction="backward")
        (batch,) = NodeLoader(data, sampler, input_nodes=("user", torch.arange(6)), batch_size=6)
        assert_edges_of(batch, data)
        assert set(batch.num_sampled_edges_dict) == set(data.edge_types)
        if num_neighbors is counts:
            assert batch[BOUGHT].num_sampled_edges[0] == 12
            assert batch[BOUGHT_BY].num_sampled_edges[0] == 0
    weights = {edge_type: torch.zeros(300) for edge_type in data.edge_types}
    weights[BOUGHT][::2] = 1.0  # only these are drawn, as far as a node has enough of them
    for edge_type, values in weights.items():
        data[edge_type].weight = values if edge_type == BOUGHT else torch.ones(300)
    sampler = PygNeighborSampler(data, {BOUGHT: [1], BOUGHT_BY: [0], KNOWS: [0]}, weight_attr="weight",
                                 sample_direction="backward")  # fmt: skip
    (batch,) = NodeLoader(data, sampler, input_nodes=("user", None), batch_size=30)
    assert (batch[BOUGHT].e % 2 == 0).all()


def test_backward_sampling_of_links_works_too() -> None:
    data = unsorted()
    sampler = PygNeighborSampler(data, [3], sample_direction="backward")
    loader = LinkNeighborLoader(data, [], batch_size=64, neighbor_sampler=sampler)
    batch = next(iter(loader))
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_backward_sampling_refuses_times_and_adj_t() -> None:
    with pytest.raises(NotImplementedError, match="Temporal Sampling not yet supported for backward"):
        PygNeighborSampler(one_type(), [2], time_attr="time", sample_direction="backward")
    matrix = torch.eye(3).to_sparse_csr()
    with pytest.raises(ValueError, match="needs graphs with edge_index, not adj_t"):
        PygNeighborSampler(Data(adj_t=matrix, num_nodes=3), [2], sample_direction="backward")


@pytest.mark.parametrize("disjoint", [False, True])
def test_both_ways_takes_the_edges_of_both_directions(disjoint: bool) -> None:
    data = unsorted(60)
    hops = 1 if disjoint else 2  # PyG 2.8's own code fails on disjoint samples of several hops
    sampler = PygBidirectionalSampler(data, [-1] * hops, disjoint=disjoint)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([3, 8])))
    assert torch.equal(out.node[torch.stack([out.row, out.col])], data.edge_index[:, out.edge])
    around = k_hop_subgraph([3, 8], hops, torch.cat([data.edge_index, data.edge_index.flip(0)], 1), num_nodes=50)[0]
    assert out.node.unique().tolist() == around.tolist()
    with pytest.raises(RuntimeError, match="negative sampling"):
        sampler.sample_from_edges(None, neg_sampling="binary")
    with pytest.raises(RuntimeError, match="edge delimited"):
        PygBidirectionalSampler(data, {("a", "to", "a"): [1]})  # type: ignore[arg-type]

"""NeighborLoader without pyg-lib: PyG's arguments, and batches as PyG documents them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.made_graphs import BOUGHT, BOUGHT_BY, KNOWS, full_walk, one_type, shop
from torch_geometric import loader as pyg_loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.testing.feature_store import MyFeatureStore
from torch_geometric.testing.graph_store import MyGraphStore
from torch_geometric.utils import k_hop_subgraph

from clusterctl import pyg
from clusterctl.pyg import NeighborLoader

SEEDS = torch.tensor([3, 17, 8, 41])


def only_batch(data: Any, num_neighbors: Any, **options: Any) -> Any:
    options = {"input_nodes": SEEDS, "batch_size": 100, **options}
    torch.manual_seed(1)
    (batch,) = NeighborLoader(data, num_neighbors, **options)
    return batch


def assert_edges_of(graph: Data, batch: Data) -> None:
    assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, graph.edge_attr[batch.e_id])
    assert torch.equal(batch.x, graph.x[batch.n_id])


@pytest.mark.parametrize("name", ["NeighborLoader", "LinkNeighborLoader"])
def test_the_arguments_match_pyg(name: str) -> None:
    def arguments(loader: type) -> list[tuple[str, Any, Any]]:
        return [(each.name, each.default, each.kind) for each in inspect.signature(loader).parameters.values()]

    assert arguments(getattr(pyg, name)) == arguments(getattr(pyg_loader, name))


def test_full_neighbourhoods_match_k_hop_subgraph() -> None:
    graph = one_type()
    batch = only_batch(graph, [-1, -1])
    nodes, _, _, _ = k_hop_subgraph(SEEDS, 2, graph.edge_index)
    assert torch.equal(batch.n_id.sort().values, nodes)
    assert_edges_of(graph, batch)


@pytest.mark.parametrize("disjoint", [False, True])
def test_nodes_and_edges_are_in_the_order_of_pyg_lib(disjoint: bool) -> None:
    graph = one_type(edges=150)
    batch = only_batch(graph, [-1, -1, -1], disjoint=disjoint, is_sorted=True)
    seeds = [(number if disjoint else 0, node) for number, node in enumerate(SEEDS.tolist())]
    nodes, edges = full_walk({("", "", ""): graph.edge_index}, [""], {"": seeds}, 3)
    assert batch.n_id.tolist() == [node for _, node in nodes[""]]
    assert torch.stack([*batch.edge_index, batch.e_id], dim=1).tolist() == edges[("", "", "")]
    if disjoint:
        assert batch.batch.tolist() == [seed for seed, _ in nodes[""]]
    else:
        assert batch.batch is None


@pytest.mark.parametrize("disjoint", [False, True])
def test_typed_nodes_and_edges_are_in_the_order_of_pyg_lib(disjoint: bool) -> None:
    graph = shop(edges=60)
    batch = only_batch(graph, [-1, -1], input_nodes=("item", SEEDS[:3]), disjoint=disjoint, is_sorted=True)
    seeds = [(number if disjoint else 0, node) for number, node in enumerate(SEEDS[:3].tolist())]
    edges_by_type = {edge_type: graph[edge_type].edge_index for edge_type in graph.edge_types}
    nodes, edges = full_walk(edges_by_type, graph.node_types, {"item": seeds}, 2)
    for node_type in graph.node_types:
        assert batch[node_type].n_id.tolist() == [node for _, node in nodes[node_type]]
        assert torch.equal(batch[node_type].x.squeeze(1).long(), batch[node_type].n_id)
        if disjoint:
            assert batch[node_type].batch.tolist() == [seed for seed, _ in nodes[node_type]]
        assert sum(batch[node_type].num_sampled_nodes) == batch[node_type].num_nodes
    for edge_type in graph.edge_types:
        store = batch[edge_type]
        assert torch.stack([*store.edge_index, store.e_id], dim=1).tolist() == edges[edge_type]
        assert sum(store.num_sampled_edges) == store.edge_index.size(1)


def test_each_edge_type_has_its_own_fan_out() -> None:
    graph = shop()
    counts = {BOUGHT: [3, 2], BOUGHT_BY: [0, 4], KNOWS: [5, 0]}
    batch = only_batch(graph, counts, input_nodes=("user", SEEDS[:3]))
    assert batch[BOUGHT_BY].num_sampled_edges[0] == batch[KNOWS].num_sampled_edges[1] == 0
    assert batch[KNOWS].num_sampled_edges[0] == 15
    assert batch[KNOWS].edge_index[1].bincount().tolist() == [5, 5, 5]


def test_an_induced_subgraph_has_all_edges_among_its_nodes() -> None:
    graph = one_type()
    batch = only_batch(graph, [3, 2], subgraph_type="induced")
    inside = torch.isin(graph.edge_index, batch.n_id).all(0).nonzero().squeeze(1)
    assert torch.equal(batch.e_id.sort().values, inside)
    assert batch.n_id[: SEEDS.numel()].tolist() == SEEDS.tolist()
    assert "num_sampled_nodes" not in batch
    assert_edges_of(graph, batch)


def test_a_typed_induced_subgraph_has_all_edges_among_its_nodes() -> None:
    graph = shop()
    batch = only_batch(graph, [3, 2], input_nodes=("item", SEEDS[:3]), subgraph_type="induced")
    for edge_type in graph.edge_types:
        ends = graph[edge_type].edge_index
        inside = torch.isin(ends[0], batch[edge_type[0]].n_id) & torch.isin(ends[1], batch[edge_type[2]].n_id)
        assert torch.equal(batch[edge_type].e_id.sort().values, inside.nonzero().squeeze(1))


def test_a_bidirectional_subgraph_has_every_edge_in_both_directions() -> None:
    graph = one_type()
    one_way = only_batch(graph, [3, 2])
    batch = only_batch(graph, [3, 2], subgraph_type="bidirectional")
    pairs = set(map(tuple, one_way.edge_index.t().tolist()))
    assert set(map(tuple, batch.edge_index.t().tolist())) == pairs | {(target, source) for source, target in pairs}
    assert torch.equal(batch.n_id, one_way.n_id)
    assert "num_sampled_edges" not in batch


def test_a_bidirectional_sample_can_keep_the_original_edges() -> None:
    graph = one_type()
    sampler = NeighborLoader(graph, [3], subgraph_type="bidirectional").node_sampler
    sampler.keep_orig_edges = True
    found = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=SEEDS))
    assert found.num_sampled_edges == [found.orig_col.numel()] == [12]
    assert found.orig_col.tolist() == sorted([0, 1, 2, 3] * 3)


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}], ids=str)
def test_a_sample_has_the_dtype_of_the_graphs_edges(options: dict[str, Any]) -> None:
    graph = one_type()
    wide = only_batch(graph, [4, 2], **options)
    graph.edge_index = graph.edge_index.int()
    narrow = only_batch(graph, [4, 2], **options)
    for name in ("edge_index", "n_id", "batch") if "disjoint" in options else ("edge_index", "n_id"):
        assert narrow[name].dtype == torch.int32
        assert torch.equal(narrow[name].long(), wide[name])
    graphs = shop()
    for edge_type in graphs.edge_types:
        graphs[edge_type].edge_index = graphs[edge_type].edge_index.int()
    batch = only_batch(graphs, [3], input_nodes=("item", SEEDS[:3]), **options)
    assert batch["user"].n_id.dtype == batch[BOUGHT].edge_index.dtype == torch.int32


def test_the_deprecated_directed_argument_still_induces_the_subgraph() -> None:
    with pytest.warns(UserWarning, match="subgraph_type='induced'"):
        batch = only_batch(one_type(), [3], directed=False)
    assert "num_sampled_nodes" not in batch


def test_disjoint_samples_share_no_nodes_and_do_not_depend_on_the_batch() -> None:
    graph = one_type()
    seeds = torch.tensor([5, 9, 5, 30, 31, 32])

    def trees(batch_size: int) -> list[list[int]]:
        torch.manual_seed(2)
        found = []
        for batch in NeighborLoader(graph, [4, 3], input_nodes=seeds, batch_size=batch_size, disjoint=True):
            assert (batch.batch[batch.edge_index[0]] == batch.batch[batch.edge_index[1]]).all()
            for number in range(batch.batch_size):
                own = batch.n_id[batch.batch == number]
                assert own.unique().numel() == own.numel()
                found.append(batch.e_id[batch.batch[batch.edge_index[1]] == number].sort().values.tolist())
        return found

    alone = trees(1)
    assert alone == trees(6) == trees(4)
    assert alone[0] != alone[2]  # a repeated node is sampled twice


def test_samples_do_not_depend_on_the_number_of_workers_and_differ_between_epochs() -> None:
    graph = one_type()

    def epochs(**workers: Any) -> list[list[list[int]]]:
        torch.manual_seed(3)
        loader = NeighborLoader(graph, [4, 3], input_nodes=torch.arange(20), batch_size=6, **workers)
        return [[batch.e_id.tolist() for batch in loader] for _ in range(2)]

    alone = epochs()
    assert alone == epochs(num_workers=2, persistent_workers=True)
    assert alone[0] != alone[1]


def test_a_seed_may_repeat() -> None:
    graph = one_type()
    batch = only_batch(graph, [4, 2], input_nodes=torch.tensor([3, 17, 3, 8]))
    assert batch.n_id[:4].tolist() == [3, 17, 3, 8]
    assert_edges_of(graph, batch)


def test_a_node_has_different_samples_in_different_batches() -> None:
    graph = one_type()
    loader = NeighborLoader(graph, [4], input_nodes=torch.tensor([7, 7]), batch_size=1)
    torch.manual_seed(1)
    one, other = (batch.e_id.tolist() for batch in loader)
    assert one != other


def test_every_set_of_neighbours_is_equally_likely() -> None:
    graph = Data(edge_index=torch.tensor([[1, 2, 3, 4, 5], [0] * 5]), num_nodes=6)
    loader = NeighborLoader(graph, [2], input_nodes=torch.zeros(4000, dtype=torch.int64), batch_size=500, disjoint=True)
    torch.manual_seed(1)
    sets = torch.cat([batch.n_id[batch.edge_index[0]].view(-1, 2).sort().values for batch in loader])
    seen = (sets[:, 0] * 6 + sets[:, 1]).unique(return_counts=True)[1]
    assert seen.numel() == 10
    assert float(((seen - 400) ** 2 / 400).sum()) < 27.9  # chi-square, 9 degrees of freedom, p = 0.001


def test_masks_transforms_and_calls_work_as_in_pyg() -> None:
    graph = one_type()
    mask = torch.zeros(50, dtype=torch.bool)
    mask[SEEDS] = True
    batch = only_batch(graph, [2], input_nodes=mask, transform=lambda found: Data(seeds=found.input_id))
    assert batch.seeds.tolist() == SEEDS.sort().values.tolist()
    assert NeighborLoader(graph, [2], input_nodes=SEEDS)([1, 2]).n_id[:2].tolist() == [17, 8]
    assert only_batch(graph, [2], input_nodes=None, batch_size=50).batch_size == 50


def test_stores_give_the_same_sample_as_their_graph() -> None:
    graph = shop()
    features, edges = MyFeatureStore(), MyGraphStore()
    for node_type in graph.node_types:
        features.put_tensor(graph[node_type].x, group_name=node_type, attr_name="x", index=None)
    for edge_type in graph.edge_types:
        size = (graph[edge_type[0]].num_nodes, graph[edge_type[2]].num_nodes)
        edges.put_edge_index(graph[edge_type].edge_index, edge_type=edge_type, layout="coo", size=size)
    counts = {BOUGHT: [-1, -1], BOUGHT_BY: [-1, -1], KNOWS: [0, -1]}
    stored = only_batch((features, edges), counts, input_nodes=("item", SEEDS[:3]))
    held = only_batch(graph, counts, input_nodes=("item", SEEDS[:3]))
    for node_type in graph.node_types:
        assert torch.equal(stored[node_type].x.squeeze(1).long(), stored[node_type].n_id)
        assert set(stored[node_type].n_id.tolist()) == set(held[node_type].n_id.tolist())
    for edge_type in graph.edge_types:
        ends = [
            sorted(
                zip(
                    batch[edge_type[0]].n_id[batch[edge_type].edge_index[0]].tolist(),
                    batch[edge_type[2]].n_id[batch[edge_type].edge_index[1]].tolist(),
                    strict=True,
                )
            )
            for batch in (stored, held)
        ]
        assert ends[0] == ends[1] != []


def test_a_homogeneous_pair_of_stores_works_too() -> None:
    graph = one_type()
    features, edges = MyFeatureStore(), MyGraphStore()
    features.put_tensor(graph.x, group_name=None, attr_name="x", index=None)
    edges.put_edge_index(graph.edge_index, edge_type=None, layout="coo", size=(50, 50))
    batch = only_batch((features, edges), [-1])
    assert batch.edge_index.size(1) == int(torch.isin(graph.edge_index[1], SEEDS).sum())
    assert torch.equal(batch.x.squeeze(1).long(), batch.n_id)


def test_isolated_nodes_and_graphs_without_edges_are_supported() -> None:
    graph = Data(x=torch.arange(4), edge_index=torch.empty(2, 0, dtype=torch.int64))
    batch = only_batch(graph, [2, -1], input_nodes=torch.tensor([2, 0]))
    assert batch.n_id.tolist() == [2, 0]
    assert batch.num_sampled_nodes == [2, 0, 0]
    assert batch.num_sampled_edges == [0, 0]


def failure(call: Callable[[], object]) -> str:
    with pytest.raises((ValueError, NotImplementedError, KeyError)) as raised:
        call()
    return f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.parametrize(
    "options",
    [
        {"input_time": torch.arange(4)},
        {"time_attr": "no_such"},
        {"subgraph_type": "half"},
        {"data": shop(), "input_nodes": "user", "time_attr": "no_such"},
        {"data": 3},
        {"data": (HeteroData(), HeteroData()), "input_nodes": SEEDS, "weight_attr": "weight"},
    ],
)
@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
def test_invalid_arguments_raise_the_same_errors_as_pyg(options: dict[str, Any]) -> None:
    options = {"data": one_type(), "num_neighbors": [2], "input_nodes": SEEDS, **options}

    def begin(loader: Any) -> Callable[[], object]:
        return lambda: next(iter(loader(**options)))

    ours = failure(begin(NeighborLoader))
    theirs = failure(begin(pyg_loader.NeighborLoader))
    assert ours.replace("PygNeighborSampler", "NeighborSampler") == theirs


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({BOUGHT: [1]}, "Missing number of neighbors for edge type"),
        ({("a", "b", "c"): [1]}, "Not all edge types specified in 'num_neighbors' exist in the graph"),
        ({BOUGHT: [1], BOUGHT_BY: [1, 1], KNOWS: [1]}, "Number of hops must be the same across all edge types"),
    ],
)
def test_fan_outs_that_do_not_match_the_graph_are_rejected(counts: dict[Any, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        only_batch(shop(), counts, input_nodes="user")


def test_sorted_edges_must_be_contiguous() -> None:
    graph = one_type()
    graph.edge_index = graph.edge_index.t().contiguous().t()
    with pytest.raises(RuntimeError, match="Non-contiguous 'col'"):
        only_batch(graph, [2], is_sorted=True)
    assert only_batch(graph, [2]).num_edges == 8


def test_disjoint_induced_subgraphs_are_rejected() -> None:
    loader = NeighborLoader(one_type(), [2], SEEDS, disjoint=True, subgraph_type="induced")
    with pytest.raises(ValueError, match="'disjoint' sampling not supported for neighbor sampling with"):
        next(iter(loader))

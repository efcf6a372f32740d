"""PyG's loaders on graphs that hold a sparse `adj_t`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from support.made_graphs import BOUGHT, one_type, shop
from torch_geometric.data import Data
from torch_geometric.transforms import ToSparseTensor

from clusterctl.pyg import LinkNeighborLoader, NeighborLoader

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch warns about CSR tensors once per process
SEEDS = torch.tensor([3, 17, 8, 29])
LAYOUTS = ["sparse_csr", "sparse_csc", "sparse_coo"]


def simple(nodes: int = 50, edges: int = 400) -> Data:
    """A graph without duplicate edges, sorted by target; `edge_attr` numbers the edges."""
    graph = one_type(nodes, edges)
    pairs = graph.edge_index.flip(0).unique(dim=1).flip(0).contiguous()
    return Data(x=graph.x, edge_index=pairs, edge_attr=torch.arange(pairs.size(1)).float() + 1)


def sparse(graph: Data, layout: str) -> Data:
    sources, targets = graph.edge_index
    adj_t = torch.sparse_coo_tensor(torch.stack([targets, sources]), graph.edge_attr, (50, 50)).coalesce()
    to = {"sparse_csr": adj_t.to_sparse_csr, "sparse_csc": adj_t.to_sparse_csc, "sparse_coo": lambda: adj_t}
    return Data(x=graph.x, adj_t=to[layout](), edge_attr=graph.edge_attr)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}], ids=str)
def test_a_sparse_graph_gives_the_same_sample_as_its_edges(layout: str, options: dict[str, Any]) -> None:
    graph = simple()
    held = sparse(graph, layout)
    torch.manual_seed(0)
    (plain,) = NeighborLoader(graph, [4, -1], SEEDS, batch_size=4, is_sorted=True, **options)
    torch.manual_seed(0)
    (batch,) = NeighborLoader(held, [4, -1], SEEDS, batch_size=4, is_sorted=True, **options)
    assert batch.adj_t.layout == getattr(torch, layout)
    assert "edge_index" not in batch
    assert torch.equal(batch.n_id, plain.n_id)
    assert torch.equal(batch.e_id, plain.e_id)
    wanted = torch.zeros(plain.num_nodes, plain.num_nodes)
    wanted[plain.edge_index[1], plain.edge_index[0]] = plain.edge_attr
    assert torch.equal(batch.adj_t.to_dense(), wanted)
    assert "adj_t" in held
    assert "edge_index" not in held


def test_a_transform_receives_the_sparse_batch() -> None:
    held = sparse(simple(), "sparse_csr")
    (batch,) = NeighborLoader(held, [4], SEEDS, batch_size=4, transform=lambda found: Data(a=found.adj_t.size(0)))
    assert batch.a > 4


def test_all_edges_of_a_sparse_graph_are_seeds_of_a_link_loader() -> None:
    held = sparse(simple(), "sparse_csr")
    batch = next(iter(LinkNeighborLoader(held, [4], batch_size=30, neg_sampling="binary")))
    assert batch.edge_label_index.shape == (2, 60)
    assert batch.adj_t.layout == torch.sparse_csr


def test_sparse_graphs_can_have_several_types() -> None:
    graph = shop()
    for edge_type in graph.edge_types:
        graph[edge_type].edge_index = graph[edge_type].edge_index.flip(0).unique(dim=1).flip(0)
        del graph[edge_type].weight, graph[edge_type].edge_time
    held = ToSparseTensor(layout=torch.sparse_csr)(graph.clone())
    (batch,) = NeighborLoader(held, [-1], ("item", SEEDS), batch_size=4)
    assert batch[BOUGHT].adj_t.shape == (batch["item"].num_nodes, batch["user"].num_nodes)
    users, items = graph[BOUGHT].edge_index
    for row, item in enumerate(SEEDS.tolist()):
        got = batch["user"].n_id[batch[BOUGHT].adj_t[row].to_dense().nonzero().squeeze(1)]
        assert sorted(got.tolist()) == sorted(users[items == item].tolist())


@pytest.mark.skipif(find_spec("torch_sparse") is None, reason="torch-sparse is not installed")
def test_a_torch_sparse_tensor_gives_the_same_sample_as_its_edges() -> None:
    graph = simple()
    held = ToSparseTensor(attr="edge_attr")(graph.clone())
    (batch,) = NeighborLoader(held, [-1], SEEDS, batch_size=4)
    (plain,) = NeighborLoader(graph, [-1], SEEDS, batch_size=4)
    assert torch.equal(batch.n_id, plain.n_id)
    assert batch.adj_t.nnz() == plain.num_edges

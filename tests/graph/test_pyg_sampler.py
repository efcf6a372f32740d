"""PyG's own loaders with our sampler return edges of the graph, sampled by PyG's rules."""

from __future__ import annotations

from collections import Counter

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader

from clusterctl.engine.graph.pyg.sampler import PygNeighborSampler

OF_USER, TO = ("item", "rev_to", "user"), ("user", "to", "item")


def data(nodes: int = 50, edges: int = 600) -> Data:
    random = torch.Generator().manual_seed(0)
    edge_index = torch.randint(nodes, (2, edges), generator=random)
    return Data(
        x=torch.arange(nodes)[:, None].float(), edge_index=edge_index, edge_attr=torch.arange(edges), num_nodes=nodes
    )


def shop() -> HeteroData:
    random = torch.Generator().manual_seed(0)
    found = HeteroData()
    found["user"].num_nodes, found["item"].num_nodes = 30, 40
    found[TO].edge_index = torch.stack([torch.randint(count, (300,), generator=random) for count in (30, 40)])
    found[OF_USER].edge_index = found[TO].edge_index.flip(0)
    return found


def test_a_node_loader_returns_edges_of_the_graph_with_their_features() -> None:
    graph = data()
    torch.manual_seed(1)
    batches = list(NodeLoader(graph, PygNeighborSampler(graph, [4, 3]), input_nodes=torch.arange(20), batch_size=8))
    assert [batch.batch_size for batch in batches] == [8, 8, 4]
    for batch in batches:
        assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.x.squeeze(1).long(), batch.n_id)
        assert batch.e_id.unique().numel() == batch.e_id.numel()
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges


def test_a_hop_samples_the_full_fan_out_of_new_nodes_only() -> None:
    graph = data()
    (batch,) = NodeLoader(graph, PygNeighborSampler(graph, [4, 3]), input_nodes=torch.arange(5), batch_size=5)
    degree = torch.bincount(graph.edge_index[1], minlength=50)[batch.n_id]
    got = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
    seeds, new, _ = batch.num_sampled_nodes
    assert torch.equal(got[:seeds], degree[:seeds].clamp(max=4))
    assert torch.equal(got[seeds : seeds + new], degree[seeds : seeds + new].clamp(max=3))
    assert (got[seeds + new :] == 0).all()


def test_minus_one_takes_every_neighbour() -> None:
    graph = data()
    (batch,) = NodeLoader(graph, PygNeighborSampler(graph, [-1]), input_nodes=torch.arange(5), batch_size=5)
    assert batch.num_edges == int((graph.edge_index[1] < 5).sum())


def test_with_replacement_every_new_node_with_neighbours_gets_the_full_fan_out() -> None:
    graph = data()
    graph.edge_index = graph.edge_index[:, graph.edge_index[1] != 3]  # an isolated seed
    graph.edge_attr = torch.arange(graph.edge_index.size(1))
    sampler = PygNeighborSampler(graph, [30, 2], replace=True)
    (batch,) = NodeLoader(graph, sampler, input_nodes=torch.arange(5), batch_size=5)
    assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])
    got = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
    seeds, new, _ = batch.num_sampled_nodes
    assert got[:seeds].tolist() == [30, 30, 30, 0, 30]
    assert (got[seeds : seeds + new] == 2).all()
    assert batch.e_id.unique().numel() < batch.e_id.numel()


def test_samples_depend_on_torchs_seed() -> None:
    graph = data()

    def sampled(seed: int) -> list[int]:
        torch.manual_seed(seed)
        (batch,) = NodeLoader(graph, PygNeighborSampler(graph, [4]), input_nodes=torch.arange(9), batch_size=9)
        return batch.e_id.tolist()  # type: ignore[no-any-return]

    assert sampled(1) == sampled(1) != sampled(2)


def test_a_link_loader_returns_the_ends_of_its_edges_and_negatives() -> None:
    graph = shop()
    sampler = PygNeighborSampler(graph, {OF_USER: [4, 2], TO: [3, 0]})
    loader = LinkLoader(
        graph, sampler, edge_label_index=(TO, graph[TO].edge_index[:, :20]), neg_sampling="binary", batch_size=10
    )
    for batch in loader:
        store = batch[TO]
        assert store.edge_label.tolist() == [1.0] * 10 + [0.0] * 10
        users, items = batch["user"].n_id[store.edge_label_index[0]], batch["item"].n_id[store.edge_label_index[1]]
        wanted = graph[TO].edge_index[:, store.input_id]
        assert torch.equal(torch.stack([users, items])[:, :10], wanted)
        for edge_type in (OF_USER, TO):
            source, _, target = edge_type
            rows, columns = batch[edge_type].edge_index
            ends = torch.stack([batch[source].n_id[rows], batch[target].n_id[columns]])
            assert torch.equal(ends, graph[edge_type].edge_index[:, batch[edge_type].e_id])
            most = Counter(columns.tolist()).most_common(1)[0][1]
            assert most <= 4


def test_a_homogeneous_link_loader_works_too() -> None:
    graph = data()
    loader = LinkLoader(graph, PygNeighborSampler(graph, [3, 2]), neg_sampling="triplet", batch_size=64)
    batch = next(iter(loader))
    assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])
    assert torch.equal(batch.n_id[batch.src_index], graph.edge_index[0, :64])

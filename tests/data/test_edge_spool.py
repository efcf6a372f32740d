"""Spooled edges give the same adjacency as edges in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clusterctl.engine.data import edge_spool
from clusterctl.engine.data.edge_spool import EdgeSpool, adjacency
from clusterctl.engine.graph.storage import compressed


def spooled(folder: Path, edges: torch.Tensor, pieces: int) -> EdgeSpool:
    with EdgeSpool(folder) as spool:
        for piece in edges[0].chunk(pieces):
            spool.add_sources(piece.numpy())
        for piece in edges[1].chunk(pieces + 1):
            spool.add_targets(piece.numpy())
    return spool


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("edges_at_once", [7, 1 << 20])
def test_spooled_edges_give_the_adjacency_of_the_distinct_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undirected: bool, shuffled: bool, edges_at_once: int
) -> None:
    monkeypatch.setattr(edge_spool, "_EDGES_AT_ONCE", edges_at_once)
    edges = (
        torch.randint(50, (2, 400), generator=torch.Generator().manual_seed(0)) * 2 % 83
    )  # some repeat or are self loops
    wanted = torch.cat([edges, edges.flip(0)], dim=1) if undirected else edges
    found = adjacency(spooled(tmp_path, edges, 3), 90, 90, undirected=undirected, shuffled=shuffled)
    expected = compressed(wanted.unique(dim=1), 90, shuffled=shuffled)
    assert all(map(torch.equal, found, expected))
    assert found[1].untyped_storage().nbytes() == 4 * found[1].numel()  # torch.save writes the whole storage


def test_edges_can_connect_two_node_types(tmp_path: Path) -> None:
    edges = torch.tensor([[9, 0, 9, 9, 3], [1, 0, 1, 0, 1]])
    found = adjacency(spooled(tmp_path, edges, 1), 2, 10, undirected=False, shuffled=False)
    assert all(map(torch.equal, found, compressed(edges.unique(dim=1), 2, 10)))


def test_a_graph_without_edges_has_an_empty_adjacency(tmp_path: Path) -> None:
    spool = spooled(tmp_path, torch.empty(2, 0, dtype=torch.int64), 1)
    indptr, indices = adjacency(spool, 3, 3, undirected=True, shuffled=True)
    assert indptr.tolist() == [0, 0, 0, 0]
    assert indices.tolist() == []

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from support.ranks import IMDB

from clusterctl.engine.data.graph_sets import raw_identity, read_raw
from clusterctl.shared.errors import TaskError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three graphs: a triangle, a single node, and two connected nodes; nodes have labels."""
    raw = tmp_path / "data ü" / "raw"
    raw.mkdir(parents=True)
    edges = [(1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1), (5, 6), (6, 5)]
    (raw / "TINY_A.txt").write_text("".join(f"{a}, {b}\n" for a, b in edges))
    (raw / "TINY_graph_indicator.txt").write_text("1\n1\n1\n2\n3\n3\n")
    (raw / "TINY_graph_labels.txt").write_text("1\n-1\n1\n")
    (raw / "TINY_node_labels.txt").write_text("0\n1\n0\n1\n0\n0\n")
    return raw.parent


def test_graphs_keep_their_nodes_edges_labels_and_classes(root: Path, tmp_path: Path) -> None:
    raw = root / "raw"
    raw.chmod(0o555)
    graphs = read_raw(raw_identity(str(root)), tmp_path / "scratch")
    assert graphs.bounds.tolist() == [0, 3, 4, 6]
    assert graphs.degree.tolist() == [2, 2, 2, 0, 1, 1]
    assert graphs.indices.tolist() == [1, 2, 0, 2, 0, 1, 5, 4]
    assert graphs.y.tolist() == [1, 0, 1]
    assert graphs.x.argmax(1).tolist() == [0, 1, 0, 1, 0, 0]
    assert {path.name for path in root.iterdir()} == {"raw"}


def test_imdb_binary_is_complete(tmp_path: Path) -> None:
    graphs = read_raw(raw_identity(str(IMDB)), tmp_path)
    assert (graphs.num_graphs, graphs.num_nodes, graphs.indices.numel()) == (1000, 19773, 193062)
    assert graphs.y.bincount().tolist() == [500, 500]
    assert graphs.x.shape == (19773, 0)
    assert torch.equal(graphs.bounds[[0, -1]], torch.tensor([0, 19773]))


def test_the_identity_of_the_data_changes_with_its_files(root: Path) -> None:
    before = raw_identity(str(root))
    assert raw_identity(f"{root}/../{root.name}") == before
    os.utime(root / "raw" / "TINY_A.txt", (1, 1))
    assert raw_identity(str(root)) != before


def test_missing_or_damaged_files_are_a_user_error(root: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="data.root is not set"):
        raw_identity(None)
    with pytest.raises(TaskError, match=r"expected one data set in .*, found no file \*_A.txt"):
        raw_identity(str(tmp_path / "nowhere"))
    (root / "raw" / "TINY_A.txt").write_text("1, x\n")
    with pytest.raises(TaskError, match="cannot read .* as a TU data set"):
        read_raw(raw_identity(str(root)), tmp_path / "scratch")
    (root / "raw" / "TINY_graph_labels.txt").unlink()
    with pytest.raises(TaskError, match="no data: .*TINY_graph_labels.txt"):
        raw_identity(str(root))
    shutil.copy(root / "raw" / "TINY_A.txt", root / "raw" / "OTHER_A.txt")
    with pytest.raises(TaskError, match="OTHER, TINY"):
        raw_identity(str(root))


def test_graphs_that_pyg_would_drop_are_reported(root: Path, tmp_path: Path) -> None:
    """Graphs without edges at the end of the file: PyG 2.8 counts graphs by their edges."""
    edges = (root / "raw" / "TINY_A.txt").read_text().splitlines()
    (root / "raw" / "TINY_A.txt").write_text("\n".join(edges[:-2]) + "\n")
    with pytest.raises(TaskError, match="PyG reads 1 of 3 graphs"):
        read_raw(raw_identity(str(root)), tmp_path / "scratch")


@pytest.mark.parametrize("edge", ["3, 5", "5, 3"])
def test_an_edge_between_two_graphs_is_reported(root: Path, tmp_path: Path, edge: str) -> None:
    """Rows of other graphs would be read, or none at all."""
    with (root / "raw" / "TINY_A.txt").open("a") as file:
        file.write(f"{edge}\n")
    with pytest.raises(TaskError, match=r"TINY_A\.txt: an edge joins two graphs"):
        read_raw(raw_identity(str(root)), tmp_path)

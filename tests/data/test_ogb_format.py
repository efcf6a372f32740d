"""Reading Cora in each layout of the Open Graph Benchmark, and reporting mistakes in the files."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.made_graphs import cora, ends, nodes_of, write_cora

from clusterctl.engine.data import ogb
from clusterctl.engine.data.ogb import raw_identity, read_raw
from clusterctl.engine.data.ogb_like import write_archives, write_tables
from clusterctl.engine.graph.storage import Graph, compressed
from clusterctl.engine.workloads import node_classification
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import Data

NAMES = ["ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-mag"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Cora with a tenth of its features, for smaller files."""
    whole = cora(tmp_path_factory.mktemp("scratch"))
    return replace(whole, x=whole.x[:, ::10].contiguous())


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def assert_same(found: Graph, wanted: Graph) -> None:
    assert found.num_classes == wanted.num_classes
    optional = ("num_classes", "numbers", "edge_weight", "edge_attr")
    for name in (field.name for field in fields(Graph) if field.name not in optional):
        assert getattr(found, name).dtype == getattr(wanted, name).dtype
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name


@pytest.mark.parametrize("name", NAMES)
def test_cora_is_the_same_in_every_layout(tmp_path: Path, scratch: Path, graph: Graph, name: str) -> None:
    root = write_cora(name, tmp_path / "data", graph)
    assert ogb.is_here(root)
    assert_same(read_raw(root, scratch), graph)


def test_the_layout_is_detected_without_writing_next_to_the_files(tmp_path: Path, graph: Graph) -> None:
    root = write_cora("ogbn-papers100M", tmp_path / "data", graph)
    before = sorted(root.rglob("*"))
    for folder in (root, *filter(Path.is_dir, before)):
        folder.chmod(0o555)
    recipe = node_classification.recipe(Data(root=str(root)))
    (tmp_path / "prepared").mkdir()
    recipe.prepare(tmp_path / "prepared")
    assert recipe.name == "ogb"
    assert [path.name for path in (tmp_path / "prepared").iterdir()] == ["graph.pt"]
    assert sorted(root.rglob("*")) == before
    assert node_classification.recipe(Data(root=str(root), undirected=False)).folder != recipe.folder


def test_citations_can_count_in_one_direction_only(tmp_path: Path, scratch: Path) -> None:
    edges = torch.tensor([[0, 1, 1, 3], [2, 2, 2, 0]])  # one edge is repeated
    root = small(tmp_path / "data", edges)
    found = read_raw(root, scratch, undirected=False)
    wanted = compressed(edges.unique(dim=1), 4, shuffled=True)
    assert torch.equal(found.indptr, wanted[0])
    assert torch.equal(found.indices, wanted[1])


@pytest.mark.parametrize("order", ["C", "F"])
def test_archived_edges_can_be_stored_by_row_or_by_column(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr("clusterctl.engine.data.number_files._BYTES_AT_ONCE", 24)  # chunks end within rows and pairs
    edges = torch.randint(4, (2, 11), generator=torch.Generator().manual_seed(0))
    root = small(tmp_path / "data", edges, archives=True)
    change_array(root / "raw" / "data.npz", "edge_index", lambda array: np.asarray(array, order=order))
    found = read_raw(root, scratch, undirected=False)
    assert torch.equal(found.indices, compressed(edges.unique(dim=1), 4, shuffled=True)[1])


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_text_can_have_any_line_endings_and_is_read_in_chunks(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    root = small(tmp_path / "data")
    wanted = read_raw(root, scratch)
    monkeypatch.setattr("clusterctl.engine.data.number_files._BYTES_AT_ONCE", size)
    for path in root.rglob("*.csv.gz"):
        text = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(text.replace(b"\n", b"\r\n").removesuffix(b"\r\n")))
    assert_same(read_raw(root, scratch), wanted)
    change_text(root / "raw" / "edge.csv.gz", "2,3", "2,4")
    assert fault_of(root, scratch) == "raw/edge.csv.gz, line 3: 4 is not a node"


def test_half_precision_and_compressed_archives_are_read(tmp_path: Path, scratch: Path) -> None:
    root = small(tmp_path / "data", archives=True)
    change_array(root / "raw" / "data.npz", "node_feat", lambda array: array.astype(np.float16))
    found = read_raw(root, scratch)
    assert found.x.dtype == torch.float32
    assert found.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize("archives", [False, True])
def test_a_node_outside_the_splits_needs_no_label(tmp_path: Path, scratch: Path, archives: bool) -> None:
    root = small(tmp_path / "data", archives=archives, labels=(1, 0, 2, -1))
    assert read_raw(root, scratch).y.tolist() == [1, 0, 2, -1]


def small(
    root: Path,
    edges: torch.Tensor | None = None,
    *,
    archives: bool = False,
    labels: tuple[int, ...] = (0, 1, 0, 1),
) -> Path:
    """Four nodes with two features, of which three are in the splits."""
    x, y = torch.arange(8.0).view(4, 2), torch.tensor(labels)
    none = torch.zeros(5, dtype=torch.int64)
    known = Graph(none, none[:0], x, y, torch.tensor([0]), torch.tensor([1]), torch.tensor([2]), num_classes=2)
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]]) if edges is None else edges
    (write_archives if archives else write_tables)(root, nodes_of(known), ends(*edges), "time")
    return root


def change_text(path: Path, old: str, new: str) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    path.write_bytes(gzip.compress(text.replace(old, new, 1).encode()))


def change_array(path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    arrays[name] = change(arrays[name])
    np.savez_compressed(path, **arrays)


def fault_of(root: Path, scratch: Path) -> str:
    """The message about `root`; its cause must be the data, and it must have a hint."""
    with pytest.raises(TaskError) as raised:
        read_raw(Path(raw_identity(root)["root"]), scratch)
    assert raised.value.cause is Cause.DATA
    assert raised.value.hint
    return raised.value.message.replace(f"{root}/", "")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("raw/edge", "1,2\n", "1,4\n", "raw/edge.csv.gz, line 2: 4 is not a node"),
        ("raw/edge", "1,2\n", "-1,2\n", "raw/edge.csv.gz, line 2: -1 is not a node"),
        ("raw/edge", "1,2\n", "1;2\n", "raw/edge.csv.gz, line 2: 1 columns, not 2"),
        ("raw/edge", "1,2\n", "1,2,3\n", "raw/edge.csv.gz, line 2: 3 columns, not 2"),
        ("raw/edge", "1,2\n", "1,2.5\n", "raw/edge.csv.gz, line 2: '2.5' is not a whole number"),
        ("raw/edge", "1,2\n", "", "raw/edge.csv.gz has 2 rows for 3 edges"),
        ("raw/node-feat", "2,3\n", "", "raw/node-feat.csv.gz has 3 rows for 4 nodes"),
        ("raw/node-feat", "2,3\n", "2,nan\n", "raw/node-feat.csv.gz, line 2: nan is not a valid feature"),
        ("raw/node-feat", "2,3\n", "2,\n", "raw/node-feat.csv.gz, line 2: '' is not a number"),
        ("raw/node-label", "0\n1\n0\n", "0\none\n0\n", "raw/node-label.csv.gz, line 2: 'one' is not a number"),
        ("raw/node-label", "0\n1\n0\n", "0\n1.5\n0\n", "raw/node-label.csv.gz, line 2: 1.5 is not a class"),
        ("raw/node-label", "0\n1\n0\n", "0\n-1\n0\n", "raw/node-label.csv.gz, line 2: -1.0 is not a class"),
        ("raw/node-label", "1\n", "", "raw/node-label.csv.gz has 3 rows for 4 nodes"),
        ("raw/node-label", "0\n1\n0\n", "nan\n1\n0\n", "split/time/train.csv.gz, line 1: 0 is a node without a label"),
        ("raw/num-node-list", "4\n", "4\n4\n", "raw/num-node-list.csv.gz lists 2 graphs"),
        ("raw/num-node-list", "4\n", "-4\n", "raw/num-node-list.csv.gz: -4 is not from 0 to 2147483647"),
        ("split/time/valid", "1\n", "7\n", "split/time/valid.csv.gz, line 1: 7 is not a node"),
    ],
)
def test_a_mistake_in_a_table_is_reported_with_its_line(
    tmp_path: Path, scratch: Path, file: str, old: str, new: str, message: str
) -> None:
    root = small(tmp_path / "data")
    change_text(root / f"{file}.csv.gz", old, new)
    assert fault_of(root, scratch) == message


def put_at(row: int, column: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[row, column] = value
        return array

    return change


@pytest.mark.parametrize(
    ("file", "name", "change", "message"),
    [
        ("data", "edge_index", put_at(1, 2, 9), "raw/data.npz, edge_index[1, 2]: 9 is not a node"),
        ("data", "edge_index", put_at(0, 1, -2), "raw/data.npz, edge_index[0, 1]: -2 is not a node"),
        ("data", "edge_index", lambda a: a[:, :2], "edge_index of raw/data.npz is int64 [2, 2], not int64 [2, 3]"),
        ("data", "edge_index", lambda a: a * 1.0, "edge_index of raw/data.npz is float64 [2, 3], not int64 [2, 3]"),
        ("data", "node_feat", lambda a: a[:3], "raw/data.npz has 3 rows for 4 nodes"),
        ("data", "node_feat", put_at(2, 1, np.inf), "raw/data.npz, node_feat, row 2: inf is not a valid feature"),
        ("data", "node_feat", np.asfortranarray, "raw/data.npz: node_feat is stored column by column"),
        ("data", "node_feat", lambda a: a.astype(object), "raw/data.npz: node_feat holds Python objects, not numbers"),
        ("data", "node_feat", lambda a: a[:, :0], "raw/data.npz has no features"),
        ("node-label", "node_label", put_at(1, 0, 0.5), "raw/node-label.npz, node_label, row 1: 0.5 is not a class"),
        ("node-label", "node_label", lambda a: a * np.nan, "raw/node-label.npz has no labels"),
        ("node-label", "node_label", lambda a: a.repeat(2, 1), "raw/node-label.npz has 2 labels for each node"),
        ("data", "num_nodes_list", lambda a: a.repeat(2), "raw/data.npz: num_nodes_list lists 2 graphs"),
    ],
)
def test_a_mistake_in_an_archive_is_reported_with_its_row(
    tmp_path: Path, scratch: Path, file: str, name: str, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    root = small(tmp_path / "data", archives=True)
    change_array(root / "raw" / f"{file}.npz", name, change)
    assert fault_of(root, scratch) == message


def test_a_missing_array_is_reported(tmp_path: Path, scratch: Path) -> None:
    root = small(tmp_path / "data", archives=True)
    np.savez(root / "raw" / "node-label.npz", label=np.zeros(4))
    assert fault_of(root, scratch) == "raw/node-label.npz has no array node_label"


@pytest.mark.parametrize("archives", [False, True])
def test_a_missing_or_truncated_file_is_reported(tmp_path: Path, scratch: Path, archives: bool) -> None:
    root = small(tmp_path / "data", archives=archives)
    paths = sorted(path for path in root.rglob("*.*z"))
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        assert fault_of(root, scratch).startswith(f"cannot read {path.relative_to(root)}: ")
        path.unlink()
        wanted = str(path.relative_to(root)).replace("split/time", "split/*")
        assert fault_of(root, scratch) == f"no data: {root} lacks {wanted}"
        path.write_bytes(content)
    assert len(paths) == (5 if archives else 8)
    read_raw(root, scratch)


def test_a_corrupted_archive_is_reported(tmp_path: Path, scratch: Path) -> None:
    root = small(tmp_path / "data", archives=True)
    path = root / "raw" / "data.npz"
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("node_feat.npy").header_offset
    content = bytearray(path.read_bytes())
    at = content.index(np.float32(5).tobytes(), begin)
    content[at] ^= 1
    path.write_bytes(content)
    assert fault_of(root, scratch).startswith("cannot read raw/data.npz: ")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("raw/triplet-type-list", "cites,paper", "cites,book", "line 2: paper,cites,book is not a relation"),
        ("raw/num-node-dict", "20", "-2", "raw/num-node-dict.csv.gz, author: -2 is not from 0 to"),
        ("raw/num-node-dict", "20", "many", "raw/num-node-dict.csv.gz is not a line of node types and a line of their"),
        ("raw/relations/paper___cites___paper/edge", "\n", "9999\n", "edge.csv.gz, line 1: "),
        ("raw/node-label/paper/node-label", "\n", "\n\n", "raw/node-label/paper/node-label.csv.gz, line 2: ''"),
    ],
)
def test_a_mistake_in_relations_is_reported(
    tmp_path: Path, scratch: Path, graph: Graph, file: str, old: str, new: str, message: str
) -> None:
    root = write_cora("ogbn-mag", tmp_path / "data", replace(graph, x=graph.x[:, :1]))
    change_text(root / f"{file}.csv.gz", old, new)
    assert message in fault_of(root, scratch)

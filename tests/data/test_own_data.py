"""What `data.load` returns: each attribute is used, refused by name, or named as unused; changes are noticed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.transforms import RandomLinkSplit

from clusterctl.engine.data.graph_sets import collection_of
from clusterctl.engine.data.own_data import own_recipe, prepared
from clusterctl.engine.data.own_links import link_graph
from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.workloads.node_classification import graph_of, relations_of
from clusterctl.shared import spec
from clusterctl.shared.errors import TaskError

NODES = 20
NAN = float("nan")


def some_data(**changes: Any) -> Data:
    """A graph of 20 nodes with `changes`; None leaves an attribute out."""
    generator = torch.Generator().manual_seed(0)
    part = torch.arange(NODES) % 4
    given = {
        "x": torch.randn(NODES, 3, generator=generator),
        "y": torch.arange(NODES) % 3,
        "edge_index": torch.randint(NODES, (2, 200), generator=generator),
        "train_mask": part < 2,
        "val_mask": part == 2,
        "test_mask": part == 3,
    }
    return Data(**{name: value for name, value in (given | changes).items() if value is not None})


def hetero_data(**changes: Any) -> HeteroData:
    data, given = HeteroData(), some_data(**changes)
    data["paper"].update({name: given[name] for name in given.to_dict() if name != "edge_index"})
    data["paper", "cites", "paper"].edge_index = given.edge_index
    return data


def some_graphs(**changes: Any) -> list[Data]:
    given = {"x": torch.ones(3, 2), "y": torch.tensor([1]), "edge_index": torch.tensor([[0, 1], [1, 2]])}
    other = Data(**{**given, "y": torch.tensor([0])})
    return [other, Data(**{name: value for name, value in (given | changes).items() if value is not None})]


class Several(InMemoryDataset):  # PyG's data sets give attributes of all their graphs together
    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(graphs)


MASK = some_data().train_mask
SPLIT = MASK.nonzero().squeeze(1)
EDGES: Tensor = some_data().edge_index

# What is read alike in all its forms.
USED: dict[str, dict[str, Any]] = {
    "whole numbers as float labels": {"y": (torch.arange(NODES) % 3).double()},
    "labels in a column": {"y": (torch.arange(NODES) % 3)[:, None]},
    "small integers": {"y": (torch.arange(NODES) % 3).to(torch.uint8), "edge_index": EDGES.int()},
    "masks of 0 and 1": {"train_mask": MASK.to(torch.uint8), "val_mask": some_data().val_mask.long()},
    "a mask in a column": {"train_mask": MASK[:, None]},
    "sparse features": {"x": some_data().x.to_sparse()},
    "half features in a transposed view": {"x": some_data().x.t().contiguous().t()},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"y": None}, "no y|no node type"),
    "float labels": ({"y": torch.rand(NODES)}, "y has values such as 0"),
    "one-hot labels": ({"y": torch.eye(NODES)[:, :3]}, "y has shape .* several labels"),
    "too few labels": ({"y": torch.zeros(3)}, r"y has shape \[3\]"),
    "identifiers as labels": ({"y": torch.arange(NODES) * 1000}, "y has classes up to 19000"),
    "no class": ({"y": torch.full((NODES,), -1)}, "without a label|no class from 0 on"),
    "no class for a node to train on": ({"y": torch.arange(NODES) % 3 - 1}, "train_mask are without a label"),
    "NaN as a label": ({"y": torch.where(MASK, NAN, 1.0)}, "10 nodes in train_mask are without a label"),
    "indices as a mask": ({"train_mask": SPLIT}, "train_mask is a list of numbers"),
    "as many indices as nodes": ({"train_mask": torch.arange(NODES)}, "train_mask is a list of numbers"),
    "a list as a mask": ({"train_mask": SPLIT.tolist()}, "train_mask is list"),
    "a short mask": ({"val_mask": MASK[:5]}, r"val_mask has shape \[5\]"),
    "several splits": ({"test_mask": MASK[:, None].repeat(1, 10)}, "test_mask has 10 columns"),
    "a mask of probabilities": ({"train_mask": torch.rand(NODES)}, "train_mask is float32"),
    "overlapping splits": ({"test_mask": MASK}, "10 nodes are in both train_mask and test_mask"),
    "no training": ({"train_mask": torch.zeros(NODES, dtype=torch.bool)}, "train_mask chooses no node"),
    "float edges": ({"edge_index": EDGES.float()}, "edge_index is float32"),
    "edges as an adjacency matrix": ({"edge_index": torch.eye(NODES)}, "edge_index has shape"),
    "edges as rows": ({"edge_index": EDGES.t()}, "edge_index has shape"),
    "an edge to nobody": ({"edge_index": torch.tensor([[0], [NODES]])}, "edge_index has targets from 20 to 20"),
    "an edge from nobody": ({"edge_index": torch.tensor([[-1], [0]])}, "edge_index has sources from -1"),
    "NaN as a feature": ({"x": torch.full((NODES, 1), NAN)}, "x has NaN or infinity in 20 of 20 rows"),
    "a feature beyond float32": ({"x": torch.full((NODES, 1), 1e300, dtype=torch.float64)}, "x has NaN or infinity"),
    "identifiers as features": ({"x": torch.full((NODES, 1), 1 << 40)}, "x has values up to"),
    "features in a row": ({"x": torch.ones(NODES)}, r"x has shape \[20\]"),
    "no features": ({"x": torch.ones(NODES, 0)}, r"x has shape \[20, 0\]"),
    "features of NumPy": ({"x": torch.ones(NODES, 1).numpy()}, "x is ndarray"),
    "another number of nodes": ({"num_nodes": 25}, "num_nodes is 25, and x has 20 rows"),
}


@pytest.mark.parametrize("what", USED)
def test_other_forms_of_the_same_data_give_the_same_graph(what: str) -> None:
    expected = graph_of(some_data(), "my:load")
    graph = graph_of(some_data(**USED[what]), "my:load")
    for name in ("x", "y", "indptr", "indices", "train", "val", "test"):
        assert torch.equal(getattr(graph, name), getattr(expected, name)), name
    hetero = relations_of(hetero_data(**USED[what]), "my:load")
    assert torch.equal(hetero.x["paper"], expected.x)
    assert torch.equal(hetero.train, expected.train)


@pytest.mark.parametrize("what", REFUSED)
def test_data_that_cannot_be_meant_is_refused_with_the_attribute_and_a_way_out(what: str) -> None:
    changes, words = REFUSED[what]
    readers: list[Callable[[], object]] = [lambda: graph_of(some_data(**changes), "my:load")]
    if "num_nodes" not in changes:
        readers.append(lambda: relations_of(hetero_data(**changes), "my:load"))
    if not any(name.endswith("_mask") or name == "y" for name in changes):
        readers.append(lambda: link_graph(some_data(**changes), "my:load"))
    for read in readers:
        with pytest.raises(TaskError, match=words) as refused:
            read()
        assert refused.value.message.startswith("data.load = my:load: ")
        assert refused.value.hint


FLOATS = torch.randn(NODES, generator=torch.Generator().manual_seed(1))
ANSWERS: dict[str, tuple[str, Tensor, Any, int]] = {
    "a number each": ("numbers", FLOATS, FLOATS[:, None], 1),
    "several numbers each, in double precision": ("numbers", FLOATS.double().view(-1, 1).repeat(1, 4), ..., 4),
    "labels": ("numbers", MASK[:, None].repeat(1, 2), MASK[:, None].repeat(1, 2).float(), 2),
    "some unknown": ("numbers", torch.where(MASK, FLOATS, NAN), torch.where(MASK, FLOATS, NAN)[:, None], 1),
    "classes for a loss of one's own": ("either", torch.arange(NODES) % 3, ..., 3),
    "numbers for a loss of one's own": ("either", torch.zeros(NODES), torch.zeros(NODES, 1), 1),
    "whole numbers, several each": ("either", torch.ones(NODES, 2).long(), torch.ones(NODES, 2), 2),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_the_loss_decides_how_the_answers_are_read(what: str) -> None:
    kind, given, expected, outputs = ANSWERS[what]
    masks = {"val_mask": MASK & False, "test_mask": MASK & False} if "unknown" in what else {}
    graph = graph_of(some_data(y=given, **masks), "my:load", None, kind)
    expected = given if expected is ... else expected
    torch.testing.assert_close(graph.y, expected, rtol=0, atol=0, equal_nan=True)
    assert graph.num_classes == outputs


@pytest.mark.parametrize(
    ("kind", "y", "words"),
    [
        ("classes", FLOATS, "which are no classes.* train.loss"),
        ("classes", torch.ones(NODES, 2), "several labels for each node.* train.loss"),
        ("numbers", torch.ones(NODES, 2, 2), r"y has shape \[20, 2, 2\], not \[20\] or \[20, outputs\]"),
        ("numbers", torch.ones(NODES - 1), r"y has shape \[19, 1\], not \[20\] or"),
        ("numbers", torch.ones(NODES, 0), r"y has shape \[20, 0\]"),
        ("numbers", FLOATS / 0, "y is infinite"),
        ("numbers", FLOATS + 1j, "y is complex"),
        ("numbers", torch.where(MASK, NAN, FLOATS), "y is NaN for all nodes in train_mask"),
        ("either", None, "it has no y"),
    ],
)
def test_answers_that_cannot_be_meant_are_refused(kind: str, y: Tensor | None, words: str) -> None:
    with pytest.raises(TaskError) as caught:
        graph_of(some_data(y=y), "my:load", None, kind)
    assert re.search(words, f"{caught.value} {caught.value.hint}"), caught.value


def test_nodes_without_a_label_may_be_outside_of_all_splits() -> None:
    for unknown in (-1.0, NAN):
        y = torch.where(some_data().test_mask, unknown, torch.arange(NODES) % 2.0)
        graph = graph_of(some_data(y=y, test_mask=torch.zeros(NODES, dtype=torch.bool)), "my:load", notes := [])
        assert graph.num_classes == 2
        assert notes == ["test_mask choose no node, so there is no score of them"]


def test_what_is_not_used_is_named() -> None:
    more = {"edge_attr": torch.ones(200, 2), "pos": torch.ones(NODES, 2), "edge_weight": torch.ones(200)}
    graph_of(some_data(**more), "my:load", notes := [])
    assert notes == ["pos is not used"]
    loops = torch.cat([EDGES[:, EDGES[0] != EDGES[1]], torch.zeros(2, 3, dtype=torch.int64)], 1)
    link_graph(some_data(edge_index=loops), "my:load", notes := [])
    assert notes == ["test_mask, train_mask, val_mask, y are not used", "3 self loops in edge_index are not used"]
    data = hetero_data()
    data["paper"].year, data["paper", "cites", "paper"].kind = torch.ones(NODES), torch.ones(200)
    relations_of(data, "my:load", notes := [])
    assert notes == ["paper, cites, paper: kind is not used", "paper: year is not used"]
    collection_of(some_graphs(smiles="CCO", cut_index=torch.ones(2)), "my:load", notes := [])
    assert notes == ["cut_index, smiles are not used"]


def test_attributes_of_edges_follow_their_edges() -> None:
    numbers = torch.arange(200.0)
    graph = graph_of(some_data(edge_weight=numbers[:, None], edge_attr=torch.stack([numbers, -numbers], 1)), "my:load")
    targets = torch.arange(NODES).repeat_interleave(graph.degree)
    assert graph.edge_weight is not None
    assert torch.equal(torch.stack([graph.indices.long(), targets]), EDGES[:, graph.edge_weight.long()])
    assert graph.edge_attr is not None
    assert torch.equal(graph.edge_attr, torch.stack([graph.edge_weight, -graph.edge_weight], 1))


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"edge_attr": torch.ones(199)}, "edge_attr is not used: it has shape [199], and there are 200 edges"),
        ({"edge_weight": torch.ones(200, 2)}, "edge_weight is not used: it has shape [200, 2]"),
        ({"edge_attr": torch.full((200,), NAN)}, "edge_attr is not used: it has NaN or infinity"),
        ({"edge_attr": ["a"] * 200}, "edge_attr is not used: it is list"),
        ({"edge_attr": torch.ones(200, 2, 2)}, "edge_attr is not used: it has shape [200, 2, 2]"),
    ],
)
def test_attributes_of_edges_that_cannot_be_used_are_named(changes: dict[str, Any], note: str) -> None:
    graph = graph_of(some_data(**changes), "my:load", notes := [])
    assert graph.edge_attr is None
    assert graph.edge_weight is None
    assert len(notes) == 1
    assert notes[0].startswith(note)


def test_one_graph_is_never_taken_for_several_nor_several_for_one() -> None:
    one, two = some_data(), [some_data(), some_data()]
    for result in ([one], Several([one]), (one,)):
        assert graph_of(result, "my:load").num_nodes == NODES
    for read in (graph_of, link_graph):
        for several in (two, Several(two), tuple(two), *([RandomLinkSplit()(one)] if read is graph_of else [])):
            with pytest.raises(TaskError, match="it returned [23] graphs, and this workload trains on one"):
                read(several, "my:load")
        for wrong, words in (
            (None, "NoneType"),
            ("ab", "str"),
            ([3], "int"),
            ({"x": 1}, "dict"),
            (one.x, "Tensor"),
            (hetero_data(), "HeteroData"),
        ):
            with pytest.raises(TaskError, match=f"it returned {words}"):
                read(wrong, "my:load")
    with pytest.raises(TaskError, match="it returned Data"):
        relations_of(one, "my:load")
    with pytest.raises(TaskError, match="no edge_index") as refused:
        graph_of(some_data(edge_index=None, adj_t=torch.eye(NODES).to_sparse()), "my:load")
    assert "adj_t" in str(refused.value.hint)
    for several in (some_graphs(), Several(some_graphs()), Batch.from_data_list(some_graphs()), iter(some_graphs())):
        assert collection_of(several, "my:load").num_graphs == 2
    with pytest.raises(TaskError, match="it returned one graph"):
        collection_of(some_graphs()[0], "my:load")


def some_parts(**changes: Any) -> tuple[list[Data], list[Data], list[Data]]:
    """Graphs with labels of their nodes, as PyG's PPI gives them: two for training, one each for the others."""
    parts = [some_data(train_mask=None, val_mask=None, test_mask=None, edge_attr=torch.ones(200, 2)) for _ in range(4)]
    for number, part in enumerate(parts):
        part.x = part.x + number
    for name, value in changes.items():
        parts[2][name] = value
    return parts[:2], parts[2:3], parts[3:]


def test_three_lists_of_graphs_with_labels_of_nodes_are_one_graph_of_unconnected_parts() -> None:
    for given in (some_parts(), dict(zip(("train", "val", "test"), some_parts(), strict=True))):
        graph = graph_of(given, "my:load")
        assert graph.num_nodes == 4 * NODES
        assert [len(part) for part in (graph.train, graph.val, graph.test)] == [2 * NODES, NODES, NODES]
        assert torch.equal(graph.x[graph.val], some_parts()[1][0].x)
        owners = torch.arange(4 * NODES).repeat_interleave(graph.degree) // NODES
        assert torch.equal(graph.indices.long() // NODES, owners)
    y = torch.rand(NODES, 3)
    parts = some_parts()
    for graphs in parts:
        for one in graphs:
            one.y = y
    assert graph_of(parts, "my:load", answers="numbers").y.shape == (4 * NODES, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": torch.zeros(3)}, r"graph 2: y has shape \[3\], and there are 20 nodes"),
        ({"y": torch.zeros(NODES, 2)}, r"graph 2: y has shape \[20, 2\]"),
        ({"y": None}, "graph 2: it has no y"),
        ({"x": torch.zeros(NODES, 9)}, "graph 2: x has 9 columns, and graph 0 has 3"),
        ({"edge_attr": None}, "3 of 4 graphs have edge_attr"),
        ({"edge_index": torch.tensor([[0], [NODES]])}, "graph 2: edge_index has targets from 20 to 20"),
    ],
)
def test_a_wrong_graph_with_labels_of_nodes_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words) as refused:
        graph_of(some_parts(**changes), "my:load")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": torch.tensor([0.5])}, "graph 1: y has values such as 0.5"),
        ({"y": torch.tensor([0, 1])}, "graph 1: y has 2 values"),
        ({"y": torch.tensor([-1])}, "graph 1: y is -1"),
        ({"y": torch.tensor([NAN])}, "graph 1: y is -1"),
        ({"y": 1}, "graph 1: y is int"),
        ({"x": None, "num_nodes": 3}, "1 of 2 graphs have x"),
        ({"x": torch.ones(3, 5)}, "graph 1: x has 5 columns, and graph 0 has 2"),
        ({"x": torch.full((3, 2), NAN)}, "graph 1: x has NaN"),
        ({"num_nodes": 7}, "graph 1: num_nodes is 7"),
        ({"edge_index": torch.tensor([[0.0], [1.0]])}, "graph 1: edge_index is float32"),
        ({"edge_index": torch.tensor([[0], [9]])}, "graph 1: edge_index has targets from 9 to 9"),
    ],
)
def test_a_wrong_graph_among_many_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        collection_of(some_graphs(**changes), "my:load")


def test_what_is_not_used_is_printed_in_each_run(
    lone_task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noted.py").write_text(
        "import sys; sys.path.insert(0, '" + str(Path(__file__).parent) + "')\n"
        "from test_own_data import some_data, torch\n"
        "def load(root): return some_data(pos=torch.ones(20, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        prepared(lone_task, Graph, own_recipe(spec.Data(load="noted:load"), graph_of))
        assert capsys.readouterr().out == "data.load = noted:load: pos is not used\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project: a loader that imports other modules in several ways, and data in folders."""
    code, root = tmp_path / "code", tmp_path / "root"
    (code / "parts" / "deep").mkdir(parents=True)
    (root / "raw" / "x").mkdir(parents=True)
    (code / "loader.py").write_text(
        "import importlib, numpy\nfrom parts import cleaning\ndef load(root):\n    import late\n"
        "    return importlib.import_module('named')\n"
    )
    (code / "parts" / "__init__.py").write_text("")
    (code / "parts" / "cleaning.py").write_text("from .deep.numbers import ONE\n")
    (code / "parts" / "deep" / "__init__.py").write_text("")
    (code / "parts" / "deep" / "numbers.py").write_text("ONE = 1\n")
    (code / "late.py").write_text("")
    (code / "named.py").write_text("")
    (code / "other.py").write_text("")
    (root / "raw" / "x" / "edges.csv").write_text("0,1\n")
    (root / "large.bin").write_bytes(bytes(1 << 17))
    (root / "linked").symlink_to(root / "raw")
    monkeypatch.syspath_prepend(code)
    yield tmp_path  # type: ignore[misc]
    for name in ("loader", "late", "parts", "parts.cleaning", "parts.deep", "parts.deep.numbers"):
        sys.modules.pop(name, None)


def folder_of(project: Path) -> str:
    return own_recipe(spec.Data(load="loader:load", root=str(project / "root")), graph_of).folder


@pytest.mark.parametrize(
    "file", ["loader.py", "parts/__init__.py", "parts/cleaning.py", "parts/deep/numbers.py", "late.py", "named.py"]
)
def test_a_change_in_the_loader_or_in_a_module_that_it_imports_is_noticed(project: Path, file: str) -> None:
    before = folder_of(project)
    with (project / "code" / "other.py").open("a") as other:
        other.write("# not imported\n")
    assert folder_of(project) == before
    with (project / "code" / file).open("a") as changed:
        changed.write("# changed\n")
    assert folder_of(project) != before


def test_data_is_prepared_anew_for_answers_of_another_kind(project: Path) -> None:
    data = spec.Data(load="loader:load", root=str(project / "root"))
    folders = {own_recipe(data, graph_of, **reading).folder for reading in ({}, {"answers": "numbers"}, {})}
    assert len(folders) == 2
    assert own_recipe(data, link_graph).folder not in folders  # and for another workload


def test_a_change_anywhere_below_the_root_is_noticed(project: Path) -> None:
    root, seen = project / "root", {folder_of(project)}
    edges = root / "raw" / "x" / "edges.csv"

    def noticed() -> bool:
        before = len(seen)
        seen.add(folder_of(project))
        return len(seen) > before

    assert not noticed()
    times = edges.stat()
    edges.write_text("0,2\n")
    os.utime(edges, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert noticed(), "same size and time"
    os.utime(edges)
    assert not noticed(), "same content"
    os.utime(root / "large.bin")
    assert noticed(), "a large file's time"
    (root / "raw" / "new").touch()
    assert noticed()
    edges.rename(edges.with_name("edges.tsv"))
    assert noticed()
    (root / "again").symlink_to(root)  # a circle
    noticed()
    with pytest.raises(TaskError, match="cannot read data.root"):
        own_recipe(spec.Data(load="loader:load", root=str(project / "nowhere")), graph_of)

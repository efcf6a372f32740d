"""Another order of the nodes, and features in bfloat16: the same graph, and neighbours together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.ranks import CORA

from clusterctl.engine.data.data_sets import prepare
from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.features.arrangement import arranged, neighbour_order, renumbered
from clusterctl.engine.graph.storage import FILE, Graph, Recipe, compressed, load
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.workloads.node_classification import recipe
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec import Data, RedditTrain

MakeGraph = Callable[..., Graph]
GROUP, GROUPS, DEGREE = 64, 50, 20


def edges_of(graph: Adjacency) -> set[tuple[int, int]]:
    targets = torch.arange(len(graph.degree)).repeat_interleave(graph.degree)
    return set(zip(graph.indices.tolist(), targets.tolist(), strict=True))


def test_neighbours_are_put_together() -> None:
    """Half of each node's neighbours are in its own group, the others anywhere, most often one of a few hubs."""
    nodes, random = GROUP * GROUPS, torch.Generator().manual_seed(1)
    targets = torch.arange(nodes).repeat_interleave(DEGREE)
    near = targets // GROUP * GROUP + torch.randint(GROUP, targets.shape, generator=random)
    far = (torch.rand(targets.shape, generator=random) ** 5 * nodes).long()
    is_near = torch.rand(targets.shape, generator=random) < 0.5
    place = torch.randperm(nodes, generator=random)
    edges = torch.stack([place[torch.where(is_near, near, far)], place[targets]])
    order = neighbour_order(Adjacency(*compressed(edges, nodes, shuffled=True)))
    assert torch.equal(order.sort().values, torch.arange(nodes))
    groups = place.argsort()[order] // GROUP
    pieces = 1 + int((groups[1:] != groups[:-1]).sum())
    assert pieces < nodes / 5  # in a random order there is about one per node


@pytest.mark.parametrize("edges", [torch.empty(2, 0, dtype=torch.int64), torch.tensor([[0, 3], [3, 0]])])
def test_nodes_without_neighbours_have_a_place(edges: torch.Tensor) -> None:
    order = neighbour_order(Adjacency(*compressed(edges, 5)))
    assert sorted(order.tolist()) == list(range(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_renumbered_graph_is_the_same_graph(random_graph: MakeGraph, tmp_path: Path, dtype: torch.dtype) -> None:
    graph = random_graph()
    order = torch.randperm(graph.num_nodes)
    other = renumbered(graph, order, dtype, tmp_path)
    assert {(int(order[source]), int(order[target])) for source, target in edges_of(other)} == edges_of(graph)
    assert torch.equal(other.x, graph.x[order].to(dtype))
    assert torch.equal(other.y, graph.y[order])
    for name in ("train", "val", "test"):
        nodes = getattr(other, name)
        assert torch.equal(order[nodes].sort().values, getattr(graph, name))
        assert torch.equal(nodes, nodes.sort().values)


def test_lists_of_sources_keep_their_order(random_graph: MakeGraph, tmp_path: Path) -> None:
    graph = random_graph()
    order = torch.randperm(graph.num_nodes)
    other = renumbered(graph, order, torch.float32, tmp_path)
    for new, old in enumerate(order.tolist()):
        sources = other.indices[other.indptr[new] : other.indptr[new + 1]].long()
        assert torch.equal(order[sources], graph.indices[graph.indptr[old] : graph.indptr[old + 1]].long())


def test_each_arrangement_has_its_own_folder() -> None:
    plain: Recipe[Graph] = recipe(Data(root=str(CORA)))
    folders = {
        arranged(plain, order, precision).folder
        for order in ("given", "neighbours")
        for precision in ("given", "bfloat16")
    }
    assert len(folders) == 4
    assert arranged(plain, "given", "given") is plain


def prepared(folder: Path, data: Data) -> Graph:
    found = recipe(data)
    (folder / found.folder).mkdir()
    found.prepare(folder / found.folder)
    return load(Graph, folder / found.folder / FILE)


def test_the_order_does_not_change_what_a_model_predicts(tmp_path: Path, lone_task: Task) -> None:
    data = Data(root=str(CORA))
    train = RedditTrain(precision="float64", hidden_channels=16)
    scores = [
        NodeClassification(prepared(tmp_path, changed), train, lone_task).evaluate(("val", "test"))
        for changed in (data, replace(data, order="neighbours"))
    ]
    assert scores[0] == scores[1]


def test_a_data_set_is_prepared_as_a_job_wants_it(tmp_path: Path) -> None:
    summary = prepare("reddit", CORA, tmp_path, "neighbours", "bfloat16")
    assert summary.endswith(f"--set data.root={CORA} --set data.order=neighbours --set data.disk_precision=bfloat16")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert folder.name == recipe(Data(root=str(CORA), order="neighbours", disk_precision="bfloat16")).folder
    assert load(Graph, folder / FILE).x.dtype == torch.bfloat16


def test_a_data_set_of_several_node_types_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="taobao has several types of nodes"):
        prepare("taobao", tmp_path, tmp_path, "neighbours")

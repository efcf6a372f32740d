"""Cluster-GCN: subgraphs of a few clusters, each node in one of them, and all edges within."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clusterctl.engine.graph.storage import Graph, compressed
from clusterctl.engine.graph.subgraphs import Clusters, ClusterSampler, clusters_of, parts
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import Batches, Data, NodeClassificationTrain

MakeGraph = Callable[..., Graph]


def seven_clusters(nodes: int = 60) -> Clusters:
    """Clusters of several sizes."""
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(3))
    return Clusters(order, torch.tensor([0, 1, 9, 20, 30, 44, 52, nodes]))


def edges_of(graph: Graph) -> Tensor:
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    return torch.stack([graph.indices.long(), targets])


def test_each_epoch_has_every_node_in_one_subgraph_and_other_subgraphs(random_graph: MakeGraph) -> None:
    sampler = ClusterSampler(random_graph(), seven_clusters(), 2, seed=5)
    assert sampler.subgraphs == 4
    epochs = [[sampler.nodes_of(epoch, number).tolist() for number in range(4)] for epoch in (1, 2, 1)]
    for subgraphs in epochs:
        assert sorted(node for nodes in subgraphs for node in nodes) == [*range(60)]
    assert epochs[0] == epochs[2] != epochs[1]
    other = ClusterSampler(random_graph(), seven_clusters(), 2, seed=6)
    assert epochs[0] != [other.nodes_of(1, number).tolist() for number in range(4)]


def test_a_subgraph_has_all_edges_between_its_nodes_and_none_to_another_one(random_graph: MakeGraph) -> None:
    graph = random_graph()
    sampler, edges = ClusterSampler(graph, seven_clusters(), 2, seed=5), edges_of(graph)
    found = sampler.sample([3, 0], 1, 0)
    groups = [sampler.nodes_of(1, number) for number in (3, 0)]
    assert torch.equal(found.places, torch.cat(groups))
    assert found.edges is not None
    assert torch.equal(found.places[found.edge_index], edges[:, found.edges])
    inside = sum(torch.isin(edges, group).all(0).int() for group in groups)
    assert torch.equal(found.edges.sort().values, (inside > 0).nonzero().squeeze(1))
    alone = sampler.sample([3], 1, 0)  # nothing is left of the sample before
    assert len(alone.places) == len(groups[0])
    assert torch.equal(alone.places[alone.edge_index], edges[:, alone.edges])


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_step_is_the_mean_over_its_training_nodes_on_any_number_of_ranks(
    random_graph: MakeGraph, lone_task: Task, ranks: int
) -> None:
    graph, clusters = random_graph(), seven_clusters()
    train = NodeClassificationTrain(
        model="GCN", options={"hidden_channels": 4}, batch="clusters", clusters_per_subgraph=2, precision="float64",
        batch_size=None, global_batch_size=2,
    )  # fmt: skip
    objective = OwnNodeClassification(graph, train, lone_task, clusters=clusters)
    assert (objective.unit_of_seeds, objective.seeds.tolist()) == ("subgraphs", [0, 1, 2, 3])
    model = objective.model.train()
    plans = [EpochPlan(objective.seeds, Batches(train, ranks).size, 0, rank, ranks).batches(1) for rank in range(ranks)]
    for shares in zip(*plans, strict=True):
        got = sum(objective.loss(batch, objective.prepare(batch)) for batch in shares)
        sampler, losses, edges = ClusterSampler(graph, clusters, 2, train.seed), [], edges_of(graph)
        for number in shares[0].everyone.tolist():
            nodes = sampler.nodes_of(1, number)
            row = torch.full((60,), -1)
            row[nodes] = torch.arange(len(nodes))
            own = row[edges[:, torch.isin(edges, nodes).all(0)]]
            trained = torch.isin(nodes, graph.train)
            losses.append(
                F.cross_entropy(model(graph.x[nodes], own)[trained], graph.y[nodes[trained]], reduction="none")
            )
        torch.testing.assert_close(got, torch.cat(losses).mean(), rtol=0, atol=1e-12)
        nodes_and_edges = objective.work(shares[0], objective.prepare(shares[0]))
        assert nodes_and_edges[0] == len(torch.cat(losses))


def test_a_step_without_training_nodes_changes_nothing_and_is_no_nan(random_graph: MakeGraph, lone_task: Task) -> None:
    graph = replace(random_graph(), train=torch.tensor([0]))
    train = NodeClassificationTrain(model="GCN", batch="clusters", clusters_per_subgraph=1, precision="float64")
    objective = OwnNodeClassification(graph, train, lone_task, clusters=seven_clusters())
    plan = EpochPlan(objective.seeds, 1, 0, 0, 1)
    losses = [float(objective.loss(batch, objective.prepare(batch)).detach()) for batch in plan.batches(1)]
    assert sorted(loss > 0 for loss in losses) == [False] * 6 + [True]


def test_parts_follow_the_communities_of_a_graph_whatever_the_direction_of_edges() -> None:
    pytest.importorskip("pymetis")
    community = torch.arange(90) % 3
    ends = torch.randint(90, (2, 1500), generator=torch.Generator().manual_seed(0))
    ends = ends[:, community[ends[0]] == community[ends[1]]]
    one_way = torch.stack([ends.min(0).values, ends.max(0).values])
    for edges in (ends, one_way, torch.cat([ends, torch.arange(90).expand(2, -1)], 1)):
        part = parts(*compressed(edges, 90), 3)
        assert all(len(part[community == one].unique()) == 1 for one in range(3))
        assert part.bincount().tolist() == [30, 30, 30]
        assert torch.equal(part, parts(*compressed(edges, 90), 3))


def test_no_cluster_is_empty_even_if_more_are_wanted_than_there_are_nodes(random_graph: MakeGraph) -> None:
    pytest.importorskip("pymetis")
    clusters = clusters_of(random_graph(), 500)
    assert (clusters.bounds.diff() > 0).all()
    assert clusters.nodes.sort().values.tolist() == [*range(60)]


def test_without_pymetis_the_message_says_what_to_install(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(TaskError, match="partitioning a graph needs pymetis") as error:
        clusters_of(random_graph(), 3)
    assert "pip install pymetis" in error.value.hint


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"batch": "clusters", "fan_out": (5, 5)}, "train.fan_out"),
        ({"batch": "clusters", "batch_size": 20}, "train.batch_size"),
        ({"batch": "clusters", "sampler": "my:Sampler"}, "train.sampler"),
        ({"clusters": 20}, "train.clusters"),
        ({"batch": "graph", "clusters_per_subgraph": 3}, "train.clusters_per_subgraph"),
        ({"sampler": "my:Sampler", "replace": True}, "train.replace"),
        ({"sampler": "my:Sampler", "model": "gat"}, "train.sampler"),
        ({"batch": "clusters", "model": "gat"}, "train.batch"),
    ],
)
def test_keys_that_have_no_effect_are_refused(settings: dict[str, object], key: str) -> None:
    train = NodeClassificationTrain(**({"model": "my:Net"} | settings))  # type: ignore[arg-type]
    found = dict(train.contradictions("node-classification", Data(load="my:load")))
    assert key in found
    assert NodeClassificationTrain(model="my:Net", batch="clusters", batch_size=None, global_batch_size=4).batch

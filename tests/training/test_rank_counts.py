"""The same training on 1 and 3 ranks, on Cora, started once per number of ranks for all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from support.ranks import CORA, losses_of, metrics_of, results_of, run_job

from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Data, Job, RedditTrain

GLOBAL_BATCH = 250  # not divisible by three ranks
PROGRAM = f"""
import json, sys, torch
from dataclasses import replace
from pathlib import Path
from clusterctl.engine.graph.subgraphs import Clusters
from clusterctl.engine.graph.inference import infer
from clusterctl.engine.graph.features.placement import SplitFeatures
from clusterctl.engine.graph.storage import Graph, shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import NodeClassificationTrain, RedditTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.training.objectives.typed_node import TypedNodeClassification
from clusterctl.engine.data.reddit import raw_identity, read_raw
from support.ranks import Losses

from support.made_graphs import bare_academy, dated_academy, random_academy
root = {str(CORA)!r}
record = {{"name": "t", "workload": "reddit", "data": {{"placement": "split"}}}}
with joined(Context(record, attempt=current_attempt())) as task:
    graph = shared(task, Graph, "cora", raw_identity(root), lambda scratch: read_raw(Path(root), scratch))
    both = dict(global_batch_size={GLOBAL_BATCH}, evaluate_every=0)
    exact = RedditTrain(**both, epochs=8, precision="float64", dropout=0.0, hidden_channels=32)
    default = RedditTrain(**both, epochs=1)
    cached = replace(exact, epochs=2, dropout=0.5, cache_first_aggregation=True)
    cached_gcn = replace(cached, model="gcn", fan_out=(5, 5, 5))
    everything = replace(exact, epochs=2, dropout=0.5, clip_norm=0.5, schedule="cosine", warmup=0.3, patience=1,
                         replace=True)
    labor = replace(exact, epochs=2, dropout=0.5, sampling="labor", fan_out=(3, 2))
    exact_ones = dict(exact=exact, cached=cached, cached_gcn=cached_gcn, everything=everything, labor=labor,
                      on_disk=labor, split=labor)
    result = {{}}
    for name, train in (exact_ones | {{"default": default}}).items():
        cache = 1 << 20 if name == "on_disk" else None  # a fifteenth of the features
        objective, losses = NodeClassification(graph, train, task, cache, split=name == "split"), Losses()
        score = fit(objective, train, replace(task, metrics=losses))
        result[name] = losses
        result[name + "_accuracy"] = score
        result[name + "_checksum"] = sum(float(p.detach().double().sum()) for p in objective.model.parameters())
    own, outputs = infer(objective.model, objective._graph, task)
    result["own"] = [own.start, own.stop, len(outputs)]
    every = replace(graph, test=torch.arange(graph.num_nodes))  # the last ones of each rank, too
    result["every"] = NodeClassification(every, default, task).evaluate(("test",))["test"]
    result["nodes"], result["test"] = graph.num_nodes, graph.test.numel()
    result["slow_imports"] = sorted({{"torch_geometric", "torch._dynamo", "numpy.testing"}} & set(sys.modules))
    users = NodeClassificationTrain(**both, epochs=2, precision="float64", model="support.own_nets:Gat", fan_out=(4, 3))
    objective, result["users"] = OwnNodeClassification(graph, users, task), Losses()
    trained = objective
    result["users_accuracy"] = fit(objective, users, replace(task, metrics=result["users"]))
    gcn = replace(users, epochs=1, model="support.own_nets:Gcn")
    result["users_gcn"] = Losses()
    result["users_gcn_accuracy"] = fit(OwnNodeClassification(graph, gcn, task), gcn,
                                       replace(task, metrics=result["users_gcn"]))
    from support.own_nets import targets_of
    learning = dict(global_batch_size={GLOBAL_BATCH}, batch_size=None, epochs=3, precision="float64", patience=3,
                    model="support.own_nets:Gat", fan_out=(4, 3), ema=0.9, accumulate=2, report_train=True)
    numbers = dict(loss="mse", schedule="plateau", schedule_every=1, optimizer="support.own_nets:in_groups")
    own = dict(loss="support.own_nets:squares", metric="support.own_nets:largest_error", metric_better="lower",
               optimizer="adamw", weight_decay=0.1)
    classes = dict(class_weights="balanced", label_smoothing=0.1, metric="roc_auc", optimizer="sgd", lr=0.1)
    for name, settings in dict(numbers=numbers, own_loss=own, weighted=classes).items():
        train = NodeClassificationTrain(**(learning | settings))
        given = replace(graph, y=targets_of(graph.x), num_classes=2) if name != "weighted" else graph
        result[name] = Losses()
        score = fit(OwnNodeClassification(given, train, task), train, replace(task, metrics=result[name]))
        result[name + "_score"] = [score.name, score.value, score.total]
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
    clusters = Clusters(order, torch.linspace(0, graph.num_nodes, 13).long())
    weighted = replace(graph, edge_weight=torch.linspace(0.5, 1.5, graph.indices.numel()))
    for name, own in dict(
        keyed=replace(users, model="support.own_nets:Keyed", options=dict(hidden_channels=8)),
        pygs=replace(users, model="GAT", options=dict(hidden_channels=8, heads=2, v2=True), sampling="labor"),
        pieces=replace(users, model="support.own_nets:Keyed", options=dict(hidden_channels=8), hops=2),
        clusters=replace(users, model="support.own_nets:Keyed", options=dict(hidden_channels=8), batch="clusters",
                         clusters_per_subgraph=3, global_batch_size=2),  # of three ranks one has only padding
        sampler=replace(users, model="support.own_nets:Keyed", options=dict(hidden_channels=8),
                        sampler="support.own_nets:LayeredSampler"),
    ).items():
        result[name] = Losses()
        objective = OwnNodeClassification(weighted, own, task, clusters=clusters if name == "clusters" else None)
        result[f"{{name}}_accuracy"] = fit(objective, own, replace(task, metrics=result[name]))
    split = OwnNodeClassification(graph, users, task, split=True)
    split.model.load_state_dict(trained.model.state_dict())
    result["users_split_accuracy"] = split.evaluate(("test",))["test"]
    if task.fetching is not None:
        fetched = []
        rank, visits = task.place.rank, torch.arange(graph.num_nodes).float()
        features = SplitFeatures(graph.x, task, torch.float64, 1 << 20, lambda: visits)
        for count in range(rank * 2):  # as many as no other rank
            nodes = torch.randint(graph.num_nodes, (50 * count,))
            fetch = features.fetch(nodes)
            same = torch.equal(fetch.rows(), graph.x[nodes].double())
            fetched.append([same, nodes.tolist(), fetch.numbers])
        features.settle()
        size = -(-graph.num_nodes // 3)
        piece = features.piece(rank * size + 3, rank * size + 9)
        result["fetched"] = [torch.equal(piece, graph.x[rank * size + 3 : rank * size + 9].double()), fetched]
    options = dict(hidden=4, heads=2, attention_dropout=0.3)
    rgat = replace(users, model="rgat", options=options, global_batch_size=7)
    objective, result["rgat"] = RelationNodeClassification(random_academy(), rgat, task), Losses()
    result["rgat_accuracy"] = fit(objective, rgat, replace(task, metrics=result["rgat"]))
    typed = dict(model="support.own_nets:Typed", options={{}}, global_batch_size=7, fan_out=(3, 2), embedding_width=5)
    for name, (made, settings) in dict(
        typed=(lambda: bare_academy("author"), {{}}),
        typed_pieces=(lambda: bare_academy("author"), dict(hops=2)),
        dated=(lambda: dated_academy(edges_too=True), {{}}),
        latest=(dated_academy, dict(temporal_strategy="last")),
    ).items():
        own = replace(users, **typed, **settings)
        objective, result[name] = TypedNodeClassification(made(), own, task), Losses()
        result[name + "_accuracy"] = fit(objective, own, replace(task, metrics=result[name]))
    bare = replace(rgat, embedding_width=5)
    objective, result["bare_rgat"] = RelationNodeClassification(bare_academy("author"), bare, task), Losses()
    result["bare_rgat_accuracy"] = fit(objective, bare, replace(task, metrics=result["bare_rgat"]))
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Number of ranks -> the results of each rank."""
    return results_of(PROGRAM, tmp_path_factory.mktemp("runs"))


def test_in_float64_without_dropout_losses_and_accuracy_are_the_same(results: dict[int, list[dict[str, Any]]]) -> None:
    alone = results[1][0]
    assert len(alone["exact"]) >= 50
    assert alone["exact"][49] < alone["exact"][0] / 2
    for rank in results[3]:
        assert rank["exact"] == pytest.approx(alone["exact"], rel=0, abs=1e-9)
        assert rank["exact_accuracy"] == alone["exact_accuracy"]


@pytest.mark.parametrize(
    "name",
    [
        "cached",
        "cached_gcn",
        "everything",
        "labor",
        "on_disk",
        "split",
        "users",
        "users_gcn",
        "rgat",
        "keyed",
        "pygs",
        "clusters",
        "sampler",
        "typed",
        "typed_pieces",
        "dated",
        "latest",
        "bare_rgat",
    ],
)
def test_with_every_option_and_dropout_losses_and_accuracy_are_the_same(
    results: dict[int, list[dict[str, Any]]], name: str
) -> None:
    alone = results[1][0]
    assert results[3][0][name] == pytest.approx(alone[name], rel=0, abs=1e-9)
    assert results[3][0][f"{name}_accuracy"] == alone[f"{name}_accuracy"]


@pytest.mark.parametrize(
    ("name", "measure"), [("numbers", "rmse"), ("own_loss", "largest_error"), ("weighted", "roc_auc")]
)
def test_with_any_loss_metric_and_optimizer_losses_and_score_are_the_same(
    results: dict[int, list[dict[str, Any]]], name: str, measure: str
) -> None:
    alone = results[1][0]
    for rank in results[3]:
        assert rank[name] == pytest.approx(alone[name], rel=0, abs=1e-9)
        assert rank[f"{name}_score"] == [measure, pytest.approx(alone[f"{name}_score"][1], rel=0, abs=1e-9), ANY]
        assert rank[f"{name}_score"][2] == alone[f"{name}_score"][2] > 0


def test_pieces_are_evaluated_like_the_whole_graph(results: dict[int, list[dict[str, Any]]]) -> None:
    for ranks in results.values():
        for rank in ranks:
            assert rank["pieces"] == rank["keyed"]
            assert rank["pieces_accuracy"] == rank["keyed_accuracy"]


@pytest.mark.parametrize("placement", ["on_disk", "split"])
def test_features_on_disk_or_split_give_identical_results(
    results: dict[int, list[dict[str, Any]]], placement: str
) -> None:
    for ranks in results.values():
        for rank in ranks:
            assert rank[placement] == rank["labor"]
            assert rank[f"{placement}_accuracy"] == rank["labor_accuracy"]


def test_evaluation_fetches_rows_from_other_nodes(results: dict[int, list[dict[str, Any]]]) -> None:
    for ranks in results.values():
        for rank in ranks:
            assert rank["users_split_accuracy"] == rank["users_accuracy"]


def test_ranks_may_fetch_more_often_than_others(results: dict[int, list[dict[str, Any]]]) -> None:
    row = 1433 * 4
    nodes, replicas = results[3][0]["nodes"], (1 << 20) // (row + 8)
    size = -(-nodes // 3)
    for number, rank in enumerate(results[3]):
        is_right, fetched = rank["fetched"]
        assert is_right
        assert len(fetched) == 2 * number
        own = range(size) if number == 0 else range(size, nodes)  # one rank on a node, and two on the other
        replicated = set(range(nodes)[-replicas:]) - set(own) or set(range(size)[-replicas:])
        for is_right, asked, numbers in fetched:
            assert is_right
            elsewhere = [node for node in asked if node not in own]
            missing = [node for node in elsewhere if node not in replicated]
            hit_rate = 1 - len(missing) / max(1, len(elsewhere))
            assert numbers == {"bytes_exchanged": len(missing) * (row + 4), "cache_hit_rate": round(hit_rate, 4)}


def test_in_float32_with_the_defaults_the_first_losses_agree(
    results: dict[int, list[dict[str, Any]]],
) -> None:
    alone = results[1][0]["default"]
    assert results[3][0]["default"][:5] == pytest.approx(alone[:5], rel=0, abs=1e-4)


def test_all_ranks_hold_the_same_parameters_bit_for_bit(results: dict[int, list[dict[str, Any]]]) -> None:
    for ranks in results.values():
        for name in ("exact_checksum", "default_checksum"):
            assert len({rank[name] for rank in ranks}) == 1


def test_every_test_node_is_counted_once_and_every_node_inferred_once(results: dict[int, list[dict[str, Any]]]) -> None:
    for ranks in results.values():
        assert {rank["exact_accuracy"][1] for rank in ranks} == {ranks[0]["test"]}
        assert ranks[0]["exact_accuracy"][0] / ranks[0]["test"] > 0.8
        assert {rank["every"][1] for rank in ranks} == {ranks[0]["nodes"]}
        slices = [rank["own"] for rank in ranks]
        assert [start for start, _, _ in slices] == [0, *(stop for _, stop, _ in slices[:-1])]
        assert slices[-1][1] == ranks[0]["nodes"]
        assert all(stop - start == outputs for start, stop, outputs in slices)


def test_only_the_rank_that_prepares_imports_pyg_or_torchs_compiler(
    results: dict[int, list[dict[str, Any]]],
) -> None:
    slow = {number: [rank["slow_imports"] for rank in ranks] for number, ranks in results.items()}
    assert [rank for ranks in slow.values() for rank in ranks].count([]) == 3


@pytest.mark.long
@pytest.mark.parametrize("tasks_per_node", [[4] * 4, [8] * 4], ids=["16 ranks", "32 ranks"])
def test_many_ranks_reach_the_accuracy_of_a_few_on_the_same_global_batch(
    tmp_path: Path, tasks_per_node: list[int]
) -> None:
    train = RedditTrain(epochs=10, batch_size=None, global_batch_size=512, evaluate_every=0)
    job = Job(name="cora", workload="reddit", data=Data(root=str(CORA)), train=train)
    few, many = RunDir(tmp_path / "few"), RunDir(tmp_path / "many")
    for run, tasks in ((few, [2, 2]), (many, tasks_per_node)):
        done = run_job(job, run, tasks)
        assert {code for code, _, _ in done} == {0}, done[0]
    accuracy, of_many = (metrics_of(run)[-1]["test_accuracy"] for run in (few, many))
    assert len(losses_of(few)) == len(losses_of(many)) == 40
    assert accuracy > 0.84
    assert of_many == pytest.approx(accuracy, abs=0.02)

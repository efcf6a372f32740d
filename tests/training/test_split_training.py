"""Training on features that are split over the nodes: the losses and scores of features that each node has whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.ranks import CORA, run_program

from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.long

PROGRAM = f"""
import json, torch
import torch_geometric  # before the ranks are forked
from dataclasses import replace
from pathlib import Path
from support.made_graphs import bare_academy, dated_academy, random_academy
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, LinkPredictionTrain, NodeClassificationTrain, RedditTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.graph.links import LinkGraph
from clusterctl.engine.training.objectives.own_link import OwnLinkPrediction
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.training.objectives.typed_node import TypedNodeClassification
from clusterctl.engine.data.own_links import link_graph
from clusterctl.engine.data.own_data import own_recipe
from clusterctl.engine.data.reddit import raw_identity, read_raw

class Lines(list):
    def write(self, **values):
        if "loss" in values:
            self.append(values)

root = {str(CORA)!r}
record = {{"name": "t", "workload": "reddit", "data": {{"placement": "split"}}}}
with joined(Context(record, attempt=current_attempt())) as task:
    graph = shared(task, Graph, "cora", raw_identity(root), lambda scratch: read_raw(Path(root), scratch))
    links = shared(task, LinkGraph, *own_recipe(Data(load="support.own_nets:some_links"), link_graph))
    academy = shared(task, LabelledHeteroGraph, "academy", {{}}, lambda _: random_academy())
    bare = shared(task, LabelledHeteroGraph, "bare", {{}}, lambda _: bare_academy("author"))
    dated = shared(task, LabelledHeteroGraph, "dated", {{}}, lambda _: dated_academy())
    both = dict(batch_size=None, global_batch_size=250, epochs=2, precision="float64")
    sage = RedditTrain(**both, hidden_channels=32)
    wide = replace(sage, hidden_channels=1440)  # evaluated without projecting first
    wide_labor = replace(wide, epochs=1, sampling="labor")
    own = NodeClassificationTrain(**both, model="support.own_nets:Gat", fan_out=(4, 3))
    gat = replace(own, model="gat", options=dict(hidden=4, heads=2, attention_dropout=0.3))
    rgat = replace(gat, model="rgat", global_batch_size=10, epochs=4)
    typed = replace(rgat, model="support.own_nets:Typed", options={{}}, lr=0.02, embedding_width=5)
    calm = replace(rgat, options=dict(hidden=4, heads=2, dropout=0.0), embedding_width=5, lr=0.02)
    pieces, layers = replace(typed, hops=2), replace(typed, model="support.own_nets:TypedLayers")
    link = LinkPredictionTrain(**both, model="support.own_nets:Encoder", lr=0.01)
    trainings = dict(
        sage=(NodeClassification, graph, sage), labor=(NodeClassification, graph, replace(sage, sampling="labor")),
        gcn=(NodeClassification, graph, replace(sage, model="gcn")),
        wide=(NodeClassification, graph, wide), wide_labor=(NodeClassification, graph, wide_labor),
        own=(OwnNodeClassification, graph, own), gat=(OwnNodeClassification, graph, gat),
        rgat=(RelationNodeClassification, academy, rgat), rgat_bare=(RelationNodeClassification, bare, calm),
        typed=(TypedNodeClassification, bare, typed), typed_pieces=(TypedNodeClassification, academy, pieces),
        typed_layers=(TypedNodeClassification, bare, layers), dated=(TypedNodeClassification, dated, typed),
        link=(OwnLinkPrediction, links, link),
    )
    result = {{}}
    for name, (kind, data, train) in trainings.items():
        for way, cache, split in (("whole", None, False), ("split", None, True), ("replicas", 1 << 20, True)):
            lines = Lines()
            score = fit(kind(data, train, task, cache, split=split), train, replace(task, metrics=lines))
            numbers = [[line.get("bytes_exchanged"), line.get("cache_hit_rate")] for line in lines]
            result[f"{{name}} {{way}}"] = [[line["loss"] for line in lines], list(score), numbers]
print(json.dumps(result))
"""
MEMORY = """
import json, torch
from pathlib import Path
from clusterctl.engine.graph.storage import Graph, compressed, shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import RedditTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification

NODES, WIDTH = 40_000, 512

def build(scratch):
    edges = torch.randint(NODES, (2, 4 * NODES))
    splits = torch.arange(NODES).split([NODES - 200, 100, 100])
    x, y = torch.randn(NODES, WIDTH), torch.randint(4, (NODES,))
    return Graph(*compressed(edges, NODES), x, y, *splits, num_classes=4)

def resident(name):
    # KiB of the mappings whose line in smaps holds the name
    inside, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            inside = name in line
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found

record = {"name": "t", "workload": "reddit", "data": {"placement": "split"}}
with joined(Context(record, attempt=current_attempt())) as task:
    graph = shared(task, Graph, "large", {}, build)
    train = RedditTrain(batch_size=None, global_batch_size=8000, epochs=1, fan_out=(3, 2), hidden_channels=WIDTH)
    fit(NodeClassification(graph, train, task, split=True), train, task)
    print(json.dumps([resident("graph.pt"), resident("clusterctl-table"), graph.x.numel() * 4 // 1024]))
"""
ON_ONE_TYPE = ["sage", "labor", "gcn", "wide", "wide_labor", "own", "gat", "link"]
NAMES = [*ON_ONE_TYPE, "rgat", "rgat_bare", "typed", "typed_pieces", "typed_layers", "dated"]
SHAPES = {"2 nodes": [1, 1], "4 nodes": [1, 1, 1, 1], "2 uneven nodes": [1, 2], "one node": [2]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The shape -> what each rank says."""
    runs = tmp_path_factory.mktemp("runs")
    said = {}
    for name, tasks_per_node in {"alone": [1], **SHAPES}.items():
        outputs = run_program(PROGRAM, RunDir(runs / name.replace(" ", "-")).attempt(0), tasks_per_node, timeout=900)
        said[name] = [json.loads(output.splitlines()[-1]) for output in outputs]
    return said


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_scores_are_those_of_one_rank(
    results: dict[str, list[dict[str, Any]]], name: str, shape: str
) -> None:
    losses, score, _ = results["alone"][0][f"{name} whole"]
    assert losses[-1] < losses[0]
    for rank in results[shape]:
        for way in ("whole", "split", "replicas"):
            found, score_found, _ = rank[f"{name} {way}"]
            assert found == pytest.approx(losses, rel=0, abs=1e-9)
            assert score_found == pytest.approx(score, rel=0, abs=1e-9)
            assert [found, score_found] == rank[f"{name} whole"][:2]  # on the same ranks: no other bit


@pytest.mark.parametrize("shape", ["2 nodes", "4 nodes", "2 uneven nodes"])
def test_replicas_and_labor_save_bytes(results: dict[str, list[dict[str, Any]]], shape: str) -> None:
    rank = results[shape][0]
    for name in NAMES:
        without, with_replicas = rank[f"{name} split"][2], rank[f"{name} replicas"][2]
        for (all_bytes, no_rate), (fewer_bytes, rate) in zip(without, with_replicas, strict=True):
            assert no_rate is None
            assert 0 < rate <= 1
            assert fewer_bytes == pytest.approx(all_bytes * (1 - rate), rel=0.01, abs=50)
    sage, labor = (sum(size for size, _ in rank[f"{name} split"][2]) for name in ("sage", "labor"))
    assert labor < sage


def test_one_node_exchanges_nothing(results: dict[str, list[dict[str, Any]]]) -> None:
    for shape in ("alone", "one node"):
        for _, _, numbers in results[shape][0].values():
            assert {tuple(pair) for pair in numbers} == {(None, None)}


def test_a_node_holds_its_part_and_maps_no_other_features(tmp_path: Path) -> None:
    """Each rank maps the file of all features, and reads none of them through the mapping."""
    alone, *pair = [
        json.loads(output.splitlines()[-1])
        for output in run_program(MEMORY, RunDir(tmp_path / "run").attempt(0), [1, 2])
    ]
    assert alone[1] == 0  # a rank that is alone on its node shares no memory
    for mapped, _, table in (alone, *pair):
        assert mapped < table / 8
    for _, shared_memory, table in pair:
        assert shared_memory == pytest.approx(table * 2 / 3, rel=0.01)

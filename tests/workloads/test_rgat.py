"""The relational attention network as a workload, on IGB's layout, generated data or user data, with any rank count."""

from __future__ import annotations

import json
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.lone_task import lone_task as lone_task
from support.made_graphs import AUTHOR, NODES, PAPER, WRITES, random_academy
from support.ranks import losses_of, metrics_of, run_job, run_program
from torch.nn import functional as F
from torch_geometric.data import HeteroData

from clusterctl.engine.data import igb
from clusterctl.engine.data.igb import CITES, WRITTEN_BY, read_raw, reverse
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.metrics import f1_macro
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.workloads.node_classification import relations_of, relations_recipe
from clusterctl.launcher.config.resolution import contradictions
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Job, NodeClassificationTrain, from_record
from clusterctl.shared.spec.data_sizes import FIELD, IGB_EDGES, IGB_NODES, IGB_PAPERS, INSTITUTE, igb_count

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SCALE = 1e-6


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("igb")
    assert igb.write(folder, SCALE, 0) == igb.BEST_ACCURACY
    return folder


def test_a_generated_graph_has_the_proportions_of_the_real_one(root: Path, tmp_path: Path) -> None:
    graph = read_raw(root, tmp_path)
    assert graph.num_nodes == {PAPER: 269, AUTHOR: 960, INSTITUTE: 24, FIELD: 227}
    assert {x.size(1) for x in graph.x.values()} == {1024}
    files = {path.parent.name: len(np.load(path)) for path in root.glob("processed/*/edge_index.npy")}
    wanted = {"__".join(relation): round(counts[0] * 0.00269) for relation, counts in IGB_EDGES.items()}
    assert files == pytest.approx(wanted, abs=1)
    edges = {relation: indices.numel() for relation, indices in graph.indices.items()}
    assert len(edges) == 7
    assert (
        1.2 * files["paper__cites__paper"] < edges[CITES] < 2 * files["paper__cites__paper"]
    )  # both directions, without repeats
    assert edges[WRITTEN_BY] == edges[reverse(WRITTEN_BY)] <= files["paper__written_by__author"]
    assert [graph.train.numel(), graph.val.numel(), graph.test.numel()] == [161, 54, 54]
    targets = torch.arange(960).repeat_interleave(graph.indptr[WRITTEN_BY].diff())
    back = torch.arange(269).repeat_interleave(graph.indptr[reverse(WRITTEN_BY)].diff())
    there = set(zip(graph.indices[WRITTEN_BY].tolist(), targets.tolist(), strict=True))
    assert there == set(zip(back.tolist(), graph.indices[reverse(WRITTEN_BY)].tolist(), strict=True))


def test_counts_match_the_five_published_sizes() -> None:
    for number, papers in enumerate(IGB_PAPERS):
        for counts in (*IGB_NODES.values(), *IGB_EDGES.values()):
            assert igb_count(counts, papers) == counts[number]
    assert sum(counts[-1] for counts in IGB_NODES.values()) == 547_306_935
    assert sum(counts[-1] for counts in IGB_EDGES.values()) == 5_812_005_639


def test_features_and_labels_are_read_with_or_without_a_header(root: Path, tmp_path: Path) -> None:
    expected = read_raw(root, tmp_path)
    bare = tmp_path / "bare"
    for path in root.glob("processed/**/*.npy"):
        copy = bare / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        array = np.load(path)
        if "edge_index" in path.name:
            np.save(copy, array)
        else:
            copy.write_bytes(array.tobytes())
    graph = read_raw(bare, tmp_path)
    assert torch.equal(graph.x[INSTITUTE], expected.x[INSTITUTE])
    assert torch.equal(graph.y, expected.y)
    assert torch.equal(graph.indices[CITES], expected.indices[CITES])


def test_mistakes_in_the_files_are_reported_with_their_position(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TaskError, match="no data: .*node_feat.npy"):
        igb.recipe(tmp_path, undirected=True)
    monkeypatch.setattr(igb, "CLASSES", 5)
    with pytest.raises(TaskError, match="classes up to 18"):
        read_raw(root, tmp_path)
    path = tmp_path / "edges.npy"
    np.save(path, np.array([[0, 1], [2, 960]]))
    with pytest.raises(TaskError, match=r"row 1: \[2, 960\] is not an edge"):
        list(igb._edges(path, WRITTEN_BY, {PAPER: 269, AUTHOR: 960}))


def hetero_data() -> HeteroData:
    graph, data = random_academy(), HeteroData()
    for kind, x in graph.x.items():
        data[kind].x = x
    for relation, indices in graph.indices.items():
        rows = torch.arange(NODES[relation[2]]).repeat_interleave(graph.indptr[relation].diff())
        data[relation].edge_index = torch.stack([indices.long(), rows])
    data[PAPER].y = graph.y
    for split in ("train", "val", "test"):
        data[PAPER][f"{split}_mask"] = torch.zeros(NODES[PAPER], dtype=torch.bool)
        data[PAPER][f"{split}_mask"][getattr(graph, split)] = True
    return data


def test_the_users_heterodata_gives_the_same_graph() -> None:
    graph, expected = relations_of(hetero_data(), "my:load"), random_academy(torch.float64)
    assert graph.node_type == PAPER
    assert torch.equal(graph.indices[WRITES], expected.indices[WRITES])
    assert torch.equal(graph.test, expected.test)
    assert torch.equal(graph.x[AUTHOR], expected.x[AUTHOR].float())
    data = hetero_data()
    del data[AUTHOR].x
    with pytest.raises(TaskError, match="author: it has no x"):
        relations_of(data, "my:load")


def test_training_learns_the_classes(root: Path, tmp_path: Path, lone_task: Task) -> None:
    graph = read_raw(root, tmp_path)
    options: dict[str, object] = {"hidden": 8, "heads": 2, "dropout": 0.1}
    train = NodeClassificationTrain(
        model="rgat", options=options, batch_size=40, epochs=6, fan_out=(8, 5), lr=0.01, evaluate_every=0
    )
    score = fit(RelationNodeClassification(graph, train, lone_task), train, lone_task)
    assert score.total == 54
    assert score.value > 0.3  # chance is 0.05


ROWS: dict[str, dict[str, Any]] = {
    "weights": {"class_weights": (1.0, 3.0, 0.5, 2.0)[: random_academy().num_classes], "metric": "f1_macro"},
    "numbers": {"loss": "mse"},
    "own": {"loss": "users_of_rgat:squares", "metric": "users_of_rgat:largest", "metric_better": "lower"},
}


@pytest.mark.parametrize("kind", ROWS)
def test_other_losses_and_metrics_are_those_of_a_plain_computation(
    kind: str, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = types.ModuleType("users_of_rgat")
    users.squares = lambda scores, y: (scores - y).square().sum(1)  # type: ignore[attr-defined]
    users.largest = lambda predictions, y: (predictions - y).abs().max()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_of_rgat", users)
    data, answers = hetero_data(), "classes"
    if kind != "weights":
        data[PAPER].y, answers = torch.randn(NODES[PAPER], 2), "either"
    graph = relations_of(data, "my:load", answers=answers)
    options: dict[str, object] = {"hidden": 4, "heads": 2, "dropout": 0.0}
    train = NodeClassificationTrain(
        model="rgat", options=options, fan_out=(-1, -1), precision="float64", report_train=True, **ROWS[kind]
    )
    objective = RelationNodeClassification(graph, train, lone_task)
    batch = Batch(0, 0, graph.train, torch.ones(graph.train.numel()), graph.train.numel(), graph.train)
    prepared = objective.prepare(batch)
    scores = objective.scored(prepared, objective.gather(prepared), ())
    y = graph.y[graph.train]
    plain = {
        "weights": lambda: F.cross_entropy(scores, y, torch.tensor(train.class_weights, dtype=torch.float64)),
        "numbers": lambda: F.mse_loss(scores, y.double()),
        "own": lambda: (scores - y).square().sum(1).mean(),
    }[kind]()
    torch.testing.assert_close(objective.loss(batch, prepared), plain, rtol=0, atol=1e-12)
    objective.model.eval()
    scores = scores.detach()
    found = objective.evaluate(["train", "val", "test"])
    expected = {
        "weights": lambda: f1_macro(scores, y),
        "numbers": lambda: float((scores - y).square().mean(0).sqrt().mean()),
        "own": lambda: float((scores - y).abs().max()),
    }[kind]()
    assert found["train"].value == pytest.approx(expected, abs=1e-9)
    assert found["test"].total == graph.test.numel()
    assert objective.classes == (graph.num_classes if kind == "weights" else 0)


def test_settings_of_other_models_are_rejected() -> None:
    def problems(**train: Any) -> list[str]:
        job = Job(name="x", workload="node-classification", train=NodeClassificationTrain(**train))
        return list(map(str, contradictions(job, Cluster(name="c"))))

    assert "train.sampling" in " ".join(problems(model="rgat", generated=0.1, sampling="labor"))
    assert "train.generated" in " ".join(problems(model="gat", generated=0.1))
    assert problems(model="rgat", generated=0.1, options={"heads": 2}) == []
    with pytest.raises(TaskError, match="data.root is not set"):
        relations_recipe(Job(name="x", workload="node-classification").data, 0.0)


PROGRAM = """
import json
from dataclasses import replace
from support.made_graphs import random_academy
from clusterctl.engine.graph.storage import LabelledHeteroGraph, shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import NodeClassificationTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from support.ranks import Losses

with joined(Context({"name": "t", "workload": "reddit"}, attempt=current_attempt())) as task:
    options = dict(hidden=4, heads=2, dropout=0.5, attention_dropout=0.3, residual=True)
    train = NodeClassificationTrain(model="rgat", options=options, global_batch_size=7, epochs=3, fan_out=(4, 3, 2),
                                    precision="float64", evaluate_every=1, patience=2)
    graph = shared(task, LabelledHeteroGraph, "academy", {}, lambda _: random_academy())
    results = []
    for cache in (None, 1500):
        losses = Losses()
        score = fit(RelationNodeClassification(graph, train, task, cache), train, replace(task, metrics=losses))
        results.append([losses, score])
print(json.dumps(results))
"""


@pytest.mark.long
def test_losses_depend_neither_on_the_number_of_ranks_nor_on_where_the_features_are(tmp_path: Path) -> None:
    """With both dropouts."""
    results = []
    for ranks in ([1], [2], [1, 3]):
        outputs = run_program(PROGRAM, RunDir(tmp_path / f"on-{sum(ranks)}").attempt(0), ranks)
        memory, disk = json.loads(outputs[0].splitlines()[-1])
        assert disk == memory  # bit for bit
        results.append(memory)
    (alone, score), *others = results
    assert len(alone) >= 10
    for losses, same_score in others:
        assert losses == pytest.approx(alone, rel=0, abs=1e-9)
        assert same_score == score


@pytest.mark.long
def test_the_shipped_job_learns_on_four_ranks(tmp_path: Path) -> None:
    record = tomllib.loads((JOBS / "igbh-generated.toml").read_text()) | {"name": "igbh"}
    job = from_record(Job, record, parse=True)
    run = RunDir(tmp_path / "runs" / "igbh")
    done = run_job(job, run, [2, 2])
    assert [code for code, _, _ in done] == [0, 0, 0, 0], done
    assert len(losses_of(run)) == 5 * 7
    accuracy = metrics_of(run)[-1]["test_accuracy"]
    print("igbh-generated:", accuracy, "of", igb.BEST_ACCURACY)
    assert accuracy > 0.8

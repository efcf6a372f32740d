"""Generating, preparing and training on data sets in the layouts of the Open Graph Benchmark."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.made_graphs import cora, write_cora
from support.ranks import metrics_of, run_job

from clusterctl.engine.data.data_sets import data_set, generate, prepare
from clusterctl.engine.data.number_files import text_rows, text_words
from clusterctl.engine.data.ogb_like import MODELS, OTHER_EDGES
from clusterctl.engine.data.reddit import community
from clusterctl.engine.graph.storage import FILE, Graph, load
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.workloads import node_classification
from clusterctl.launcher.checks.data_size import training_set
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Data, Job, NodeClassificationTrain, RedditTrain, from_record

JOBS = Path(__file__).resolve().parents[2] / "jobs"


@pytest.mark.parametrize("name", MODELS)
def test_a_generated_data_set_has_the_shape_of_the_real_one(tmp_path: Path, name: str) -> None:
    scale = 1e-5 if name == "ogbn-papers100M" else 5e-4
    shape = MODELS[name].shape
    generate(name, scale, 1, tmp_path / "data")
    with pytest.raises(UsageError, match="a data set exists already"):
        generate(name, scale, 1, tmp_path / "data")
    summary = prepare(name, tmp_path / "data", tmp_path / "cache")
    assert (
        summary
        == f"ready: {tmp_path}/data; try: clusterctl submit {data_set(name).job} --set data.root={tmp_path}/data"
    )
    (folder,) = (tmp_path / "cache").iterdir()
    graph = load(Graph, folder / FILE)
    assert graph.num_nodes == max(shape.classes, round(shape.nodes * scale))
    assert graph.num_features == shape.features
    assert shape.classes // 2 < graph.num_classes <= shape.classes
    edges = int(community(scale, 1, shape).degree.sum())
    assert edges == pytest.approx(shape.degree * graph.num_nodes, rel=0.15)
    assert 0.4 * edges < graph.indices.numel() <= 2 * edges  # both directions; with so few nodes, many repeat
    splits = torch.cat([graph.train, graph.val, graph.test])
    assert splits.unique().numel() == splits.numel() == (graph.y >= 0).sum()
    assert all(part.numel() for part in (graph.train, graph.val, graph.test))
    job = Job(name="x", workload="reddit", data=Data(root=str(tmp_path / "data")), train=RedditTrain())
    counted = training_set(job)
    assert counted is not None
    assert counted.size == graph.train.numel()


def test_a_generated_mag_has_its_other_relations(tmp_path: Path) -> None:
    generate("ogbn-mag", 5e-4, 1, tmp_path / "data")
    folder = tmp_path / "data" / "raw" / "relations"
    found = {path.name: [*text_rows(path / "edge.csv.gz", np.int64, columns=2)] for path in folder.iterdir()}
    assert found.keys() == {"___".join(relation) for relation in (*OTHER_EDGES, ("paper", "cites", "paper"))}
    names, counts = text_words(tmp_path / "data" / "raw" / "num-node-dict.csv.gz")
    nodes = dict(zip(names, map(int, counts), strict=True))
    for relation, edges in OTHER_EDGES.items():
        rows = np.concatenate([piece.rows for piece in found["___".join(relation)]])
        assert len(rows) == round(edges * 5e-4)
        assert (rows >= 0).all()
        assert (rows < [nodes[relation[0]], nodes[relation[2]]]).all()


def test_the_users_own_model_trains_on_an_ogb_layout(tmp_path: Path, lone_task: Task) -> None:
    (tmp_path / "scratch").mkdir()
    graph = cora(tmp_path / "scratch")
    graph = replace(graph, x=graph.x[:, ::4].contiguous())
    root = write_cora("ogbn-arxiv", tmp_path / "data", graph)
    recipe = node_classification.recipe(Data(root=str(root)))
    (tmp_path / "prepared").mkdir()
    recipe.prepare(tmp_path / "prepared")
    train = NodeClassificationTrain(model="support.own_nets:Noisy", epochs=3, fan_out=(5, 5), lr=0.02)
    fit(OwnNodeClassification(load(Graph, tmp_path / "prepared" / FILE), train, lone_task), train, lone_task)
    assert metrics_of(RunDir(tmp_path / "run"))[-1]["test_accuracy"] > 0.6


@pytest.mark.long
def test_two_ranks_train_graphsage_on_read_only_papers(tmp_path: Path) -> None:
    """A smaller version of the shipped job."""
    (tmp_path / "scratch").mkdir()
    graph = cora(tmp_path / "scratch")
    root = write_cora("ogbn-papers100M", tmp_path / "data", replace(graph, x=graph.x[:, ::4].contiguous()))
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        folder.chmod(0o555)
    record = tomllib.loads((JOBS / "papers100m.toml").read_text()) | {"name": "papers100m"}
    record["data"]["root"] = str(root)
    record["train"] |= {"epochs": 3, "hidden_channels": 32, "batch_size": 256, "lr": 0.02}
    job = from_record(Job, record, parse=True)
    run = RunDir(tmp_path / "runs" / "papers")
    done = run_job(replace(job, resources=replace(job.resources, nodes=1, time=600)), run, [2])
    assert [code for code, _, _ in done] == [0, 0], done
    assert metrics_of(run)[-1]["test_accuracy"] > 0.7
    assert {path.name for path in root.iterdir()} == {"raw", "split"}

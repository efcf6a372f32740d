"""The size of a training set as known on the login node, compared with the tasks' own count."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.made_graphs import cora, write_cora
from support.ranks import CORA, IMDB

from clusterctl.engine.data import reddit, taobao
from clusterctl.engine.data.taobao import read_events
from clusterctl.engine.training.objectives.graph import PARTS, stratified
from clusterctl.engine.workloads import synthetic
from clusterctl.launcher.checks.data_size import training_set
from clusterctl.shared.spec import Job, TrainingSet, from_record


def job(workload: str, root: Path | None = None, **train: float) -> Job:
    record = {"name": "t", "workload": workload, "train": train, "data": {"root": root and str(root)}}
    return from_record(Job, record)


def test_nodes_are_counted_in_the_raw_files(tmp_path: Path) -> None:
    nodes = reddit.read_raw(CORA, tmp_path).train.numel()
    for workload in ("reddit", "deep-sage"):
        assert training_set(job(workload, CORA)) == TrainingSet(nodes, "nodes")


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-papers100M", "ogbn-mag"])
def test_nodes_are_counted_in_the_layouts_of_the_open_graph_benchmark(tmp_path: Path, name: str) -> None:
    graph = cora(tmp_path)
    root = write_cora(name, tmp_path / "data", replace(graph, x=graph.x[:, :1]))
    assert training_set(job("reddit", root)) == TrainingSet(graph.train.numel(), "nodes")
    (split,) = root.glob("split/time/**/train.csv.gz")
    split.write_bytes(split.read_bytes()[:-100])
    assert training_set(job("reddit", root)) is None


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.int64])
def test_nodes_are_counted_in_any_integer_type(tmp_path: Path, kind: type) -> None:
    (tmp_path / "raw").mkdir()
    np.savez_compressed(tmp_path / "raw" / "reddit_data.npz", node_types=np.array([1, 2, 3, 1, 1], dtype=kind))
    assert training_set(job("reddit", tmp_path)) == TrainingSet(3, "nodes")


def test_graphs_are_counted_without_the_parts_for_validation_and_test(tmp_path: Path) -> None:
    assert training_set(job("graph-classification", IMDB)) == TrainingSet(800, "graphs")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "X_graph_labels.txt").write_text("1\n" * 37)
    import torch

    parts = stratified(torch.ones(37, dtype=torch.int64), 0)
    found = training_set(job("graph-classification", tmp_path))
    assert found == TrainingSet(sum(part.numel() for part in parts[2:PARTS]), "graphs")


def test_generated_and_large_data_sets_are_estimated(tmp_path: Path) -> None:
    taobao.write(tmp_path, 0.001, 0)
    read = taobao.interactions(read_events(tmp_path), 3, 1.0)
    edges = next(iter(read.indices.values())).numel()
    for found in (training_set(job("taobao", generated=0.001)), training_set(job("taobao", tmp_path))):
        assert found is not None
        assert not found.exact
        assert found.size == pytest.approx(edges, rel=0.03)
    found = training_set(job("synthetic", avg_num_nodes=1000))
    assert found == TrainingSet(600, "nodes", exact=False)
    assert synthetic.generate(1000, seed=0).train.numel() == pytest.approx(600, rel=0.26)


def test_missing_or_damaged_data_has_no_known_size(tmp_path: Path) -> None:
    for workload in ("reddit", "graph-classification", "taobao", "command"):
        assert training_set(job(workload)) is None
        assert training_set(job(workload, tmp_path)) is None
    raw = shutil.copytree(CORA / "raw", tmp_path / "raw") / "reddit_data.npz"
    whole = raw.read_bytes()
    for content in (b"", whole[:1000], whole[:-3000] + bytes(3000), bytes(5000)):
        raw.write_bytes(content)
        assert training_set(job("reddit", tmp_path)) is None

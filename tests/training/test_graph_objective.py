"""Folds, features, and the same training on 1 and 3 ranks, on IMDB-BINARY."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.ranks import IMDB, run_program

from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.training.objectives.graph import features_of, stratified
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir

PROGRAM = f"""
import json, torch
from dataclasses import replace
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, GraphClassificationTrain
from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.graph.storage import shared
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.objectives.graph import GraphClassification
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.progress import Fold
from clusterctl.engine.workloads.graph_classification import recipe
from support.ranks import Losses

with joined(Context({{"name": "t", "workload": "reddit"}}, attempt=current_attempt())) as task:
    graphs = shared(task, Collection, *recipe(Data(root={str(IMDB)!r})))
    result = {{}}
    for model, dropout in (("gin", 0.5), ("plain", 0.0)):
        train = GraphClassificationTrain(
            batch_size=None, global_batch_size=240, epochs=3, precision="float64", model=model, dropout=dropout, lr=0.01
        )
        losses = Losses()
        score = fit(GraphClassification(graphs, train, task, 3), train, replace(task, metrics=losses), Fold(1, 1))
        result[model] = [losses, score]
print(json.dumps(result))
"""


@pytest.mark.long
def test_losses_and_accuracy_do_not_depend_on_the_number_of_ranks_with_dropout_and_padding(tmp_path: Path) -> None:
    results: dict[int, dict[str, Any]] = {}
    for tasks_per_node in ([1], [1, 2]):
        ranks = sum(tasks_per_node)
        outputs = run_program(PROGRAM, RunDir(tmp_path / f"on-{ranks}").attempt(0), tasks_per_node)
        results[ranks] = json.loads(outputs[-1].splitlines()[-1])
    for model in ("gin", "plain"):
        losses, score = results[1][model]
        assert len(losses) == 3 * 4  # 800 graphs: the last step of 240 is padded
        assert score[1] == 100
        assert results[3][model][0] == pytest.approx(losses, rel=0, abs=1e-9)
        assert results[3][model][1] == score


@given(st.lists(st.integers(0, 2), min_size=10, max_size=80), st.integers(0, 5))
def test_parts_hold_every_graph_once_and_are_balanced(classes: list[int], seed: int) -> None:
    y = torch.tensor(classes)
    parts = stratified(y, seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(y.numel()))
    sizes = [part.numel() for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for of_class in range(3):
        counts = [int((y[part] == of_class).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1


def test_parts_depend_on_the_seed_alone() -> None:
    y = torch.arange(100) % 2
    assert all(map(torch.equal, stratified(y, 1), stratified(y, 1)))
    assert not torch.equal(stratified(y, 1)[0], stratified(y, 2)[0])


def test_features_are_degrees_ones_or_those_given() -> None:
    indptr, none = torch.tensor([0, 300, 300]), torch.empty(2, 0)
    graphs = Collection(torch.tensor([0, 2]), indptr, torch.zeros(300, dtype=torch.int32), none, torch.tensor([0]), 2)
    assert features_of(graphs, "degree").argmax(1).tolist() == [127, 0]
    assert features_of(graphs, "ones").tolist() == [[1.0], [1.0]]
    with pytest.raises(TaskError, match="no node features"):
        features_of(graphs, "given")

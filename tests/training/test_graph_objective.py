"""Folds, features, and the same training on 1 and 3 ranks, on IMDB-BINARY."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.ranks import IMDB, Losses, run_program

from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.storage import compressed
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.flat import Differentiated
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.graph import GraphClassification, features_of, stratified
from clusterctl.engine.training.progress import Fold
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import GraphClassificationTrain
from clusterctl.shared.spec import train as spec

PROGRAM = f"""
import json, torch
from dataclasses import replace
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, GraphClassificationTrain, train as spec
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
        for name, many in ((model, spec._MANY_STEPS), (f"{{model}}, compiled", 1)):
            spec._MANY_STEPS, losses = many, Losses()
            score = fit(GraphClassification(graphs, train, task, 3), train, replace(task, metrics=losses), Fold(1, 1))
            result[name] = [losses, score]
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
        for name, ranks in ((model, 3), (f"{model}, compiled", 1), (f"{model}, compiled", 3)):
            assert results[ranks][name][0] == pytest.approx(losses, rel=0, abs=1e-9)
            assert results[ranks][name][1] == score


def of_rings(task: Task, **train: Any) -> GraphClassification:
    """An objective on 40 rings of 3 to 7 nodes, whose class is whether their number is even."""
    sizes = [3 + number % 5 for number in range(40)]
    rings = [(size, torch.stack([torch.arange(size), torch.arange(size).roll(1)])) for size in sizes]
    bounds, edges = joined_graphs(rings)
    y = torch.tensor(sizes) % 2
    graphs = Collection(bounds, *compressed(edges, sum(sizes)), torch.empty(sum(sizes), 0), y, 2)
    return GraphClassification(graphs, GraphClassificationTrain(**train), task)


@pytest.mark.parametrize(
    ("train", "is_compiled"),
    [
        ({"batch_size": 4, "epochs": 26}, True),  # 8 steps in each of 10 folds
        ({"batch_size": 4, "epochs": 25}, False),
        ({"batch_size": 4, "epochs": 26, "folds": 5}, False),
        ({"batch_size": 4, "epochs": 26, "precision": "float64", "model": "plain", "dropout": 0.0}, True),
        ({"batch_size": 4, "epochs": 26, "precision": "bfloat16"}, False),
        ({"batch_size": 4, "epochs": 26, "label_smoothing": 0.1}, False),  # torchrun skips the checks of `submit`
    ],
)
def test_many_small_steps_are_compiled(lone_task: Task, train: dict[str, Any], is_compiled: bool) -> None:
    pytest.importorskip("numba")
    objective = of_rings(lone_task, **train)
    (batch,) = EpochPlan(objective.seeds, 32, seed=0, rank=0, world_size=1).batches(1)
    loss = objective.loss(batch, objective.prepare(batch))
    assert isinstance(loss, Differentiated) == is_compiled


def test_large_steps_are_left_to_torch() -> None:
    train = GraphClassificationTrain(epochs=100, folds=1, hidden_channels=64)
    assert train.has_many_small_steps(21, nodes=4096)
    assert not train.has_many_small_steps(21, nodes=4097)
    assert not train.has_many_small_steps(20, nodes=4096)


def test_compiled_steps_train_the_same_network(lone_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, padding, gradients of several parts, and evaluation, which is not compiled."""
    pytest.importorskip("numba")
    train = {"batch_size": 9, "epochs": 3, "folds": 1, "accumulate": 2, "precision": "float64", "lr": 0.05}
    found = []
    for many in (1 << 30, 1):
        monkeypatch.setattr(spec, "_MANY_STEPS", many)
        objective, losses = of_rings(lone_task, **train), Losses()
        score = fit(objective, GraphClassificationTrain(**train), replace(lone_task, metrics=losses), Fold(1, 1))
        found.append((losses, score, torch.cat([values.detach().flatten() for values in objective.model.parameters()])))
    (losses, score, weights), (compiled_losses, compiled_score, compiled_weights) = found
    assert len(losses) == 3 * 2
    assert compiled_losses == pytest.approx(losses, rel=0, abs=1e-9)
    assert compiled_score == score
    torch.testing.assert_close(compiled_weights, weights, rtol=0, atol=1e-9)


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

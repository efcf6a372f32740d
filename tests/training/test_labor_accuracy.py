"""LABOR is as accurate as uniform sampling: pairs of trainings that share their seed, on three graphs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.ranks import CORA

from clusterctl.engine.data.reddit import read_raw, reddit_like
from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.workloads.synthetic import generate
from clusterctl.shared.spec import RedditTrain, SyntheticTrain

SEEDS = 10
T_95 = 2.262  # Student's t with 9 degrees of freedom

# Fan-outs are small, so that most nodes have more neighbours than are drawn.
_CORA = RedditTrain(epochs=20, batch_size=None, global_batch_size=512, fan_out=(3, 2), evaluate_every=0)
_REDDIT = RedditTrain(epochs=2, evaluate_every=0)
_SYNTHETIC = SyntheticTrain(
    graph="fake-dataset", model="sage", epochs=4, batch_size=128, fan_out=(4, 4), lr=0.01, schedule="cosine",
    warmup=0.05, weight_decay=0.0, evaluate_every=0,
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("train", "load", "most"),
    [
        pytest.param(_CORA, lambda scratch: read_raw(CORA, scratch), 0.005, id="cora"),
        pytest.param(_REDDIT, lambda _: reddit_like(0.1), 0.002, id="a tenth of Reddit"),
        pytest.param(_SYNTHETIC, lambda _: generate(100_000, 0), 0.002, id="synthetic-sage"),
    ],
)
def test_the_mean_accuracy_is_that_of_uniform_sampling(
    train: RedditTrain | SyntheticTrain, load: Callable[[Path], Graph], most: float, lone_task: Task, tmp_path: Path
) -> None:
    graph = load(tmp_path)

    def accuracy(seed: int, sampling: str) -> float:
        settings = replace(train, seed=seed, sampling=sampling)
        return fit(NodeClassification(graph, settings, lone_task), settings, lone_task).value

    pairs = [(accuracy(seed, "labor"), accuracy(seed, "uniform")) for seed in range(SEEDS)]
    differences = [labor - uniform for labor, uniform in pairs]
    mean, error = statistics.mean(differences), statistics.stdev(differences) / SEEDS**0.5
    print(f"uniform: {statistics.mean(uniform for _, uniform in pairs):.4f}")
    print(f"labor - uniform: {100 * mean:+.3f} points, 95 % interval +-{100 * T_95 * error:.3f}")
    assert abs(mean) <= most

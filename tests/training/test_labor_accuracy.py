"""LABOR is as accurate as uniform sampling: pairs of trainings on Cora with the same seed."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from support.ranks import CORA

from clusterctl.spec import RedditTrain
from clusterctl.task.task import Task
from clusterctl.training.loop import fit
from clusterctl.training.node_objective import NodeClassification
from clusterctl.workloads.reddit import read_raw

SEEDS = 10
T_95 = 2.262  # Student's t with 9 degrees of freedom


@pytest.mark.long
def test_on_cora_the_mean_accuracy_differs_by_at_most_half_a_point(lone_task: Task, tmp_path: Path) -> None:
    """The fan-out is small, so most nodes have more neighbours than are sampled."""
    graph = read_raw(CORA, tmp_path)
    base = RedditTrain(epochs=20, batch_size=None, global_batch_size=512, fan_out=(3, 2), evaluate_every=0)

    def accuracy(seed: int, sampling: str) -> float:
        train = replace(base, seed=seed, sampling=sampling)
        return fit(NodeClassification(graph, train, lone_task), train, lone_task).share

    differences = [accuracy(seed, "labor") - accuracy(seed, "uniform") for seed in range(SEEDS)]
    mean, error = statistics.mean(differences), statistics.stdev(differences) / SEEDS**0.5
    print(f"labor - uniform: {100 * mean:+.2f} points, 95 % interval +-{100 * T_95 * error:.2f}")
    assert abs(mean) <= 0.005

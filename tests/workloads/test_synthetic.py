from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch
from support.ranks import losses_of, metrics_of, run_job

from clusterctl.engine.workloads.synthetic import generate
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Job, SyntheticTrain


def test_the_graph_and_its_splits_depend_only_on_the_seed() -> None:
    graphs = []
    for seed in (1, 1, 2):
        torch.manual_seed(torch.seed() % 2**31)
        random.seed()
        graphs.append(generate(300, seed))
    first, again, other = graphs
    assert first.num_nodes == again.num_nodes  # drawn with Python's random module
    assert torch.equal(first.indices, again.indices)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.test, again.test)
    assert (first.num_nodes, first.indices.numel()) != (other.num_nodes, other.indices.numel())


def test_the_splits_are_60_20_20_disjoint_and_cover_all_nodes() -> None:
    graph = generate(1000, seed=0)
    parts = [graph.train, graph.val, graph.test]
    assert torch.cat(parts).sort().values.tolist() == list(range(graph.num_nodes))
    assert [part.numel() / graph.num_nodes for part in parts] == pytest.approx([0.6, 0.2, 0.2], abs=0.002)


def test_edges_have_the_given_homophily_and_the_rest_is_fake_dataset() -> None:
    plain, graph = generate(2000, seed=0), generate(2000, 0, homophily=0.8)
    assert torch.equal(graph.x, plain.x)
    assert torch.equal(graph.test, plain.test)
    assert graph.indices.numel() == pytest.approx(plain.indices.numel(), rel=0.05)  # minus duplicates
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    assert not (graph.indices == targets).any()  # no self loops
    within = (graph.y[graph.indices.long()] == graph.y[targets]).double().mean()
    assert within == pytest.approx(0.8 + 0.2 / graph.num_classes, abs=0.02)
    pairs = set(zip(graph.indices.tolist(), targets.tolist(), strict=True))
    assert len(pairs) == graph.indices.numel()  # no repeated edges
    assert {(target, source) for source, target in pairs} == pairs  # both directions


@pytest.mark.long
def test_the_default_gcn_learns_well_above_chance(tmp_path: Path) -> None:
    train = SyntheticTrain(avg_num_nodes=4000, batch_size=64, epochs=6, schedule="cosine")
    run = RunDir(tmp_path / "runs" / "gcn")
    done = run_job(Job(name="s", workload="synthetic", train=train), run, [1])
    assert [code for code, _, _ in done] == [0], done
    assert metrics_of(run)[-1]["test_accuracy"] > 0.3  # chance is 0.1


@pytest.mark.long
def test_on_fake_dataset_the_gcn_stays_at_chance_and_counts_every_test_node(tmp_path: Path) -> None:
    train = SyntheticTrain(avg_num_nodes=2000, epochs=4, graph="fake-dataset")
    run = RunDir(tmp_path / "runs" / "gcn")
    done = run_job(Job(name="s", workload="synthetic", train=train), run, [1, 1])
    assert [code for code, _, _ in done] == [0, 0], done
    assert mean(losses_of(run)[-5:]) == pytest.approx(math.log(10), abs=0.1)
    assert metrics_of(run)[-1]["test_nodes"] == generate(2000, train.seed).test.numel()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_graphsage_learns_the_synthetic_labels_with_and_without_accelerations(tmp_path: Path, seed: int) -> None:
    train = SyntheticTrain(
        graph="fake-dataset", model="sage", epochs=2, schedule="cosine", warmup=0.05, weight_decay=0.0, seed=seed
    )
    accelerated = replace(train, cache_first_aggregation=True, precision="bfloat16")
    accuracies = []
    for settings in (train, accelerated):
        run = RunDir(tmp_path / "runs" / f"sage-{settings.precision}")
        done = run_job(Job(name="s", workload="synthetic", train=settings), run, [1, 1])
        assert [code for code, _, _ in done] == [0, 0], done
        accuracies.append(metrics_of(run)[-1]["test_accuracy"])
    print("synthetic, plain and accelerated:", accuracies)
    assert min(accuracies) > 0.93, accuracies
    assert abs(accuracies[0] - accuracies[1]) <= 0.01, accuracies

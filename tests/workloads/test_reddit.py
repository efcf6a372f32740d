from __future__ import annotations

import shutil
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from ranks import CORA, losses_of, metrics_of, run_job

from clusterctl.runs.files import read_lines
from clusterctl.runs.layout import RunDir
from clusterctl.spec import Data, Job, RedditTrain


def cora_job(root: Path = CORA, **train: object) -> Job:
    settings = {"batch_size": 128, **train}
    return Job(name="cora", workload="reddit", data=Data(root=str(root)), train=RedditTrain(**settings))  # type: ignore[arg-type]


def test_four_ranks_train_on_real_data_tell_their_stages_and_write_nothing_beside_the_data(tmp_path: Path) -> None:
    root = shutil.copytree(CORA, tmp_path / "data ü")
    (root / "raw").chmod(0o555)
    root.chmod(0o555)
    run = RunDir(tmp_path / "runs" / "cora")
    done = run_job(cora_job(root, epochs=2, lr=0.01), run, [2, 2])
    assert [code for code, _, _ in done] == [0, 0, 0, 0], done
    assert sorted(path.name for path in root.rglob("*")) == ["raw", "reddit_data.npz", "reddit_graph.npz"]
    assert [path.name for path in next(run.data_cache.iterdir()).iterdir()] == ["graph.pt"]

    final = metrics_of(run)[-1]
    with np.load(root / "raw" / "reddit_data.npz") as data:
        split = data["node_types"]
    assert final["test_nodes"] == (split == 3).sum()  # all of the test split, and not the validation split
    assert final["test_accuracy"] > 0.75
    assert len(losses_of(run)) == 2 * -(-(split == 1).sum() // 512)
    for rank in range(4):
        stages = [event["stage"] for event in read_lines(run.attempt(0).events(rank)) if event["event"] == "stage"]
        epoch = ["training", "evaluating"]
        assert stages == ["importing", "rendezvous", "loading", *epoch, *epoch]
    assert [output.count("epoch") for _, output, _ in done] == [2, 0, 0, 0]


@pytest.mark.long
def test_cora_reaches_087_on_average_of_three_seeds(tmp_path: Path) -> None:
    accuracies = []
    for seed in range(3):
        run = RunDir(tmp_path / "runs" / f"cora-{seed}")
        done = run_job(cora_job(epochs=20, seed=seed), run, [2, 2])
        assert [code for code, _, _ in done] == [0, 0, 0, 0], done
        accuracies.append(metrics_of(run)[-1]["test_accuracy"])
    assert mean(accuracies) >= 0.87, accuracies

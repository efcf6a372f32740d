from __future__ import annotations

import tomllib
from pathlib import Path
from statistics import mean

import pytest
from support.ranks import IMDB, metrics_of, run_job

from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Job, from_record

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def job_of(file: str, **train: object) -> Job:
    """The job in a file, with some settings changed."""
    record = tomllib.loads((JOBS / file).read_text())
    record |= {"name": "imdb", "data": {"root": str(IMDB)}, "train": {**record["train"], **train}}
    return from_record(Job, record, parse=True)


@pytest.mark.long
def test_folds_are_labelled_and_test_every_graph_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "gin")
    done = run_job(job_of("imdb-gin.toml", folds=3, epochs=2, profile=[2, 4]), run, [2])
    assert [code for code, _, _ in done] == [0, 0], done
    *folds, whole = metrics_of(run)
    steps = [record["step"] for record in folds if "loss" in record]
    assert steps == list(range(1, folds[0]["steps"] + 1))
    assert [record["test_graphs"] for record in folds if "test_graphs" in record] == [100] * 3
    assert whole["test_graphs"] == 300
    tested = {record["fold"]: record["test_accuracy"] for record in folds if "test_accuracy" in record}
    assert whole["test_accuracy"] == pytest.approx(mean(tested.values()))
    assert list(tested) == [1, 2, 3]
    assert sum("trace of steps" in line for line in done[0][1].splitlines()) == 1  # only of one fold
    assert "trace of steps 2 to 4," in done[0][1]
    assert "3 of 10 folds, 300 graphs: test accuracy" in done[0][1].splitlines()[-1]


@pytest.mark.long
def test_the_tutorials_settings_run_but_hardly_learn(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "plain")
    done = run_job(job_of("imdb-seed.toml"), run, [1])
    assert [code for code, _, _ in done] == [0], done
    final = metrics_of(run)[-1]
    assert final["test_graphs"] == 100
    assert 0.3 <= final["test_accuracy"] <= 0.75


@pytest.mark.long
def test_ten_folds_reach_71_on_average(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "gin")
    done = run_job(job_of("imdb-gin.toml"), run, [2, 2])
    assert [code for code, _, _ in done] == [0, 0, 0, 0], done
    final = metrics_of(run)[-1]
    assert final["test_graphs"] == 1000
    assert final["test_accuracy"] >= 0.71, final


@pytest.mark.long
def test_bfloat16_is_as_accurate_on_average_of_three_seeds(tmp_path: Path) -> None:
    means = {}
    for precision in ("float32", "bfloat16"):
        accuracies = []
        for seed in range(3):
            run = RunDir(tmp_path / precision / str(seed))
            done = run_job(job_of("imdb-gin.toml", folds=3, seed=seed, precision=precision), run, [2, 2])
            assert [code for code, _, _ in done] == [0, 0, 0, 0], done
            accuracies.append(metrics_of(run)[-1]["test_accuracy"])
        means[precision] = mean(accuracies)
    print("imdb-gin, three folds:", means)
    assert min(means.values()) >= 0.70, means
    assert abs(means["float32"] - means["bfloat16"]) <= 0.02, means

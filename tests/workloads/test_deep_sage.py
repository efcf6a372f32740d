from __future__ import annotations

import tomllib
from pathlib import Path
from statistics import mean

import pytest
from support.ranks import CORA, losses_of, metrics_of, run_job

from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Data, DeepSageTrain, Job, from_record

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def cora_job(**train: object) -> Job:
    """jobs/deep-sage-cora.toml with some settings changed."""
    record = tomllib.loads((JOBS / "deep-sage-cora.toml").read_text())
    record |= {"name": "deep", "data": {"root": str(CORA)}, "train": {**record["train"], **train}}
    return from_record(Job, record, parse=True)


@pytest.mark.long
def test_the_number_of_layers_follows_the_fan_out(tmp_path: Path) -> None:
    assert DeepSageTrain().fan_out == (4, 4, 4)
    losses = []
    for fan_out in ((4, 4, 4), (4, 4)):
        train = DeepSageTrain(fan_out=fan_out, hidden_channels=32, batch_size=512, epochs=3, lr=0.01)
        run = RunDir(tmp_path / "runs" / f"deep-{len(fan_out)}")
        job = Job(name="deep", workload="deep-sage", data=Data(root=str(CORA)), train=train)
        done = run_job(job, run, [1])
        assert [code for code, _, _ in done] == [0], done
        assert metrics_of(run)[-1]["test_accuracy"] > 0.7
        losses.append(losses_of(run))
    assert losses[0] != losses[1]


@pytest.mark.long
def test_cora_reaches_087_with_and_without_accelerations(tmp_path: Path) -> None:
    accelerations: list[dict[str, object]] = [{}, {"cache_first_aggregation": True, "precision": "bfloat16"}]
    means = []
    for chosen in accelerations:
        accuracies = []
        for seed in range(3):
            run = RunDir(tmp_path / f"runs-{len(means)}" / f"deep-{seed}")
            done = run_job(cora_job(seed=seed, **chosen), run, [2, 2])
            assert [code for code, _, _ in done] == [0, 0, 0, 0], done
            accuracies.append(metrics_of(run)[-1]["test_accuracy"])
        means.append(mean(accuracies))
    print("deep-sage on cora, plain and accelerated:", means)
    assert min(means) >= 0.87, means
    assert abs(means[0] - means[1]) <= 0.01, means

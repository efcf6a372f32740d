from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.ranks import CORA

from clusterctl.shared.errors import ClusterctlError, ConfigError, NotFoundError, UsageError
from clusterctl.shared.spec import RedditTrain
from clusterctl.train import job_from_words, main

JOB = 'workload = "reddit"\n[data]\nroot = "../data"\n[train]\nepochs = 7\n'


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs" / "my.toml"
    path.parent.mkdir()
    path.write_text(JOB)
    return path


def test_without_arguments_the_workloads_defaults_apply() -> None:
    job = job_from_words("reddit", [])
    assert (job.name, job.train) == ("reddit", RedditTrain())


def test_data_paths_are_relative_to_the_file_and_arguments_override_it(job_file: Path) -> None:
    words = [str(job_file), "train.lr=3e-3", "train.fan_out=[5, 5]", "train.device=cpu", "resources.time=4h"]
    job = job_from_words("reddit", words)
    assert job.name == "my"
    assert job.train == RedditTrain(epochs=7, lr=3e-3, fan_out=(5, 5), device="cpu")
    assert job.resources.time == 4 * 3600
    assert job.data.root is not None
    assert Path(job.data.root).resolve() == job_file.parents[1] / "data"


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["missing.toml"], NotFoundError, "cannot read job file missing.toml: No such file"),
        (["train.epochs=5", "fast"], UsageError, "expected KEY=VALUE, not: fast"),
        (["train.epoch=5"], ConfigError, "did you mean epochs?"),
        (["train.epochs=many"], ConfigError, "train.epochs: expected a whole number"),
        (["name.first=x"], ConfigError, "name: expected a string, not a table"),
        (["workload=synthetic"], ConfigError, "this program runs reddit"),
    ],
)
def test_invalid_arguments_are_reported(words: list[str], error: type[ClusterctlError], message: str) -> None:
    with pytest.raises(error) as raised:
        job_from_words("reddit", words)
    assert message in raised.value.message


def test_keys_that_contradict_each_other_are_refused_as_at_submission(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["node-classification", "train.model=gat", "train.loss=mse", "train.hops=2"]
    monkeypatch.setattr(sys, "argv", ["train", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ConfigError.exit_code
    error = capsys.readouterr().err
    assert 'train.hops: model "gat" has layers; remove this key' in error
    assert 'train.loss: "mse" needs data of your own' in error


def test_a_job_file_with_invalid_toml_fails_with_its_name(job_file: Path) -> None:
    job_file.write_text("workload = ")
    with pytest.raises(ConfigError, match="my.toml"):
        job_from_words("reddit", [str(job_file)])


def test_missing_data_fails_with_a_hint_and_no_traceback() -> None:
    words = ["-m", "clusterctl.train", "reddit", "data.root=/no/such"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: no data: /no/such/raw/reddit_data.npz: No such file or directory",
        "hint: set data.root to a folder with raw/reddit_data.npz and raw/reddit_graph.npz",
    ]


@pytest.mark.long
def test_torchrun_runs_the_same_program_without_slurm_or_a_run_directory(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "clusterctl.train", "reddit", f"data.root={CORA}", "train.epochs=2", "train.lr=0.01"]
    words.append("train.batch_size=256")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
    environment["CLUSTERCTL_DATA_CACHE"] = str(tmp_path / "cache")
    done = subprocess.run([*torchrun, *words], capture_output=True, text=True, check=False, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    sizes, first, last = done.stdout.splitlines()
    assert sizes == "global batch 512 (2 ranks x 256); 4 steps per epoch of 1,624 nodes"
    assert first.startswith("epoch 1/2  loss ")
    assert "test accuracy 0.8" in last
    assert [path.name.split("-")[0] for path in (tmp_path / "cache").iterdir()] == ["reddit"]


def test_training_needs_no_numba() -> None:
    """It only speeds up large graphs, comes with an extra of its own, and takes a second to import."""
    modules = ("graph_classification", "link_prediction", "node_classification", "synthetic", "taobao")
    imports = ", ".join(f"clusterctl.engine.workloads.{module}" for module in modules)
    subprocess.run([sys.executable, "-c", f"import sys; sys.modules['numba'] = None; import {imports}"], check=True)

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterctl.launcher.config import resolve
from clusterctl.shared.errors import ClusterctlError, UsageError
from clusterctl.shared.spec import Cluster, Job
from clusterctl.shared.spec.keys import parse_override, put
from clusterctl.train import job_from_words

JOB = 'workload = "reddit"\n[train]\nepochs = 7\nlr = 0.5\n'
TYPED = """
train.lr=3e-3|train.lr=.003| train.lr = 0.1 |train.lr=1|train.lr=nan|train.lr=1e400|train.lr=fast|train.lr=true
train.lr|=5|..=5||train..lr=3|train.=3|.lr=3|train.epochs=|train.epochs=7.0|train.epochs=many|train.epoch=5
train.fan_out=[5, 5]|train.fan_out=[5|train.fan_out=5|train.fan_out=[]|train.device=cpu|train.device="cpu"
train.device=tpu|train={lr = 0.1, epochs = 3}
train={}|train=5|train.lr.x=1|name.first=x|name=123|name='a'|name=a b|name=[1]
resources.time=4h|resources.time=90|resources.time=01:30:00|resources.time=1-00:00:00|resources.time=soon
env.PORT=8080|env.FLAG=true|env.QUOTED='a b'|env.EQUALS=a=b|env.1=x|env={A = "1"}|env.EMPTY=
resources.sbatch.kill-on-invalid-dep=yes|resources.sbatch.Bad=1|comment=x|data=1979-05-27|data.x=1
""".replace("\n", "|").split("|")


def accepted(read: object, *arguments: object) -> tuple[object, ...]:
    """The relevant fields of the job, or the exit code of the error."""
    try:
        job = read(*arguments)  # type: ignore[operator]
    except ClusterctlError as error:
        return "refused", error.exit_code
    assert isinstance(job, Job)
    return job.name, job.train, job.env, job.resources.time, job.resources.sbatch, job.data.root


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jobs") / "mine.toml"
    path.write_text(JOB)
    return path


def same_under_both(job_file: Path, text: str) -> None:
    under_clusterctl = accepted(lambda: resolve(str(job_file), Cluster(name="c"), [text], {}, job_file.parent).job)
    assert accepted(job_from_words, "reddit", [str(job_file), text]) == under_clusterctl, text


@pytest.mark.parametrize("text", [*TYPED, "train.epochs=5\nlr=3", "train.lr=" + "[" * 5000, "name=" + "9" * 5000])
def test_clusterctl_and_torchrun_accept_the_same_overrides(job_file: Path, text: str) -> None:
    same_under_both(job_file, text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["train.lr", "train.epochs", "train.fan_out", "name", "env.A", "resources.time", "train", "x"]),
    st.text("=.[]{}\"'\n 0123456789aeflrstu-:,", max_size=12),
)
@example("train.fan_out", "[5, 5]")
def test_clusterctl_and_torchrun_agree_on_any_override(job_file: Path, key: str, value: str) -> None:
    same_under_both(job_file, f"{key}={value}")


def test_a_malformed_override_fails_without_repeating_its_value() -> None:
    with pytest.raises(UsageError, match="expected KEY=VALUE, not: env.HF_TOKEN\n"):
        parse_override("env.HF_TOKEN hunter2", "reddit")


def test_tables_are_merged_by_key_and_empty_ones_remove_nothing() -> None:
    tree = {"train": {"lr": 1}, "name": "x"}
    assert put(tree, ("train",), {"epochs": 3}) == [("train", "epochs")]
    assert put(tree, ("train",), {}) == []
    assert put(tree, ("name", "first"), "y") == [("name", "first")]
    assert tree == {"train": {"lr": 1, "epochs": 3}, "name": {"first": "y"}}

"""A program on the command line: the run's name, and where additional options go."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.config import resolve
from clusterctl.launcher.config.program import program_name, with_options
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.spec import Cluster

CLUSTER = Cluster(name="c", env={"API_TOKEN": "hunter2"})
PROGRAM = ["python", "train.py", "--lr", "1"]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("python -u src/train_gcn.py", "train_gcn"),
        ("torchrun --nproc-per-node 4 train.py", "train"),
        ("python -m torch.distributed.run train.py", "train"),
        ("python -m pkg.train", "train"),
        ("bash -x ./run-all.sh", "run-all"),
        ("/usr/bin/env hostname", "env"),
        ("./a.out", "a.out"),
        ("python -c pass", "python"),
        ("python -m", "python"),
        ("./größe.py", "gr-e"),
        ("...", "command"),
        ("./" + 100 * "x" + ".py", 64 * "x"),
    ],
)
def test_a_run_is_named_after_its_script_module_or_program(typed: str, name: str) -> None:
    assert program_name(typed.split()) == name


def test_a_program_needs_no_job_file(tmp_path: Path) -> None:
    resolved = resolve(None, CLUSTER, ["resources.nodes=2"], {}, tmp_path, PROGRAM)
    job = resolved.job
    assert (job.name, job.workload, job.argv, job.code) == ("train", "command", tuple(PROGRAM), str(tmp_path))
    assert resolved.origins["argv"] == resolved.origins["workload"] == "command line"
    assert (resolved.origins["name"], resolved.origins["resources.nodes"]) == ("program name", "--set")


def test_set_overrides_the_name_of_the_program(tmp_path: Path) -> None:
    assert resolve(None, CLUSTER, ["name=mine"], {}, tmp_path, PROGRAM).job.name == "mine"


def test_the_program_replaces_that_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('workload = "command"\nargv = ["python", "other.py"]\n[resources]\nnodes = 3\n')
    resolved = resolve("./own.toml", CLUSTER, ['argv=["ignored"]'], {}, tmp_path, PROGRAM)
    assert (resolved.job.name, resolved.job.argv, resolved.job.resources.nodes) == ("own", tuple(PROGRAM), 3)


def test_a_built_in_workload_takes_no_program(tmp_path: Path) -> None:
    (tmp_path / "reddit.toml").write_text('workload = "reddit"\n')
    with pytest.raises(ConfigError, match='command line: argv: only workload "command" takes a program') as caught:
        resolve("./reddit.toml", CLUSTER, [], {}, tmp_path, PROGRAM)
    assert caught.value.hint == "without a job: clusterctl submit -- python train.py"


def test_several_problems_without_a_file_are_attributed_to_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="^2 problems in the command line\n"):
        resolve(None, CLUSTER, ["resources.nodes=0", "name=../x"], {}, program=PROGRAM)


def test_neither_a_job_nor_a_program_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="neither a job nor a program"):
        resolve(None, CLUSTER)


def test_the_recorded_command_hides_secrets_but_keeps_the_programs_arguments(tmp_path: Path) -> None:
    program = ["python", "train.py", "env.name=CartPole", "--token=hunter2"]
    typed = resolve(None, CLUSTER, ["env.A=b"], {}, tmp_path, program).typed
    assert typed == ("submit", "--", "python", "train.py", "env.name=CartPole", "--token=***")


def test_additional_options_go_before_the_program() -> None:
    assert with_options(["submit", "--", "a", "--"], ["--nodes", "2"]) == ["submit", "--nodes", "2", "--", "a", "--"]
    assert with_options(["submit", "cora"], ["--nodes", "2"]) == ["submit", "cora", "--nodes", "2"]

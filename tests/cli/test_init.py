"""`init`: what it asks, writes and prints."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import pytest
from support.mistake import Desk, check_message, check_plain

from clusterctl.launcher.api.init import proposed, survey

NODES = Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-25.05.txt"


@pytest.fixture(autouse=True)
def site(desk: Desk) -> None:
    """A Slurm on PATH, and no cluster file for it."""
    desk.use_slurm(sinfo=f"cat {shlex.quote(str(NODES))}", scontrol="echo ClusterName = alpha")
    sacctmgr = desk.folder / "fakes" / "sacctmgr"
    sacctmgr.write_text("#!/bin/sh\nprintf 'physics|normal,high\\nchem|normal\\n'\n")
    sacctmgr.chmod(0o700)
    (desk.project / "cluster" / "site.toml").unlink()
    desk.set(CLUSTERCTL_CLUSTER=None, CLUSTERCTL_RUNS=None, SCRATCH=str(desk.folder), SLURM_CONF=None)


def test_it_writes_a_cluster_and_a_job_that_can_be_used_by_name(desk: Desk) -> None:
    code, out, err = desk.type("init --yes")
    assert (code, out) == (0, "cluster/alpha.toml\njobs/first.toml\n")
    assert "next: export CLUSTERCTL_CLUSTER=alpha" in err
    assert "is visible on compute nodes" in err or str(desk.folder) not in err
    check_plain(err)
    code, out, _ = desk.type("config show first --cluster alpha")
    assert code == 0
    assert "cluster alpha" in out
    assert desk.type("submit first --cluster alpha --dry-run")[0] == 0
    # The dry run asks for the configuration and the partitions again: this Slurm's answers are not shared.
    assert [desk.asked(command) for command in ("sinfo", "scontrol", "srun", "squeue", "sbatch")] == [1, 4, 1, 0, 0]


def test_nothing_is_overwritten_without_force(desk: Desk) -> None:
    desk.write("cluster/alpha.toml", "mine")
    code, out, err = desk.type("init --yes")
    assert (code, out) == (2, "")
    check_message(err, "file exists: cluster/alpha.toml", "--force")
    assert not (desk.project / "jobs").exists()
    assert (desk.project / "cluster" / "alpha.toml").read_text() == "mine"
    assert desk.type("init --yes --force")[0] == 0
    assert desk.type("init other --yes")[0] == 0  # its job file is identical


def test_a_name_that_means_the_users_own_cluster_is_refused(desk: Desk) -> None:
    own = desk.write(desk.folder / "home" / ".config" / "clusterctl" / "cluster" / "alpha.toml", 'runs = "/else"\n')
    for typed in ("init --yes", "init --yes --force", "init alpha --yes"):
        code, out, err = desk.type(typed)
        assert (code, out) == (2, "")
        check_message(err, f"which comes first: {own}", "clusterctl init NAME")
    assert [*desk.project.rglob("*.toml")] == []
    assert desk.type("init other --yes")[0] == 0


def test_the_user_is_asked_and_enter_accepts_the_proposal(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("mine\ncpu\n\nchem\nhigh\n"))
    code, out, err = desk.type("init")
    assert (code, out.splitlines()[0]) == (0, "cluster/mine.toml")
    assert "Partition (gpu, cpu, mig) [gpu]:" in err
    text = (desk.project / "cluster" / "mine.toml").read_text()
    assert 'partition = "cpu"' in text
    assert f'runs = "{desk.folder}/clusterctl/runs"' in text
    assert 'account = "chem" # yours: physics, chem' in text
    assert 'qos = "high"' in text


@pytest.mark.parametrize(
    ("typed", "answers", "code", "message", "hint"),
    [
        ("init", "", 2, "no answer on stdin", "--yes"),
        ("init ../elsewhere --yes", "", 3, "name: must be 1 to 64 letters", "another value"),
        ("init local --yes", "", 2, "there is a cluster of this name, which comes first", "clusterctl init NAME"),
        ("init", "sandbox\n\n\n\n\n", 2, "there is a cluster of this name, which comes first", "clusterctl init NAME"),
        ("init x y", "", 2, "unexpected extra argument", "--help"),
        ("init x", "gpu\na\x1bb\n\n\n", 3, "runs: must be one line", "another value"),
    ],
)
def test_a_mistake_writes_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, typed: str, answers: str, code: int, message: str, hint: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
    found, out, err = desk.type(typed)
    assert (found, out) == (code, "")
    check_message(err[err.index("error:") :], message, hint)
    assert [*desk.project.rglob("*.toml")] == []


SCRIPT = """#!/bin/bash
#SBATCH --job-name=resnet --nodes=2
#SBATCH --partition=cpu
#SBATCH --account=chem
#SBATCH --output=out.log
touch never-made
\x1b[2Jdraws
srun python train.py --lr 0.1
"""


WHOLE = "".join(line for line in SCRIPT.splitlines(keepends=True) if line.startswith(("#!", "srun")) or "=c" in line)
WHOLE = WHOLE.replace("\n", "\n#SBATCH --job-name=resnet --nodes=2\n", 1)


def test_a_secret_in_a_script_is_pointed_at_and_written_nowhere(desk: Desk) -> None:
    desk.write("train.py", "")
    for line in ("export HUB_TOKEN=hf_abcdefgh", "srun python train.py --url https://me:hf_abcdefgh@example.org/x"):
        desk.write("train.sbatch", f"{WHOLE}{line}\n")
        code, out, err = desk.type("init --from train.sbatch --yes --force")
        assert (code, out) == (0, "cluster/alpha.toml\n")
        assert "looks like a secret" in err
        assert "hf_abcdefgh" not in err
    desk.write("train.sbatch", f"{WHOLE}export TOKENIZERS_PARALLELISM=false API_KEY=$API_KEY KEY_FILE=/home/me/key\n")
    code, out, err = desk.type("init --from train.sbatch --yes --force")
    assert "looks like a secret" not in err


def test_a_script_becomes_a_job_only_if_that_does_all_of_it(desk: Desk) -> None:
    desk.write("train.sbatch", SCRIPT)
    desk.write("train.py", "")
    code, out, err = desk.type("init --from train.sbatch --yes")
    assert (code, out) == (0, "cluster/alpha.toml\n")
    assert "clusterctl submit ./train.sbatch" in err
    check_plain(err)
    assert "5 #SBATCH --output=out.log not converted: each run keeps its logs" in " ".join(err.split())
    desk.write("train.sbatch", WHOLE)
    code, out, err = desk.type("init --from train.sbatch --yes --force")
    assert (code, out) == (0, "cluster/alpha.toml\njobs/train.toml\n")
    lines = [" ".join(line.split()) for line in err.splitlines()]
    assert '2 #SBATCH --job-name=resnet --nodes=2 name = "resnet"' in lines
    assert "resources.nodes = 2" in lines
    assert "clusterctl submit train --dry-run" in lines
    assert not (desk.project / "never-made").exists()
    text = (desk.project / "cluster" / "alpha.toml").read_text()
    assert 'partition = "cpu"' in text
    assert 'account = "chem"' in text
    code, out, _ = desk.type("submit train --cluster alpha --dry-run")
    assert code == 0
    assert "#SBATCH --job-name=resnet" in out


def test_without_slurm_a_batch_script_still_becomes_a_job(desk: Desk) -> None:
    desk.write("my train.sbatch", WHOLE)
    desk.set(PATH=str(desk.folder / "home"))
    code, out, err = desk.type(["init", "--from", "my train.sbatch", "--yes"])
    assert (code, out) == (0, "jobs/my-train.toml\n")
    assert "could not find out what the cluster has: sinfo is not on PATH" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"\xff\xfe", "not UTF-8 text"), (b"#" * (2**20 + 1), "larger than 1 MiB")],
)
def test_other_files_are_not_batch_scripts(desk: Desk, content: bytes | None, message: str) -> None:
    if content is not None:
        desk.write("train.sbatch", content)
    code, out, err = desk.type("init --from train.sbatch --yes")
    assert (code, out) == (3, "")
    check_message(err.replace("No such file", "no such file"), message, "script")


def test_without_slurm_it_refuses_and_names_the_alternative(desk: Desk) -> None:
    desk.set(PATH=str(desk.folder / "home"))
    code, out, err = desk.type("init --yes")
    assert (code, out) == (4, "")
    check_message(err, "sinfo is not on PATH", "--cluster local")


def test_the_environment_decides_the_runs_folder(desk: Desk) -> None:
    found = survey()
    assert proposed(found, {"CLUSTERCTL_RUNS": "/x/../y"}).runs == "/y"
    assert proposed(found, {"SCRATCH": "/nowhere", "HOME": str(desk.folder)}).runs == f"{desk.folder}/clusterctl/runs"
    assert proposed(found, {"SCRATCH": "relative"}).runs.endswith("/clusterctl/runs")

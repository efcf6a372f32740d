"""Rerunning a run: with its own code and configuration even if the project has changed, and the changes recorded."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.mistake import Desk

import clusterctl
from clusterctl.launcher.api.submitting import rerun as module
from clusterctl.launcher.submission.snapshot import Code, take_snapshot
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RUN_FORMAT
from clusterctl.shared.spec.keys import Difference

JOB = """
workload = "command"
argv = ["python", "train.py"]
code = "."
[resources]
nodes = 2
time = "2h"
[env]
MODE = "fast"
HF_TOKEN = "hunter2"
"""


@pytest.fixture
def project(desk: Desk) -> Path:
    """A program in a repository, with an uncommitted change; the cluster accepts every job."""
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.write("train.py", "print(1)\n")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C", str(desk.project)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    desk.write("train.py", "print(2)\n")
    desk.write("job.toml", JOB)
    desk.set(HF_TOKEN="hunter2")
    return desk.project


@pytest.fixture
def run(project: Path) -> clusterctl.Run:
    return clusterctl.submit(str(project / "job.toml"), "site")


def record(run: clusterctl.Run) -> Any:
    return read_json(run.directory.run_json)


def lose(desk: Desk) -> None:
    """Delete the project and change to another folder."""
    elsewhere = desk.folder / "elsewhere"
    shutil.move(desk.project / "cluster", elsewhere / "cluster")
    shutil.rmtree(desk.project)
    desk.patch.chdir(elsewhere)


def test_a_rerun_uses_the_same_code_even_if_the_project_is_gone(desk: Desk, run: clusterctl.Run) -> None:
    lose(desk)
    write_json(run.directory.finished_json, {"attempt": 0, "time": 3})
    again = clusterctl.rerun(run)
    assert again.path.parent == run.path.parent
    assert again.id != run.id
    assert again.directory.code.readlink() == run.directory.code.readlink()
    assert (again.directory.project / "train.py").read_text() == "print(2)\n"
    assert again.job_id == "7"
    assert again.directory.attempts() == []
    assert not again.directory.finished_json.exists()
    assert again.directory.script.read_text() == run.directory.script.read_text().replace(run.id, again.id)
    assert record(again)["job"] == record(run)["job"]
    assert record(again)["rerun_of"] == run.id
    assert record(again)["changes"] == []
    assert record(again)["argv"] == ["rerun", run.id]


def test_a_rerun_keeps_the_git_state_of_the_code(desk: Desk, run: clusterctl.Run) -> None:
    lose(desk)
    again = clusterctl.rerun(run)
    assert record(again)["git"] == record(run)["git"]
    assert record(run)["git"]["dirty"] is True
    assert again.directory.git_patch.read_bytes() == run.directory.git_patch.read_bytes() != b""


def test_changes_are_applied_recorded_and_reported(run: clusterctl.Run) -> None:
    again = run.rerun(overrides={"resources.nodes": 4, "env.MODE": "slow", "resources.time": "2h"})
    expected = (Difference("resources.nodes", 2, 4), Difference("env.MODE", "fast", "slow"))
    assert module.changes(again.directory) == expected
    assert module.plan(run.directory, overrides={"resources.nodes": 4, "env.MODE": "slow"}).changes == expected
    assert "#SBATCH --nodes=4" in again.directory.script.read_text()
    assert record(again)["changes"][0] == {"key": "resources.nodes", "first": 2, "second": 4}
    assert module.changes(run.directory) == ()


def test_a_rerun_can_be_rerun(run: clusterctl.Run) -> None:
    second = run.rerun(overrides={"env.MODE": "slow"})
    third = second.rerun(overrides={"resources.nodes": 1})
    assert module.changes(third.directory) == (Difference("resources.nodes", 2, 1),)
    assert record(third)["rerun_of"] == second.id
    assert record(third)["job"]["env"]["MODE"] == "slow"


def test_a_rerun_does_not_query_slurm_for_the_run(desk: Desk, run: clusterctl.Run) -> None:
    """The run may be active or lost, and Slurm may be unreachable: a rerun does not depend on it."""
    asked = desk.asked("squeue")
    run.rerun()
    assert desk.asked("squeue") == asked


def test_a_built_in_training_can_be_rerun(desk: Desk) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    run = clusterctl.submit("synthetic", "site", overrides={"train.seed": 3})
    again = run.rerun(overrides={"train.batch_size": 16})
    assert {change.key for change in module.changes(again.directory)} >= {"train.batch_size"}
    assert record(again)["job"]["train"]["seed"] == 3
    assert again.directory.code.readlink() == run.directory.code.readlink()


@pytest.mark.parametrize("code", ["mounted", "image"])
def test_a_run_in_an_image_is_rerun_in_it(desk: Desk, code: str) -> None:
    desk.use_slurm('container_runtime = "pyxis"', sbatch="echo Submitted batch job 7")
    desk.patch.setattr(
        "clusterctl.launcher.api.submitting.submission.verify", lambda *_: ()
    )  # the image does not exist
    table = f'[container]\nimage = "/images/a.sqsh"\ncode = "{code}"\n'
    desk.write("job.toml", f'workload = "command"\nargv = ["true"]\n{table}')
    run = clusterctl.submit("./job.toml", "site")
    lose(desk)
    again = run.rerun()
    assert bool(list(run.directory.project.iterdir())) == (code == "mounted")
    assert "--container-image=/images/a.sqsh" in again.directory.script.read_text()
    assert again.directory.script.read_text() == run.directory.script.read_text().replace(run.id, again.id)


def test_dependencies_of_the_first_run_are_dropped(run: clusterctl.Run) -> None:
    waiting = run.rerun(overrides={"resources.dependency": "afterok:12"})
    again = waiting.rerun()
    assert "#SBATCH --dependency" not in again.directory.script.read_text()
    assert module.changes(again.directory) == (Difference("resources.dependency", "afterok:12", None),)
    assert "--dependency=afterok:13" in (
        waiting.rerun(overrides={"resources.dependency": "afterok:13"}).directory.script.read_text()
    )


def test_a_secret_is_read_from_the_environment_and_not_stored(desk: Desk, run: clusterctl.Run) -> None:
    desk.set(HF_TOKEN="hunter2-new")
    again = run.rerun()
    files = [path for path in again.path.rglob("*") if path.is_file()]  # not below the link to the snapshot
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []
    assert record(again)["job"]["env"]["HF_TOKEN"] == "***"
    desk.set(HF_TOKEN=None)
    with pytest.raises(ConfigError, match="HF_TOKEN") as caught:
        run.rerun()
    assert "export HF_TOKEN" in caught.value.hint


def test_a_rerun_with_other_code_is_refused(desk: Desk, run: clusterctl.Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a rerun uses the code") as caught:
        run.rerun(overrides={"code": str(tmp_path)})
    assert "clusterctl submit" in caught.value.hint
    desk.patch.setattr(
        "clusterctl.launcher.api.submitting.submission.verify", lambda *_: ()
    )  # the image does not exist
    in_image = {"container.image": "/images/a.sqsh", "container.code": "image"}
    with_the_images = clusterctl.submit("./job.toml", "site", overrides=in_image)
    assert with_the_images.rerun(overrides={"resources.nodes": 1}).job_id == "7"
    with pytest.raises(UsageError, match="a rerun uses the code"):
        with_the_images.rerun(overrides={"container.code": "mounted"})


@pytest.mark.parametrize("part", [".", "project"])
def test_a_run_without_its_snapshot_cannot_be_rerun(desk: Desk, run: clusterctl.Run, part: str) -> None:
    place = run.directory.code.resolve() / part
    place.chmod(0o700)  # unprivileged users can move only writable folders
    place.rename(desk.folder / "aside")
    with pytest.raises(ConfigError, match="the run's code has been removed") as caught:
        run.rerun()
    assert (caught.value.hint, caught.value.exit_code) == ("submit the job again", 3)
    assert desk.run_directories() == [run.path]


def test_a_snapshot_removed_meanwhile_is_not_recreated_empty(tmp_path: Path) -> None:
    kept = Code(tmp_path / "runs" / ".code" / ("0" * 20), [], [], {})
    with pytest.raises(ConfigError, match="the run's code has been removed"):
        take_snapshot(kept)
    assert not kept.folder.exists()


def test_a_program_is_looked_for_in_the_snapshot(desk: Desk, run: clusterctl.Run) -> None:
    lose(desk)
    with pytest.raises(ConfigError, match=r"argv: no such file: .*/project/other\.py"):
        run.rerun(overrides={"argv": ["python", "other.py"]})


def test_a_refused_submission_leaves_nothing_behind(desk: Desk, run: clusterctl.Run) -> None:
    desk.use_slurm(sbatch="echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(SlurmError, match="invalid partition"):
        run.rerun()
    assert desk.run_directories() == [run.path]


def test_a_rerun_of_an_earlier_clusterctls_run_has_todays_library_and_format(run: clusterctl.Run) -> None:
    write_json(run.directory.run_json, record(run) | {"schema_version": 1})
    earlier = run.directory.snapshot.rename(run.directory.snapshot.with_name("0" * 20))
    (earlier / "lib" / "clusterctl" / "train.py").unlink()
    run.directory.code.unlink()
    run.directory.code.symlink_to(f"../.code/{earlier.name}")
    again = run.rerun()
    assert record(again)["schema_version"] == RUN_FORMAT
    assert (again.directory.snapshot / "lib" / "clusterctl" / "train.py").is_file()
    assert {path.name for path in again.directory.project.iterdir()} == {
        path.name for path in run.directory.project.iterdir()
    }


def test_a_dry_run_writes_nothing(desk: Desk, run: clusterctl.Run) -> None:
    lose(desk)
    before = desk.asked("sbatch")
    plan = module.plan(run.directory, "site", overrides={"resources.nodes": 3})
    assert "#SBATCH --nodes=3" in plan.script
    assert plan.verify() == ()
    assert desk.run_directories() == [run.path]
    assert desk.asked("sbatch") == before

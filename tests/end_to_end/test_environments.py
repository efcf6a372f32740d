"""Lock files: the environment that a run's programs come from, built once, on this machine or through a host."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.environments import make_index, make_wheel, requirements, uv_lock
from support.far import FarStage
from support.scenario import Stage

from clusterctl.shared.record.layout import ENVIRONMENT_RECORD

SHOW = ["bash", "-c", "python -c 'import sys, alpha; print(alpha.__version__, sys.prefix)'; alpha-version"]


def environments(stage: Stage) -> list[Path]:
    found = (stage.runs / ".environments").iterdir()
    return [path for path in found if not path.name.startswith(".")]


def wheels_in(folder: Path, *versions: str) -> list[Path]:
    return [make_wheel(folder, "alpha", version, script="alpha-version") for version in versions]


def test_programs_of_a_run_come_from_its_lock_file(stage: Stage) -> None:
    wheels = wheels_in(stage.folder, "1.0")
    (stage.folder / "uv.lock").write_text(uv_lock(make_index(stage.folder / "simple", wheels), wheels))
    stage.write_job("job", f'workload = "command"\nargv = {json.dumps(SHOW)}\nenvironment = "uv.lock"\n')
    shown = stage.call("submit", "./job.toml", "--cluster", stage.cluster, "--dry-run")
    assert "1 package of uv.lock" in shown.stderr
    assert "to be built in" in shown.stderr
    run = stage.submit("./job.toml", "--wait")
    (folder,) = environments(stage)
    assert stage.log(run, 0) == f"1.0 {folder}\n1.0\n"
    assert json.loads(run.run_json.read_text())["environment"]["packages"] == {"alpha": "1.0"}


@pytest.mark.long
def test_the_same_packages_are_built_once_and_a_rerun_needs_no_lock(stage: Stage) -> None:
    first, second = wheels_in(stage.folder, "1.0", "2.0")
    index = make_index(stage.folder / "simple", [first, second])
    (stage.folder / "uv.lock").write_text(uv_lock(index, [first]))
    stage.write_job("job", f'workload = "command"\nargv = {json.dumps(SHOW)}\nenvironment = "uv.lock"\n')
    run = stage.submit("./job.toml", "--wait")
    (folder,) = environments(stage)
    (stage.folder / "requirements.txt").write_text(requirements(index, [first]))
    built = (folder / ENVIRONMENT_RECORD).stat().st_mtime_ns
    again = stage.submit("./job.toml", "--wait", "--set", "environment=requirements.txt")
    assert stage.log(again, 0) == f"1.0 {folder}\n1.0\n"
    (stage.folder / "uv.lock").unlink()
    done = stage.call("rerun", run.id)
    assert done.returncode == 0, done.stderr
    assert environments(stage) == [folder]
    assert (folder / ENVIRONMENT_RECORD).stat().st_mtime_ns == built
    (stage.folder / "requirements.txt").write_text(requirements(index, [second]))
    other = stage.submit("./job.toml", "--wait", "--set", "environment=requirements.txt")
    shown = stage.call("diff", run.id, other.id).stdout
    assert any(line.split() == ["alpha", "1.0", "2.0"] for line in shown.splitlines()), shown
    # One that was removed is missed before the job is queued, and the hint works.
    shutil.rmtree(folder)
    done = stage.call("rerun", run.id)
    assert done.returncode == 3
    assert f"that of {run.id} was removed" in done.stderr
    assert stage.call("rerun", run.id, "--set", "environment=requirements.txt").returncode == 0


@pytest.mark.long
def test_a_login_node_without_internet_gets_the_wheels_from_here(far_stage: FarStage) -> None:
    (wheel,) = wheels_in(far_stage.folder, "1.0")
    make_index(far_stage.folder / "simple", [wheel])
    nowhere = "http://127.0.0.1:9/simple"
    (far_stage.folder / "uv.lock").write_text(uv_lock(nowhere, [wheel]))
    far_stage.environment["PIP_INDEX_URL"] = (far_stage.folder / "simple").as_uri()
    far_stage.write_job("job", f'workload = "command"\nargv = {json.dumps(SHOW)}\nenvironment = "uv.lock"\n')
    far_stage.do("submit", "./job.toml", "--wait")
    (run,) = [path for path in far_stage.runs.iterdir() if path.name.startswith("job-")]
    (folder,) = environments(far_stage)
    assert (run / "attempts/0/logs/rank_00000.out").read_text() == f"1.0 {folder}\n1.0\n"
    assert not (folder / "wheels").exists()

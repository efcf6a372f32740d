"""Lock files: the environment that a run's programs come from, built once, on this machine or through a host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.far import FarStage
from support.scenario import Stage
from support.wheels import make_index, make_wheel, requirements, uv_lock

SHOW = ["bash", "-c", "python -c 'import sys, alpha; print(alpha.__version__, sys.prefix)'; alpha-version"]


def environments(stage: Stage) -> list[Path]:
    found = (stage.runs / ".environments").iterdir()
    return [path for path in found if not path.name.startswith(".")]


def wheels_in(folder: Path, *versions: str) -> list[Path]:
    return [make_wheel(folder, "alpha", version, script="alpha-version") for version in versions]


def test_programs_of_a_run_come_from_its_lock_file(stage: Stage) -> None:
    first, second = wheels_in(stage.folder, "1.0", "2.0")
    index = make_index(stage.folder / "simple", [first, second])
    (stage.folder / "uv.lock").write_text(uv_lock(index, [first]))
    stage.write_job("job", f'workload = "command"\nargv = {json.dumps(SHOW)}\nenvironment = "uv.lock"\n')
    shown = stage.call("submit", "./job.toml", "--cluster", stage.cluster, "--dry-run")
    assert "1 package of uv.lock" in shown.stderr
    assert "to be built in" in shown.stderr
    run = stage.submit("./job.toml", "--wait")
    (folder,) = environments(stage)
    assert stage.log(run, 0) == f"1.0 {folder}\n1.0\n"
    assert json.loads(run.run_json.read_text())["environment"]["packages"] == {"alpha": "1.0"}
    # The same packages are not installed again; a rerun needs no lock file, and others differ in `diff`.
    (stage.folder / "requirements.txt").write_text(requirements(index, [first]))
    built = (folder / "environment.json").stat().st_mtime_ns
    again = stage.submit("./job.toml", "--wait", "--set", "environment=requirements.txt")
    (stage.folder / "uv.lock").unlink()
    assert stage.call("rerun", run.id).returncode == 0
    assert environments(stage) == [folder]
    assert (folder / "environment.json").stat().st_mtime_ns == built
    assert stage.log(again, 0) == f"1.0 {folder}\n1.0\n"


@pytest.mark.long
def test_a_login_node_without_internet_gets_the_wheels_from_here(far_stage: FarStage) -> None:
    (wheel,) = wheels_in(far_stage.folder, "1.0")
    make_index(far_stage.folder / "simple", [wheel])
    far_stage.far.environment  # noqa: B018 - the client's own
    nowhere = "http://127.0.0.1:9/simple"
    (far_stage.folder / "uv.lock").write_text(uv_lock(nowhere, [wheel]))
    far_stage.environment["PIP_INDEX_URL"] = (far_stage.folder / "simple").as_uri()
    far_stage.write_job("job", f'workload = "command"\nargv = {json.dumps(SHOW)}\nenvironment = "uv.lock"\n')
    far_stage.do("submit", "./job.toml", "--wait")
    (run,) = [path for path in far_stage.runs.iterdir() if path.name.startswith("job-")]
    (folder,) = environments(far_stage)
    assert (run / "attempts/0/logs/rank_00000.out").read_text() == f"1.0 {folder}\n1.0\n"
    assert not (folder / "wheels").exists()

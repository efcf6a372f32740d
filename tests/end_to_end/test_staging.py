"""Ranks import from one copy per node, which is removed when the run ends."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.scenario import Stage, wait_until

from clusterctl.shared.record.layout import RunDir

CLUSTER = """
kind = "{kind}"
python_environments = ["{environment}"]
local_scratch = "{scratch}"
"""
JOB = """
workload = "command"
argv = ["python", "train.py"]
env = {{ PYTHONPATH = "{environment}/lib/python3/site-packages" }}
[resources]
nodes = 2
tasks_per_node = 2
time = "10m"
local_code = true
"""
PROGRAM = """
import json, os, sys, time
from pathlib import Path
import installed, package.model
hook = sys.modules.get("clusterctl_imports")
print(json.dumps({
    "node": os.environ["SLURMD_NODENAME"],
    "copy": str(Path(hook.__file__).parents[1]) if hook else None,
    "where": [installed.WHERE, package.model.WHERE],
    "files": [__file__, package.model.__file__, installed.__file__],
    "data": Path(package.model.__file__).with_name("data.txt").read_text(),
}), flush=True)
Path("written-by-" + os.environ["RANK"]).touch()
if "again" in sys.argv and os.environ["RANK"] + os.environ["CLUSTERCTL_ATTEMPT"] == "00":
    Path(os.environ["CLUSTERCTL_RESTART_FILE"]).touch()
if "stay" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def site(stage: Stage, tmp_path: Path) -> Path:
    """A folder with a project, an environment and the nodes' scratch disk; the cluster `copying` uses them."""
    files = {
        "project/train.py": PROGRAM,
        "project/package/__init__.py": "",
        "project/package/model.py": "WHERE = 'as submitted'\n",
        "project/package/data.txt": "beside it",
        "environment/lib/python3/site-packages/installed.py": "WHERE = 'as submitted'\n",
        "scratch/of-another-user": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    (tmp_path / "project" / "cluster").mkdir()
    text = CLUSTER.format(kind=kind, environment=tmp_path / "environment", scratch=tmp_path / "scratch")
    (tmp_path / "project" / "cluster" / "copying.toml").write_text(text)
    stage.cluster = "copying"
    return tmp_path


def left(site: Path) -> list[str]:
    return sorted(path.name for path in (site / "scratch").iterdir())


def reported(stage: Stage, run: RunDir, rank: int, attempt: int = 0) -> dict[str, Any]:
    return dict(json.loads(stage.log(run, rank, attempt=attempt).splitlines()[-1]))


@pytest.mark.long
def test_ranks_import_from_one_copy_per_node_and_attempt_which_is_removed(stage: Stage, site: Path) -> None:
    job = JOB.format(environment=site / "environment").replace('"train.py"', '"train.py", "again"')
    run = stage.submit(stage.write_job("copied", job), "--hold")
    installed = site / "environment" / "lib" / "python3" / "site-packages" / "installed.py"
    installed.write_text("WHERE = 'where it is installed'\n")
    assert stage.call("release", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_stage(run, "finished", "failed", seconds=240)
    copies = defaultdict(set)
    for rank in [reported(stage, run, rank, attempt) for rank in range(4) for attempt in (0, 1)]:
        assert rank["where"] == ["as submitted", "as submitted"]
        assert rank["files"] == [str(run.work / "train.py"), str(run.work / "package" / "model.py"), str(installed)]
        assert rank["data"] == "beside it"
        copies[rank["node"]].add(rank["copy"])
    assert len(copies) == 2
    assert all(len(folders) == 2 for folders in copies.values()), copies  # one per attempt
    assert len(set.union(*copies.values())) == 4
    assert sorted(path.name for path in run.work.glob("written-*")) == [f"written-by-{rank}" for rank in range(4)]
    assert not list(run.work.rglob("*.pyc"))
    wait_until(lambda: left(site) == ["of-another-user"], 60, "the copies to be removed")


@pytest.mark.long
def test_leftovers_of_a_killed_run_are_removed_by_the_next(stage: Stage, site: Path) -> None:
    text = JOB.format(environment=site / "environment")
    stay = text.replace('"train.py"', '"train.py", "stay"').replace("[resources]", "[resources]\nrequeue = false")
    killed = stage.submit(stage.write_job("killed", stay))
    wait_until(lambda: (killed.work / "written-by-3").exists(), 120, "the ranks to begin")
    assert stage.call("cancel", "--yes", killed.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_stage(killed, "cancelled", "failed", "preempted", "lost", seconds=120)
    run = stage.submit(stage.write_job("next", text))
    stage.wait_for_stage(run, "finished", "failed", seconds=240)
    assert reported(stage, run, 0)["copy"]
    wait_until(lambda: left(site) == ["of-another-user"], 60, "the copies of both runs to be removed")


@pytest.mark.long
def test_without_local_scratch_ranks_import_from_the_shared_file_system_and_host_log_notes_it(
    stage: Stage, site: Path
) -> None:
    (site / "scratch").rename(site / "elsewhere")
    done = stage.call(
        "submit",
        stage.write_job("bare", JOB.format(environment=site / "environment")),
        "--cluster",
        stage.cluster,
        "--wait",
    )
    assert done.returncode == 0, done.stderr
    assert f"no such folder: {site / 'scratch'}: ranks import from the shared file system" in done.stderr
    (run,) = map(RunDir, stage.runs.glob("bare-*"))
    warnings = run.attempt(0).host_log.read_text()
    assert warnings.count("imports from the shared file system: cannot copy modules to") == 2
    assert reported(stage, run, 0)["copy"] is None

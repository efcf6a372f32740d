"""What only a real Slurm does to a run, as `clusterctl why` explains it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.recorded import begun
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, wait_until

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.launcher.sandbox.lifecycle import check_cgroups
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.long

SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"
SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def stage(sandbox_home: RunningSandbox, tmp_path: Path) -> Stage:
    """A separate sandbox, since the test powers off a node."""
    try:
        check_cgroups()
        cgroups = True
    except UsageError:
        cgroups = False
    lifecycle.up(sandbox_home.folder, SandboxRequest(nodes=4, kill_wait=5, cgroups=cgroups))
    (tmp_path / "project").mkdir()
    environment = sandbox_home.environment | {"CLUSTERCTL_RUNS": str(tmp_path / "runs")}
    return Stage("sandbox", tmp_path / "project", environment)


def start(stage: Stage, name: str, program: str = SLEEP, more: str = "") -> RunDir:
    job = f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{SHAPE}{more}'
    run = stage.submit(stage.write_job(name, job))
    wait_until(lambda: len(begun(run.attempt(0))) == 4)
    return run


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    done = stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_why_explains_four_endings_caused_by_slurm(stage: Stage) -> None:
    """One sandbox for all of them: scancel, out of memory, the time limit, a node without power."""
    cancelled = start(stage, "cancelled")
    job_id = json.loads(cancelled.submission_json.read_text())["job_id"]
    subprocess.run(["scancel", job_id], env=stage.environment, check=True)
    stage.wait_for_state(cancelled, "cancelled", seconds=60)
    found = why(stage, cancelled)
    assert (found["class"], found["rank"]) == ("cancelled", None)
    assert "scancel" in found["cause"]

    hungry = "import os, time\nif os.environ['RANK'] == '2': x = b'x' * (600 << 20)\ntime.sleep(600)"
    if Path("/sys/fs/cgroup/memory/cgroup.procs").exists():
        run = start(stage, "hungry", hungry, 'memory = "200M"\n')
        stage.wait_for_state(run, "failed", seconds=60)
        found = why(stage, run)
        assert (found["class"], found["rank"], found["certainty"]) == ("out-of-memory", 2, "certain")
        assert any("resources.memory=400M" in command for command in found["commands"])

    off = start(stage, "off", more="requeue = false\n")
    assert stage.call("sandbox", "node", "off", "node2").returncode == 0
    limited = start(stage, "limited", more='time = "20s"\nnodelist = "node[3-4]"\n')
    stage.wait_for_state(off, "failed", seconds=120)
    found = why(stage, off)
    assert (found["class"], found["node"], found["certainty"]) == ("node-failure", "node2", "certain")
    stage.wait_for_state(limited, "timed-out", seconds=120)
    found = why(stage, limited)
    assert (found["class"], found["rank"], found["certainty"]) == ("time-limit", None, "certain")

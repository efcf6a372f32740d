"""`status` reports the same with and without Slurm's accounting."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.recorded import begun
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, wait_until

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest

ENDINGS = {"pass": "finished", "import sys; sys.exit(3)": "failed", "import time; time.sleep(600)": "cancelled"}


@pytest.fixture
def stage(sandbox_home: RunningSandbox, tmp_path: Path, accounting: bool) -> Stage:
    lifecycle.up(sandbox_home.folder, SandboxRequest(nodes=2, accounting=accounting))
    (tmp_path / "project").mkdir()
    environment = sandbox_home.environment | {"CLUSTERCTL_RUNS": str(tmp_path / "runs")}
    return Stage("sandbox", tmp_path / "project", environment)


@pytest.mark.long
@pytest.mark.parametrize("accounting", [False, True])
def test_status_is_the_same_with_and_without_accounting(stage: Stage, accounting: bool) -> None:
    for number, (program, ending) in enumerate(ENDINGS.items()):
        job = f'workload = "command"\nargv = ["python", "-c", "{program}"]\n'
        run = stage.submit(stage.write_job(f"ending{number}", job))
        if ending == "cancelled":
            wait_until(lambda run=run: begun(run.attempt(0)))
            assert stage.call("cancel", run.id, "--cluster", "sandbox").returncode == 0
        assert stage.wait_for_state(run, "finished", "failed", "cancelled", "lost")["stage"] == ending

"""Why a run is waiting, on a real Slurm: the reason, the free resources, and a change that would start it now."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from support.recorded import begun
from support.sandbox_fixture import RunningSandbox
from support.scenario import CLUSTERCTL, Stage, wait_until

from clusterctl.launcher.diagnosis.waiting import explain_waiting, gather_pending
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.record.layout import RunDir

JOB = """workload = "command"
argv = ["sleep", "600"]
[resources]
nodes = {}
exclusive = true
time = "20m"
"""


@pytest.fixture
def back_end(sandbox: RunningSandbox) -> str:
    return sandbox.cluster


@pytest.mark.long
def test_why_suggests_a_smaller_run_that_starts_immediately(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "SLURM_CONF"):
        monkeypatch.setenv(name, stage.environment[name])
    first = stage.submit(stage.write_job("first", JOB.format(2)))
    wait_until(lambda: begun(first.attempt(0)))
    wide = stage.submit(stage.write_job("wide", JOB.format(4)))

    def waiting() -> Status | None:
        """The status once Slurm has examined the queue and estimated a start."""
        (status,) = statuses_of([wide]).statuses
        job = gather_pending(status, Slurm.of(status.record.cluster)).job
        return status if job.reason == "Resources" and job.start else None

    queued = wait_until(waiting, 30, "Slurm's reason")
    slurm = Slurm.of(queued.record.cluster)
    start, explanation = gather_pending(queued, slurm).job.start, explain_waiting(queued, slurm)
    assert explanation.cause.startswith("it is next in line")
    assert start is not None
    assert 900 < start - time.time() <= 1200
    assert "partition main: 2 of 4 nodes are completely free" in explanation.facts
    assert "it would start now with 2 nodes instead of 4" in explanation.facts
    assert explanation.unknown == ()
    cancel, submit = explanation.commands
    assert cancel == f"clusterctl cancel {wide.id}"
    assert submit.startswith("clusterctl submit ./wide.toml --cluster sandbox ")
    shown = stage.call("why", wide.id, "--cluster", "sandbox").stdout
    assert "it is next in line" in shown
    assert submit in shown
    shell = stage.environment | {"PATH": f"{Path(CLUSTERCTL).parent}:{stage.environment['PATH']}"}
    for command in (cancel, submit):
        subprocess.run(["bash", "-c", command], cwd=stage.folder, env=shell, check=True, timeout=60)
    (narrow,) = set(stage.runs.glob("wide-*")) - {wide.path}
    wait_until(lambda: any((narrow / "attempts").glob("*/nodes/*")), 30, "the smaller run")


def test_why_suggests_the_idle_nodes_for_a_run_larger_than_the_cluster(stage: Stage) -> None:
    job = 'workload = "command"\nargv = ["true"]\n[resources]\nnodes = 9\ntime = "1h"\n'
    nine = stage.write_job("nine", job)
    submitted = stage.call("submit", nine, "--cluster", "sandbox")
    smaller = "clusterctl submit ./nine.toml --cluster sandbox --nodes 4"
    if submitted.returncode == 4:  # newer versions of Slurm refuse a job that no partition can run
        assert f"hint: {smaller}" in submitted.stderr
        return
    run = RunDir(stage.runs / submitted.stdout.strip())
    reason = "it requests more nodes than its partition allows per job"
    shown = wait_until(
        lambda: text if reason in (text := stage.call("why", run.id, "--cluster", "sandbox").stdout) else None
    )
    assert "it would start now with 4 nodes instead of 9" in shown
    assert smaller in shown

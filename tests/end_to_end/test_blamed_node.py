"""A node on which a rank is killed at the same step twice in a row: the run goes on without it, in the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.scenario import Stage

from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

# Rank 1 is killed at step 5, after rank 0 has logged it: on the node where it started first, or on every one.
PROGRAM = """
import os, signal, time
import clusterctl.program as run
work = os.path.join(os.environ["CLUSTERCTL_RUN_DIR"], "work")
node, rank = os.environ["SLURMD_NODENAME"], int(os.environ["RANK"])
here, first = os.path.join(work, os.environ["CLUSTERCTL_ATTEMPT"]), os.path.join(work, "first")
print(node, flush=True)
def wait_for(word):
    while not os.path.exists(here + word):
        time.sleep(0.05)
for step in range(1, 8):
    if rank == 0:
        run.log(step=step, steps=7, loss=1 / step)
        time.sleep(0.2)
    if step == 5 and rank == 0:
        open(here + "logged", "w").close()
        wait_for("passed")
    elif step == 5 and rank == 1:
        wait_for("logged")
        if not os.path.exists(first):
            open(first, "w").write(node)
        if os.environ["BROKEN"] == "all" or open(first).read() == node:
            os.kill(os.getpid(), signal.SIGKILL)
        open(here + "passed", "w").close()
"""
JOB = f"""
workload = "command"
argv = ["python", "-c", {json.dumps(PROGRAM)}]
resources.nodes = 2
env.BROKEN = "%s"
"""


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    return dict(json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout))


def test_the_run_finishes_in_the_queue_without_that_node(stage: Stage) -> None:
    run = stage.submit(stage.write_job("broken", JOB % "first"))
    status = stage.wait_for_state(run, "finished", seconds=150)
    broken = stage.log(run, 1).split()[-1]
    assert status["left_out"] == [{"node": broken, "why": "killed", "by": ""}]
    hosts = [read_json(attempt.host_json) for attempt in run.attempts()]
    assert [one.get("restarting", False) for one in hosts[:2]] == [True, False]
    assert (hosts[1]["requeued"], hosts[1]["kills"]) == (
        True,
        {"step": 5, "times": 2, "node": broken, "without": broken},
    )
    # Slurm may restart the run before the node is excluded, as after a failed check.
    last = run.attempts()[-1].number
    assert broken not in [stage.log(run, rank, attempt=last).split()[-1] for rank in (0, 1)]
    assert [one["restarted_in"] for one in why(stage, run)["history"][:2]] == ["allocation", "queue"]


@pytest.mark.long
def test_a_kill_at_that_step_on_another_node_ends_the_run_and_why_shows_it(stage: Stage) -> None:
    run = stage.submit(stage.write_job("hopeless", JOB % "all"))
    stage.wait_for_state(run, "failed", seconds=150)
    found = why(stage, run)
    node = stage.log(run, 1).split()[-1]
    assert f"not restarted: a rank was killed 3 times in a row at step 5, without {node}" in found["facts"]
    assert found["class"] == "killed"
    assert len(run.attempts()) == 3


@pytest.mark.long
def test_with_too_few_other_nodes_the_run_starts_again_on_the_same_ones(stage: Stage) -> None:
    run = stage.submit(stage.write_job("all", (JOB % "first").replace("nodes = 2", "nodes = 4")))
    stage.wait_for_state(run, "failed", seconds=150)
    hosts = [read_json(attempt.host_json) for attempt in run.attempts()]
    assert {one["restart_count"] for one in hosts} == {0}
    log = Path(run.attempt(1).host_log).read_text()
    assert "is not left out: this job needs 4 nodes, and Slurm shows 3 others like it" in log

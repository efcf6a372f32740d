"""Ranks run on the job's own nodes, even if lines of `setup` start steps or change Slurm's variables."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from support.scenario import ON_BOTH, Stage, alive, wait_until

from clusterctl.shared.node.launch_command import expanded
from clusterctl.shared.record.layout import RunDir

pytestmark = [pytest.mark.long, ON_BOTH]

# Variables from which srun takes its step, and a step that still has all of the job's CPUs.
SETUP = """
setup = [
  "srun --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=$SLURM_NTASKS_PER_NODE sleep 60 &",
  "export SLURM_JOB_NODELIST=elsewhere SLURM_NODELIST=elsewhere SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1",
  "export SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_NTASKS_PER_NODE=1 SLURM_TASKS_PER_NODE=1",
]
"""
SHOW = """
import os, sys, time
print(os.environ["SLURMD_NODENAME"], os.environ["SLURM_LOCALID"], os.environ["SLURM_JOB_NODELIST"], flush=True)
while sys.argv[1] == "once" and os.environ["CLUSTERCTL_ATTEMPT"] == "0":
    time.sleep(0.1)
"""
PROGRAM = f'argv = ["python", "-c", {json.dumps(SHOW)}, "OFTEN"]\nworkload = "command"\n'
KINDS = {
    "tasks": PROGRAM + "resources.nodes = 2\nresources.tasks_per_node = 2\n",
    "roles": f"""
[[role]]
name = "one"
program = ["python", "-c", {json.dumps(SHOW)}, "OFTEN"]
[[role]]
name = "two"
tasks_per_node = 2
program = ["python", "-c", {json.dumps(SHOW)}, "OFTEN"]
""",
    "min_nodes": PROGRAM + "resources.nodes = 2\nresources.tasks_per_node = 2\nrestart.min_nodes = 1\n",
}


def placed(run: RunDir, attempt: int = 0) -> list[tuple[str, str, list[str]]]:
    """Of each rank: its node, its number there, and the job's nodes."""
    found = []
    for log in sorted((run.attempt(attempt).path / "logs").glob("rank_*.out")):
        if (text := log.read_text()).endswith("\n"):
            node, local, nodes = text.split()
            found.append((node, local, expanded(nodes)))
    return found


def nodes_of(stage: Stage, run: RunDir) -> list[str]:
    """As Slurm knows them; of a job that is ending, it lists only those that have not ended yet."""

    def settled() -> str:
        job = stage.slurm("scontrol", "show", "job", stage.job_id(run))
        return "" if "JobState=COMPLETING" in job else job

    return expanded(re.findall(r"\sNodeList=(\S+)", wait_until(settled))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_ranks_run_where_the_job_is(stage: Stage, kind: str) -> None:
    run = stage.submit(stage.write_job(kind, SETUP + KINDS[kind].replace("OFTEN", "ends")))
    stage.wait_for_state(run, "finished")
    first, second = nodes_of(stage, run)
    both = [first, second]
    expected = [(first, "0"), (first, "1"), (second, "0"), (second, "1")]
    if kind == "roles":
        del expected[1]
    assert placed(run) == [(*place, both) for place in expected]
    assert len(run.attempts()) == 1


@pytest.mark.parametrize("kind", ["tasks", "min_nodes"])
def test_they_do_after_a_restart_in_the_job(stage: Stage, kind: str) -> None:
    run = stage.submit(stage.write_job(kind, SETUP + KINDS[kind].replace("OFTEN", "once")))
    wait_until(lambda: len(placed(run)) == 4, 60, "the ranks' output")
    os.kill(alive(run, 3)[-1], signal.SIGKILL)
    stage.wait_for_state(run, "finished")
    assert placed(run, 1) == placed(run, 0)
    assert [node for node, *_ in placed(run)] == sorted(2 * nodes_of(stage, run))


def test_those_of_an_element_of_a_sweep_run_on_its_own_node(stage: Stage) -> None:
    job = stage.write_job("swept", PROGRAM.replace("OFTEN", "ends") + "resources.tasks_per_node = 2\n" + SETUP)
    done = stage.call("submit", job, "--cluster", stage.cluster, "--sweep", "env.VALUE=1,2", "--wait")
    assert done.returncode == 0, done.stderr
    for element in sorted(stage.runs.glob("*.[01]")):
        (node,) = {node for node, *_ in placed(RunDir(element))}
        assert placed(RunDir(element)) == [(node, "0", [node]), (node, "1", [node])]

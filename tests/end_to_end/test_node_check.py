"""`[node_check]`: nodes are checked before the ranks start; a failed one is named and excluded from the next start."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.scenario import ON_SLURM, Stage, wait_until

from clusterctl.shared.node.node_check import failed_nodes
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

JOB = """
workload = "command"
argv = ["python", "-c", "import os; print(os.environ['SLURMD_NODENAME'])"]
resources.nodes = 2
node_check.enabled = true
node_check.seconds = 20
node_check.scratch = "1M"
node_check.shared_memory = "1M"
"""
# In the check alone: there is no torch to wait for, and one node hangs before it reports anything.
NO_TORCH = """
import os, sys, time
if "node_check" in sys.orig_argv:
    sys.modules["torch"] = None
"""
HANGS = f"""{NO_TORCH}
    if os.environ["SLURMD_NODENAME"] == "node2" and "--judge" not in sys.orig_argv:
        time.sleep(600)
"""


@pytest.fixture
def scratch(stage: Stage, tmp_path: Path) -> Path:
    """The scratch folder of the cluster `checked`, with a subfolder for each node."""
    folder = tmp_path / "scratch"
    for number in range(1, 5):
        (folder / f"node{number}").mkdir(parents=True)
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "checked.toml").write_text(
        f'kind = "{kind}"\nlocal_scratch = {json.dumps(f"{folder}/$SLURMD_NODENAME")}\n'
    )
    if kind == "sandbox":  # whose jobs start on the first idle nodes

        def states() -> str:
            words = ["sinfo", "-h", "-o", "%T"]
            return subprocess.run(words, env=stage.environment, capture_output=True, text=True, check=True).stdout

        wait_until(lambda: states().split() == ["idle"], 60, "every node to be idle")
    return folder


def job_with(stage: Stage, program: str) -> str:
    """A job whose Python processes run `program` at startup."""
    inside = stage.folder.with_name("inside")
    inside.mkdir()
    (inside / "sitecustomize.py").write_text(program)
    return JOB + f"env.PYTHONPATH = {json.dumps(str(inside))}\n"


def finished(stage: Stage, text: str) -> RunDir:
    done = stage.call("submit", stage.write_job("job", text), "--cluster", "checked", "--wait")
    assert done.returncode == 0, done.stderr
    return RunDir(stage.runs / done.stdout.strip())


def nodes_of(run: RunDir, attempt: int) -> list[str]:
    return [run.attempt(attempt).log(rank).read_text().split()[-1] for rank in (0, 1)]


def assert_node2_was_excluded(stage: Stage, run: RunDir, problem: str) -> None:
    assert problem in failed_nodes(run.attempt(0))["node2"]
    *unfit, last = run.attempts()
    # Slurm may restart the run before the node is excluded: then the check finds it again.
    assert len(unfit) in (1, 2)
    assert all("node2" in failed_nodes(attempt) for attempt in unfit)
    assert "node2" not in nodes_of(run, last.number)
    assert read_json(run.attempt(0).host_json)["requeued"] is True
    status = json.loads(stage.call("status", run.id, "--cluster", "checked", "-o", "json").stdout)["runs"][0]
    assert status["left_out"] == [{"node": "node2", "why": "check", "by": ""}]
    why = json.loads(stage.call("why", run.id, "--cluster", "checked", "-o", "json").stdout)
    assert why["history"][0]["class"] == "node-failure"
    assert "node2: failed the node check: " in why["history"][0]["cause"]
    assert problem in why["history"][0]["cause"]


@pytest.mark.long
def test_healthy_nodes_pass_every_check_and_the_run_starts(stage: Stage, scratch: Path) -> None:
    run = finished(stage, JOB.replace("seconds = 20", "seconds = 60"))
    reports = [read_json(run.attempt(0).check / f"node{number}.json") for number in (1, 2)]
    assert [(report["reached"], report["problem"]) for report in reports] == [("all", "")] * 2
    assert nodes_of(run, 0) == ["node1", "node2"]


@pytest.mark.long
@ON_SLURM
def test_a_node_with_an_unwritable_scratch_folder_is_named_and_excluded(stage: Stage, scratch: Path) -> None:
    (scratch / "node2").rmdir()
    run = finished(stage, job_with(stage, NO_TORCH))
    assert_node2_was_excluded(stage, run, f"cannot write to {scratch}/node2: No such file or directory")


def test_a_node_that_hangs_in_its_check_is_named_and_excluded(stage: Stage, scratch: Path) -> None:
    run = finished(stage, job_with(stage, HANGS))
    assert_node2_was_excluded(stage, run, "did not answer within 20 s")


@ON_SLURM
def test_a_failed_check_at_the_restart_limit_ends_the_run_and_names_the_node(stage: Stage, scratch: Path) -> None:
    (scratch / "node2").rmdir()
    job = stage.write_job("job", job_with(stage, NO_TORCH) + "restart.limit = 0\n")
    done = stage.call("submit", job, "--cluster", "checked", "--wait")
    assert done.returncode == 1
    why = json.loads(stage.call("why", done.stdout.strip(), "--cluster", "checked", "-o", "json").stdout)
    assert (why["class"], why["certainty"], why["node"]) == ("node-failure", "certain", "node2")
    assert "not restarted: restart limit (0) reached" in why["facts"]

"""Warm runs: what their script adds, and how bash runs it, with a stand-in srun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from support.batch_host import hostile_shell

from clusterctl.launcher.config import Resolved
from clusterctl.launcher.slurm.queue import Allocation
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.launcher.submission.script import render
from clusterctl.launcher.submission.warm import check_fits, image_stamp, render_holder, warm_folder, warmed
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, CommandTrain, Container, Job, Resources

GOLDEN = Path(__file__).parent / "golden"
ALLOCATION = Allocation("77", "RUNNING", 4, None, 8, "node[1-4]", 32)
JOB = Job(
    name="big",
    workload="command",
    argv=("python", "train.py"),
    code="/home/me/project",
    resources=Resources(nodes=2, gpus_per_node=8, tasks_per_node=8, time=3600, warning=300),
    container=Container(image="/images/it's.sqsh"),
    train=CommandTrain(),
)
CLUSTER = Cluster(name="site", setup=("module purge",))
PLAIN = replace(JOB, container=Container(), resources=Resources(tasks_per_node=2, gpus_per_node=0, warning=0))
ALL_DONE = 'for r in 0 1; do touch "$attempt/marks/0000$r.done"; done\n'


def script(run: RunDir, job: Job = JOB, cluster: Cluster = CLUSTER, stamp: str = "") -> str:
    resolved = Resolved(job, cluster, {}, Path("/jobs/x.toml"))
    plan = make_plan(resolved, run, Path("/runs/.code/0123"), "0.0.0", interpreter="/venv/bin/python")
    return render(warmed(plan, resolved, ALLOCATION, stamp))


def test_the_script_of_a_warm_run_matches_the_golden_file(update_golden: bool) -> None:
    text = script(RunDir(Path("/runs/big-20260102-030405-abcd")))
    path = GOLDEN / "warm.sh"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


def test_a_warm_run_cannot_local_code() -> None:
    job = replace(PLAIN, resources=replace(PLAIN.resources, local_code=True))
    with pytest.raises(UsageError, match="local_code"):
        script(RunDir(Path("/runs/x-20260102-030405-abcd")), job)


@pytest.mark.parametrize(
    ("resources", "restart", "key"), [({"spare_nodes": 1}, {}, "spare_nodes"), ({}, {"min_nodes": 1}, "min_nodes")]
)
def test_an_allocation_has_no_spare_nodes(resources: dict[str, int], restart: dict[str, int], key: str) -> None:
    job = replace(PLAIN, resources=replace(PLAIN.resources, **resources), restart=replace(PLAIN.restart, **restart))
    with pytest.raises(UsageError, match=key):
        script(RunDir(Path("/runs/x-20260102-030405-abcd")), job)
    with pytest.raises(UsageError, match=key):
        render_holder(Resolved(job, CLUSTER, {}, Path("/jobs/x.toml")), Path("/runs/.warm"))


def test_the_holder_matches_the_golden_file(update_golden: bool) -> None:
    text = render_holder(Resolved(JOB, CLUSTER, {}, Path("/jobs/x.toml")), Path("/runs/.warm"))
    path = GOLDEN / "holder.sh"
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["warm.sh", "holder.sh"])
def test_bash_accepts_it(name: str) -> None:
    assert subprocess.run(["bash", "-n", GOLDEN / name], capture_output=True, check=True).stderr == b""


def test_a_changed_image_gets_a_new_name(tmp_path: Path) -> None:
    image = tmp_path / "x.sqsh"
    image.write_text("one")
    before = image_stamp(str(image))
    image.write_text("three")
    assert image_stamp(str(image)) != before
    assert image_stamp("nvcr.io#nvidia/pyg:24.07-py3") == image_stamp(None) == ""
    run = RunDir(Path("/runs/big-20260102-030405-abcd"))
    assert script(run, stamp="a") != script(run, stamp="b")


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (Resources(nodes=5), "requests 5 nodes, allocation 77 has 4"),
        (Resources(nodes=1, gpus_per_node=9), "requests 9 GPUs per node, allocation 77 has 8"),
        (Resources(nodes=3, tasks_per_node=4, cpus_per_task=3), "requests 36 CPUs, allocation 77 has 32"),
    ],
)
def test_a_job_larger_than_the_allocation_is_refused(resources: Resources, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_fits(resources, ALLOCATION)
    check_fits(Resources(nodes=4, gpus_per_node=8), ALLOCATION)
    check_fits(resources, replace(ALLOCATION, nodes=9, gpus_per_node=None, cpus=None))


class Node:
    """The first node of an allocation: warm scripts, and an srun that records its calls and runs a given body."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "it's runs"
        self.srun = folder / "bin" / "srun"
        self.srun.parent.mkdir()
        self.notes = folder / "notes"

    def start(self, name: str, srun: str, job: Job = PLAIN) -> tuple[RunDir, subprocess.Popen[bytes]]:
        run = RunDir(self.runs / f"{name}-20260102-030405-abcd")
        for path in (run.attempts_folder, run.code / "lib", run.project):
            path.mkdir(parents=True)
        run.run_json.write_text("{}")
        run.script.write_text(script(run, job, Cluster(name="c")))
        note = f"env | grep ^SLURM >>{quote(str(self.notes))}; echo \"${{*//$'\\n'/ }}\" >>{quote(str(self.notes))}\n"
        prologue = f"#!/bin/bash\n{note}attempt=$CLUSTERCTL_RUN_DIR/attempts/$CLUSTERCTL_ATTEMPT\n"
        aside = self.srun.with_name("srun.new")  # a running program cannot be overwritten
        aside.write_text(prologue + srun)
        aside.chmod(0o755)
        aside.rename(self.srun)
        step = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "node1", "SLURM_CONF": "/etc/s.conf"}
        environment = {"PATH": f"{self.srun.parent}:{os.environ['PATH']}", **step}
        return run, subprocess.Popen(["bash", run.script], env=environment, stderr=subprocess.PIPE)

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def host(run: RunDir) -> dict[str, Any]:
    return dict(json.loads(run.attempt(0).host_json.read_text()))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_srun_does_not_see_the_host_steps_variables(node: Node) -> None:
    run, process = node.start("a", ALL_DONE)
    process.communicate()
    assert process.returncode == 0
    assert run.finished_json.exists()
    variables = {line.partition("=")[0] for line in node.noted() if line.startswith("SLURM")}
    assert variables == {"SLURM_JOB_ID", "SLURM_CONF"}
    assert (host(run)["nodes"], host(run)["job_id"]) == ("node[1-4]", "77")


def test_a_cancel_waits_for_the_ranks_and_is_recorded(node: Node) -> None:
    run, process = node.start("a", 'touch "$attempt/up"; while [ ! -e "$attempt/go" ]; do sleep 0.05; done; exit 143')
    until((run.attempt(0).path / "up").exists)
    process.send_signal(signal.SIGURG)
    (run.attempt(0).path / "go").touch()
    process.communicate()
    assert (process.returncode, host(run)["exit_code"], host(run)["signal"]) == (143, 143, "TERM")


IMPORTING = 'case $* in *" true") sleep 0.3; echo imported >>"$attempt/../../../imports";; *) ' + ALL_DONE + ";; esac"


def test_concurrent_runs_import_an_image_once(node: Node) -> None:
    job = replace(PLAIN, container=Container(image="/images/x.sqsh"))
    started = [node.start(name, IMPORTING, job) for name in ("a", "b", "c")]
    for run, process in started:
        process.communicate()
        assert process.returncode == 0
        assert run.finished_json.exists()
    assert (node.runs / "imports").read_text() == "imported\n"
    imports = [line for line in node.noted() if line.endswith(" true")]
    assert all("--nodes=4" in line and "--container-image=/images/x.sqsh" in line for line in imports)
    tasks = [line for line in node.noted() if "clusterctl/shared/node" in line]
    assert all("--container-name=clusterctl_77_" in line and "--container-image" not in line for line in tasks)


def test_a_failed_import_fails_the_run_and_the_next_run_retries(node: Node) -> None:
    job = replace(PLAIN, container=Container(image="/images/x.sqsh"))
    run, process = node.start("a", "exit 9", job)
    process.communicate()
    assert (process.returncode, host(run)["exit_code"]) == (9, 9)
    _, process = node.start("b", IMPORTING, job)
    process.communicate()
    assert process.returncode == 0


# enroot keeps what an import wrote, complete or not; pyxis uses whatever exists under the name.
NODES = (
    """
stored=${attempt%/attempts/*}/../stored
case $* in
  *"enroot list"*) rm -f "$stored" ;;
  *" true")
    [ ! -e "$stored" ] || exit 0
    echo half >"$stored"
    while [ -n "$cancelled" ] && [ ! -e "$attempt/cancel_sent" ]; do sleep 0.05; done
    [ -z "$cancelled$full" ] || exit 1
    echo whole >"$stored" ;;
  *) cp "$stored" "$attempt/ran_in"; """
    + ALL_DONE
    + """ ;;
esac
"""
)


def test_a_partial_image_is_not_used(node: Node) -> None:
    job = replace(PLAIN, container=Container(image="/images/x.sqsh"))
    _, process = node.start("a", f"full=y\n{NODES}", job)
    process.communicate()
    assert process.returncode == 1
    assert len([*(warm_folder(node.runs) / "77").glob("clusterctl_*")]) == 1  # tells the holder what to remove
    (node.runs / "stored").unlink()
    run, process = node.start("b", f"cancelled=y\n{NODES}", job)
    until((node.runs / "stored").exists)
    process.send_signal(signal.SIGURG)
    (run.attempt(0).path / "cancel_sent").touch()
    process.communicate()
    assert process.returncode == 1
    run, process = node.start("c", NODES, job)
    process.communicate()
    assert process.returncode == 0
    assert (run.attempt(0).path / "ran_in").read_text() == "whole\n"


def test_the_import_of_a_killed_run_is_taken_over(node: Node) -> None:
    job = replace(PLAIN, container=Container(image="/images/x.sqsh"))
    _, process = node.start("a", IMPORTING, job)
    process.communicate()
    (mark,) = (warm_folder(node.runs) / "77").iterdir()
    (mark / "ready").unlink()
    dead = subprocess.Popen(["true"])
    dead.wait()
    (mark / "owner").write_text(f"{dead.pid}\n")
    _, process = node.start("b", IMPORTING, job)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert (node.runs / "imports").read_text() == "imported\n" * 2


def test_a_holder_cleans_up_whatever_the_submitters_shell_exports(tmp_path: Path) -> None:
    called, asked, marks = tmp_path / "called", tmp_path / "asked", tmp_path / "warm" / "77"
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\necho "$*" >{quote(str(asked))}\n')
    srun.chmod(0o755)
    text = render_holder(Resolved(JOB, CLUSTER, {}, Path("/jobs/x.toml")), marks.parent)
    step = {"PATH": f"{srun.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2"}
    holder = subprocess.Popen(["bash", "-c", text], env={**hostile_shell(called, "shell.sh", "hold.sh"), **step})
    try:
        until((marks / "held").exists)
        (marks / "clusterctl_77_0123").mkdir()
        holder.send_signal(signal.SIGUSR1)
        assert holder.wait(20) == 0
    finally:
        holder.kill()
        holder.wait()
    assert not called.exists()
    assert not marks.exists()
    assert "--nodes=2" in asked.read_text()

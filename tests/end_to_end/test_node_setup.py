"""Lines that run once on each node before the ranks, on every back end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.guide import GUIDES
from support.scenario import Stage

from clusterctl.launcher.observe.attempt import read_host
from clusterctl.shared.record.states import State

COPY = 'node_setup = ["X=$PWD/copy-$SLURM_NODEID", "test ! -e $X && echo copied > $X"]\n'
FAILS = 'node_setup = ["true", "if [ $SLURM_NODEID = 1 ]; then echo no disk here >&2; false; else sleep 300; fi"]\n'
PROGRAM = 'workload = "command"\nargv = ["bash", "-c", "cat copy-$SLURM_NODEID"]\nresources.nodes = 2\n'


def test_each_node_is_set_up_once_before_its_ranks(stage: Stage) -> None:
    stage.write_job("job", PROGRAM + COPY + "resources.tasks_per_node = 2\n")
    run = stage.submit("./job.toml", "--wait")
    assert [stage.log(run, rank) for rank in range(4)] == ["copied\n"] * 4
    host = read_host(run.attempt(0))
    assert host.node_setup_start is not None
    assert host.node_setup_end is not None
    assert host.node_setup == ()
    page = stage.call("report", run.id, "--output", "page.html", "--cluster", stage.cluster)
    assert page.returncode == 0, page.stderr
    assert f"state-{State.NODE_SETUP}" in (stage.folder / "page.html").read_text().partition("</style>")[2]


@pytest.mark.long
def test_a_restart_finds_the_copy_that_the_guides_lines_made(stage: Stage, tmp_path: Path) -> None:
    """Both nodes of a back end share this machine's disk, so one waits for the other's copy."""
    (block,) = re.findall(r"^    (node_setup = \[\n.*?^    \]\n)", (GUIDES / "at-scale.md").read_text(), re.M | re.S)
    shared, scratch = tmp_path / "shared", tmp_path / "scratch"
    (shared / "graph").mkdir(parents=True)
    (shared / "graph" / "edges").write_text("1 2\n")
    lines = block.replace("/shared/me", str(shared)).replace("/scratch", str(scratch))
    assert lines.count(str(shared)) == 1
    show = f"cat {scratch}/$USER/graph/edges && stat --format=%i:%Z {scratch}/$USER/graph/edges"
    # The exit of one rank ends the other, so they wait for each other.
    both = 'cd "$CLUSTERCTL_CHECKPOINTS"; touch $RANK; until [ -e 0 ] && [ -e 1 ]; do sleep 0.1; done'
    again = f'{both}; touch state "$CLUSTERCTL_RESTART_FILE"; exit 9'
    words = ["bash", "-c", f'{show}; [ "$CLUSTERCTL_ATTEMPT" = 1 ] && exit 0; {again}']
    job = f'workload = "command"\nargv = {json.dumps(words)}\n{lines}[resources]\nnodes = 2\n[env]\nUSER = "me"\n'
    run = stage.submit(stage.write_job("job", job), "--wait")
    assert len(run.attempts()) == 2
    found = {stage.log(run, rank, attempt=attempt) for rank in range(2) for attempt in range(2)}
    (shown,) = found  # the same file, never written again
    assert shown.startswith("1 2\n")


def test_a_failure_names_the_node_and_the_line(stage: Stage) -> None:
    stage.write_job("job", PROGRAM + FAILS)
    run = stage.submit("./job.toml")
    status = stage.wait_for_state(run, "failed")
    (flaw,) = read_host(run.attempt(0)).node_setup
    assert (flaw.line, flaw.code, flaw.last) == (2, 1, "no disk here")
    shown = json.dumps(status) + stage.call("why", run.id, "--cluster", stage.cluster).stdout
    assert f"node_setup line 2 on {flaw.node}: if [ $SLURM_NODEID = 1 ]" in shown
    assert "no disk here" in shown
    assert len(run.attempts()) == 1  # it is not started again


def test_a_line_that_is_not_complete_is_refused(stage: Stage) -> None:
    stage.write_job("job", PROGRAM + 'node_setup = ["true", "if true; then"]\n')
    done = stage.call("submit", "./job.toml", "--cluster", stage.cluster)
    assert done.returncode == 3
    assert "node_setup line 2: if true; then" in done.stderr
    assert not [*stage.runs.glob("job-*")]

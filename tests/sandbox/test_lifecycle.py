"""`sandbox up` and `sandbox down`, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.sandbox_fixture import RunningSandbox
from support.scenario import wait_until

from clusterctl.launcher.sandbox import lifecycle, marked_processes, nodes
from clusterctl.launcher.sandbox.description import Sandbox, SandboxRequest, current
from clusterctl.launcher.sandbox.lifecycle import write_files
from clusterctl.shared.errors import SlurmError, UsageError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.spec.values import GpuCount

TWO = SandboxRequest(nodes=2)


def leftovers(room: RunningSandbox) -> list[str]:
    """Everything on this machine that belongs to the sandbox."""
    mark = str(room.folder).encode()
    found = [str(process) for process in marked_processes.find(room.folder)]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            content = (entry / "cmdline").read_bytes() + (entry / "mountinfo").read_bytes()
        except OSError:
            continue
        found += [str(entry)] if mark in content else []
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    found += [line for line in links.splitlines() if nodes.cable_name(room.folder) in line]
    found += [str(path) for path in Path("/run/netns").glob("*node*") if room.folder.name in path.name]
    return found + [str(path) for path in room.folder.glob("*")]


def kill(room: RunningSandbox, part: str, command: str) -> None:
    victim = next(p for p in marked_processes.find(room.folder) if p.part == part and p.command.startswith(command))
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: not victim.alive(), 5)


def test_up_starts_four_nodes_and_down_leaves_nothing(sandbox_home: RunningSandbox) -> None:
    done = sandbox_home.clusterctl("sandbox", "up", "--nodes", "4")
    assert done.returncode == 0, done.stderr
    assert sandbox_home.call("sinfo", "--noheader", "--partition=main", "--format=%D %t") == "4 idle\n"
    assert len(sandbox_home.call("srun", "--nodes=4", "hostname").split()) == 4
    sandbox_home.call("sbatch", "--nodes=4", "--output=/dev/null", "--wrap=srun sleep 600")
    assert sandbox_home.clusterctl("sandbox", "down").returncode == 0
    assert leftovers(sandbox_home) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "words", ["cora --cluster sandbox --follow", "--nodes 2 --cluster sandbox --follow -- hostname"]
)
def test_the_next_commands_of_up_finish(sandbox_home: RunningSandbox, words: str) -> None:
    done = sandbox_home.clusterctl("sandbox", "up", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    done = sandbox_home.clusterctl("submit", *words.split())
    assert (done.returncode, "finished" in done.stdout + done.stderr) == (0, True), done


@pytest.mark.long
def test_ten_ups_and_downs_in_a_row_leave_nothing(sandbox_home: RunningSandbox) -> None:
    for _ in range(10):
        assert lifecycle.up(sandbox_home.folder, SandboxRequest())[1]
        lifecycle.down(sandbox_home.folder)
        assert leftovers(sandbox_home) == []


def test_up_does_not_change_a_running_sandbox(sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, TWO)
    before = set(marked_processes.find(sandbox_home.folder))
    done = sandbox_home.clusterctl("sandbox", "up", "--nodes", "3")
    assert (done.returncode, "already up: sandbox: 2 nodes" in done.stderr) == (0, True)
    assert before <= set(marked_processes.find(sandbox_home.folder))


def test_down_reports_that_no_sandbox_is_running(sandbox_home: RunningSandbox) -> None:
    done = sandbox_home.clusterctl("sandbox", "down")
    assert (done.returncode, done.stderr) == (0, "no sandbox is running\n")


@pytest.mark.parametrize(
    ("part", "command"),
    [
        ("slurmctld", "slurmctld"),
        ("node1", "unshare"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in [("munged", "munged"), ("switch", "sleep"), ("node1", "slurmd"), ("node1", "sh")]
        ),
    ],
)
def test_up_and_down_work_after_a_daemon_was_killed(sandbox_home: RunningSandbox, part: str, command: str) -> None:
    lifecycle.up(sandbox_home.folder, TWO)
    kill(sandbox_home, part, command)
    lifecycle.up(sandbox_home.folder, TWO)
    assert sandbox_home.call("srun", "--nodes=2", "hostname").split() != []
    kill(sandbox_home, part, command)
    lifecycle.down(sandbox_home.folder)
    assert leftovers(sandbox_home) == []


def test_status_names_a_missing_daemon(sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, TWO)
    assert lifecycle.status(sandbox_home.folder).nodes == {"node1": "idle", "node2": "idle"}
    kill(sandbox_home, "slurmctld", "slurmctld")
    status = lifecycle.status(sandbox_home.folder)
    assert (status.missing, status.nodes) == (("slurmctld",), {})


def test_down_cleans_up_after_a_killed_up(sandbox_home: RunningSandbox) -> None:
    argv = [sys.executable, "-m", "clusterctl", "sandbox", "up"]
    with subprocess.Popen(argv, env=sandbox_home.environment) as process:
        wait_until(lambda: len(marked_processes.find(sandbox_home.folder)) > 2, 20)
        process.kill()
    assert current(sandbox_home.folder) is None
    assert lifecycle.down(sandbox_home.folder)
    assert leftovers(sandbox_home) == []


def test_down_finds_a_sandbox_whose_files_are_gone(sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, TWO)
    sandbox_home.folder.rename(sandbox_home.home / "elsewhere")
    assert lifecycle.down(sandbox_home.folder)
    assert leftovers(sandbox_home) == []


def test_files_from_before_a_reboot_are_ignored(sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, TWO)
    record = sandbox_home.folder / "sandbox.json"
    before = read_json(record)
    marked_processes.end(marked_processes.find(sandbox_home.folder))
    write_json(record, before | {"boot_id": "another"})
    assert current(sandbox_home.folder) is None
    done = sandbox_home.clusterctl("submit", "command", "--cluster", "sandbox")
    assert (done.returncode, done.stderr) == (4, "error: no sandbox is running\nhint: clusterctl sandbox up\n")
    assert lifecycle.up(sandbox_home.folder, TWO)[1]


def test_a_daemon_that_does_not_start_is_reported_with_its_last_line(
    sandbox_home: RunningSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_key(sandbox: Sandbox) -> None:
        write_files(sandbox)
        (sandbox.path / "etc" / "munge.key").unlink()

    monkeypatch.setattr(lifecycle, "write_files", without_key)
    with pytest.raises(SlurmError, match="munged exited immediately: .*key"):
        lifecycle.up(sandbox_home.folder, TWO)
    assert current(sandbox_home.folder) is None
    assert marked_processes.find(sandbox_home.folder) == []


def test_two_sandboxes_run_side_by_side(sandbox: RunningSandbox, sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, TWO)
    assert sandbox_home.call("sinfo", "--noheader", "--partition=main", "--format=%D") == "2\n"
    assert sandbox.call("sinfo", "--noheader", "--partition=main", "--format=%D") == "4\n"
    lifecycle.down(sandbox_home.folder)
    assert sandbox.call("srun", "--nodes=4", "hostname").split() != []


def sleeping_on(room: RunningSandbox) -> set[str]:
    """The nodes on which a `sleep` runs."""
    return {process.part for process in marked_processes.find(room.folder) if process.command == "sleep"}


def test_without_namespaces_all_nodes_are_this_host(sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, TWO, namespaces=False)
    assert len(sandbox_home.call("srun", "--nodes=2", "--ntasks-per-node=2", "hostname").split()) == 4
    for node in ("node1", "node2"):  # a job each: Slurm ends all of a job that loses a node
        sandbox_home.call("sbatch", f"--nodelist={node}", "--output=/dev/null", "--wrap=srun sleep 600")
    wait_until(lambda: sleeping_on(sandbox_home) == {"node1", "node2"}, 20)
    listed = json.loads(sandbox_home.clusterctl("nodes", "--cluster", "sandbox", "-o", "json").stdout)
    assert [node["name"] for node in listed["nodes"]] == ["node1", "node2"]
    done = sandbox_home.clusterctl("sandbox", "node", "cut", "node1")
    assert (done.returncode, "cannot disconnect a node" in done.stderr) == (2, True)
    assert sandbox_home.clusterctl("sandbox", "node", "off", "node1").returncode == 0
    assert sleeping_on(sandbox_home) == {"node2"}
    lifecycle.down(sandbox_home.folder)
    assert leftovers(sandbox_home) == []


def test_accounting_remembers_jobs_and_their_scripts(sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, SandboxRequest(nodes=1, accounting=True))
    job = sandbox_home.call("sbatch", "--parsable", "--output=/dev/null", "--wrap=exit 3").strip()
    asked = ["sacct", "--allocations", "--noheader", "--parsable2", "--jobs", job, "--format=State,ExitCode"]
    wait_until(lambda: sandbox_home.call(*asked) == "FAILED|3:0\n", 20)
    kill(sandbox_home, "mariadbd", "mariadbd")
    lifecycle.down(sandbox_home.folder)
    assert leftovers(sandbox_home) == []


def test_cgroups_confine_tasks_to_their_gpus_and_are_removed_with_the_sandbox(sandbox_home: RunningSandbox) -> None:
    request = SandboxRequest(nodes=1, gpus_per_node=GpuCount(2), cgroups=True)
    try:
        lifecycle.check_cgroups()
    except UsageError:  # this kernel has only cgroup v2: nothing is started
        with pytest.raises(UsageError):
            lifecycle.up(sandbox_home.folder, request)
        return
    lifecycle.up(sandbox_home.folder, request)
    opened = f"cat {sandbox_home.folder}/dev/gpu0; cat {sandbox_home.folder}/dev/gpu1; echo $CUDA_VISIBLE_DEVICES"
    done = sandbox_home.try_to("srun", "--gpus-per-node=1", "sh", "-c", opened)
    assert "gpu0: No such device" in done.stderr  # access is allowed, but no such device exists
    assert "gpu1: Operation not permitted" in done.stderr
    assert done.stdout == "0\n"
    lifecycle.down(sandbox_home.folder)
    assert list(Path("/sys/fs/cgroup").glob("*/slurm_node1")) == []

"""Reading what a run uses on a node, from copies of Linux's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.engine.task.node_usage import NodeUsage

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
RUN = {"CLUSTERCTL_RUN_DIR": "/runs/a", "CLUSTERCTL_ATTEMPT": "0", "SLURM_NODEID": "1"}


class Machine:
    """A node's files, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/net/dev", "Inter-|   Receive\n face |bytes\n    lo: 9 0 0 0 0 0 0 0 9 0\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(
        self, pid: int, ticks: int = 0, pages: int = 0, shared: int = 0, read: int = 0, started: int = 7, **of_run: str
    ) -> None:
        environment = RUN | {f"SLURM_{name.upper()}": value for name, value in of_run.items()}
        self.write(f"proc/{pid}/stat", f"{pid} (a ) b) S 1 2 3 4 5 6 7 8 9 10 {ticks} 0 0 0 20 0 1 0 {started} 0 0\n")
        self.write(f"proc/{pid}/statm", f"900 {pages} {shared} 1 0 1 0\n")
        self.write(f"proc/{pid}/io", f"rchar: 1\nread_bytes: {read}\nwrite_bytes: {2 * read}\n")
        self.write(f"proc/{pid}/environ", "\0".join(f"{name}={value}" for name, value in environment.items()))

    def end(self, pid: int) -> None:
        for path in (self.root / "proc" / str(pid)).iterdir():
            path.unlink()
        (self.root / "proc" / str(pid)).rmdir()

    def usage(self, **environment: str) -> NodeUsage:
        return NodeUsage(RUN | environment, self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_only_the_runs_processes_on_this_node_are_added_up(machine: Machine) -> None:
    machine.process(10, ticks=TICKS, pages=30, shared=20, read=100)
    machine.process(11, ticks=TICKS, pages=25, shared=20, read=100)
    machine.process(12, ticks=99 * TICKS, pages=999, read=999, nodeid="2")  # the run's, on another virtual node
    usage = machine.usage().read()
    assert (usage.cpu_seconds, usage.disk_read, usage.disk_write) == (2.0, 200, 400)
    assert usage.memory == (10 + 5 + 20) * PAGE, "shared pages are counted once"
    assert usage.memory_limit is None


def test_processes_of_no_attempt_count_and_those_of_an_earlier_one_do_not(machine: Machine) -> None:
    machine.process(10, pages=30)
    for pid, words in (
        (11, "CLUSTERCTL_RUN_DIR=/runs/a\0SLURM_NODEID=1"),
        (12, "CLUSTERCTL_RUN_DIR=/runs/b\0SLURM_NODEID=1"),
    ):
        machine.process(pid, pages=5)
        machine.write(f"proc/{pid}/environ", words)
    machine.process(13, pages=99)
    earlier = "\0".join(f"{name}={value}" for name, value in (RUN | {"CLUSTERCTL_ATTEMPT": "7"}).items())
    machine.write("proc/13/environ", earlier)
    assert machine.usage().read().memory == (30 + 5) * PAGE, "of the run: the ranks, and their standby"


def test_ended_processes_still_count_even_if_their_pid_is_reused(machine: Machine) -> None:
    node = machine.usage()
    machine.process(10, ticks=5 * TICKS)
    assert node.read().cpu_seconds == 5.0
    machine.end(10)
    assert node.read().cpu_seconds == 5.0
    machine.process(10, ticks=TICKS, started=8)
    assert node.read().cpu_seconds == 6.0


def test_hidden_counters_and_vanished_processes_are_skipped(machine: Machine) -> None:
    machine.process(10, ticks=TICKS, pages=3)
    (machine.root / "proc/10/io").unlink()
    machine.process(11, ticks=TICKS)
    (machine.root / "proc/11/environ").unlink()
    usage = machine.usage().read()
    assert (usage.cpu_seconds, usage.disk_read, usage.memory) == (1.0, 0, 3 * PAGE)


def test_outside_a_run_no_process_is_counted(machine: Machine) -> None:
    machine.process(10, ticks=TICKS)
    assert NodeUsage({}, machine.root).read().cpu_seconds == 0.0


def test_slurms_cgroup_v2_is_read(machine: Machine) -> None:
    job = "system.slice/slurmstepd.scope/job_12"
    machine.write("proc/self/cgroup", f"0::/{job}/step_0/user/task_0\n")
    machine.write(f"sys/fs/cgroup/{job}/cpu.stat", "usage_usec 2500000\nuser_usec 1\n")
    machine.write(f"sys/fs/cgroup/{job}/memory.current", "1000\n")
    machine.write(f"sys/fs/cgroup/{job}/memory.stat", "anon 1\ninactive_file 300\n")
    machine.write(f"sys/fs/cgroup/{job}/memory.max", "4096\n")
    usage = machine.usage().read()
    assert (usage.cpu_seconds, usage.memory, usage.memory_limit) == (2.5, 700, 4096)
    machine.write(f"sys/fs/cgroup/{job}/memory.max", "max\n")
    assert machine.usage(SLURM_MEM_PER_NODE="2").read().memory_limit == 2 * 2**20


@pytest.mark.parametrize("mounted", ["cpu,cpuacct", "cpuacct"])
def test_slurms_cgroups_v1_are_read(machine: Machine, mounted: str) -> None:
    job = "slurm/uid_0/job_12"
    machine.write("proc/self/cgroup", f"4:memory:/{job}/step_0/task_0\n3:cpu,cpuacct:/{job}/step_0\n0::/\n")
    machine.write(f"sys/fs/cgroup/{mounted}/{job}/cpuacct.usage", "1500000000\n")
    machine.write(f"sys/fs/cgroup/memory/{job}/memory.usage_in_bytes", "1000\n")
    machine.write(f"sys/fs/cgroup/memory/{job}/memory.stat", "cache 1\ntotal_inactive_file 100\n")
    machine.write(f"sys/fs/cgroup/memory/{job}/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    usage = machine.usage().read()
    assert (usage.cpu_seconds, usage.memory, usage.memory_limit) == (1.5, 900, None)


def test_other_cgroups_are_ignored(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/user.slice/session-1.scope\n")
    machine.process(10, ticks=TICKS)
    assert machine.usage().read().cpu_seconds == 1.0


def test_network_traffic_includes_infiniband_but_not_bridges(machine: Machine) -> None:
    machine.write(
        "proc/net/dev", "Inter-|\n face |\n lo: 9 0 0 0 0 0 0 0 9 0\neth0:100 0 0 0 0 0 0 0 200 0\n br0: 7" + " 7" * 9
    )
    usage = machine.usage().read()
    assert (usage.net_in, usage.net_out) == (107, 207)
    machine.write("sys/class/net/eth0/device/vendor", "")
    machine.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "1000\n")
    machine.write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "2000\n")
    usage = machine.usage().read()
    assert (usage.net_in, usage.net_out) == (4100, 8200)


def test_the_cpu_count_comes_from_slurm(machine: Machine) -> None:
    assert machine.usage(SLURM_CPUS_ON_NODE="8").cpus == 8
    assert machine.usage().cpus == len(os.sched_getaffinity(0))


def test_a_busy_process_on_this_machine_is_measured(tmp_path: Path) -> None:
    run = RUN | {"CLUSTERCTL_RUN_DIR": str(tmp_path)}
    node = NodeUsage(run)
    program = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=run, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        usage = node.read()
        process.stdin.write(b"\n")
    assert usage.cpu_seconds >= 0.29
    assert usage.memory > 2**20

"""The names of the virtual nodes resolve in the processes of a job, and nowhere else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from clusterctl.launcher.emulator import virtual_cluster
from clusterctl.launcher.emulator.virtual_cluster import Machine, name_nodes, names_resolve, with_names

_OURS = Path("/proc/thread-self/ns/mnt")
# Two ranks that meet at the first name of the job's nodes, as many programs do. Rank 0 tells its port in a file.
_MEET = """
import os, pathlib, socket, subprocess, time
nodes = subprocess.check_output(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]], text=True).split()
port = pathlib.Path("port")
if os.environ["SLURM_PROCID"] == "0":
    server = socket.create_server((nodes[0], 0))
    pathlib.Path("port.new").write_text(str(server.getsockname()[1]))
    os.rename("port.new", port)
    server.settimeout(30)
    print("heard", server.accept()[0].recv(9).decode())
else:
    while not port.exists():
        time.sleep(0.01)
    with socket.create_connection((nodes[0], int(port.read_text())), timeout=30) as connection:
        connection.sendall(socket.gethostbyname(nodes[-1]).encode())
"""


def can_mount() -> bool:
    """Whether root's jobs can have their own view of /etc/hosts here."""
    return os.geteuid() == 0 and shutil.which("unshare") is not None and os.system("unshare -m true") == 0


@pytest.mark.skipif(not can_mount(), reason="needs root in a kernel that lets it make a mount namespace")
def test_ranks_meet_at_the_name_of_a_node(cluster):
    before = Path("/etc/hosts").read_bytes()
    (cluster.work / "meet.py").write_text(_MEET)
    state, log = cluster.finish(f"getent hosts node2; srun '{sys.executable}' meet.py", "--nodes=2")
    assert (state, log.split()) == ("COMPLETED", ["127.0.0.1", "node2", "heard", "127.0.0.1"])
    assert Path("/etc/hosts").read_bytes() == before


@pytest.mark.skipif(not can_mount(), reason="needs root in a kernel that lets it make a mount namespace")
def test_names_resolve_in_a_step_from_outside_the_job_and_in_jobs_of_the_job(cluster):
    (cluster.work / "inner.sh").write_text("#!/bin/sh\ngetent hosts node2\n")
    job = cluster.submit("sbatch --nodes=1 --output=inner inner.sh; touch ready; sleep 30", "--nodes=1")
    cluster.wait_for_ready()
    assert cluster.call("srun", f"--jobid={job}", "getent", "hosts", "node1").split() == ["127.0.0.1", "node1"]
    inner = cluster.work / "inner"
    cluster.until(lambda: inner.exists() and inner.read_text() != "", "the inner job")
    assert inner.read_text().split() == ["127.0.0.1", "node2"]


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ("", "127.0.0.1 node1\n127.0.0.1 node2\n"),
        ("127.0.0.1 localhost\n# a note", "127.0.0.1 localhost\n# a note\n127.0.0.1 node1\n127.0.0.1 node2\n"),
        ("127.0.1.1 node2 node1 # mine", "127.0.1.1 node2 node1 # mine"),
        ("10.0.0.1\tnode1 head # real\n", "10.0.0.1 head\n127.0.0.1 node1\n127.0.0.1 node2\n"),
        ("10.0.0.1 node1\n127.0.0.1 node1\n", "127.0.0.1 node1\n127.0.0.1 node2\n"),
        ("10.0.0.1 node10\n", "10.0.0.1 node10\n127.0.0.1 node1\n127.0.0.1 node2\n"),
    ],
)
def test_names_are_those_of_this_machine_and_of_no_other(known: str, wanted: str) -> None:
    assert with_names(known, ["node1", "node2"]) == wanted
    assert with_names(wanted, ["node1", "node2"]) == wanted


def machine(folder: Path) -> Machine:
    return Machine(folder, folder, 2, 2, 0, 1.0)


def test_asking_changes_nothing(tmp_path: Path) -> None:
    before = Path("/etc/hosts").read_bytes(), _OURS.readlink()
    assert names_resolve(machine(tmp_path)) == can_mount()
    assert (Path("/etc/hosts").read_bytes(), _OURS.readlink()) == before


@pytest.mark.parametrize("hosts", [None, b"10.0.0.1 node1\n", b"\xff\xfe 127.0.0.1\n"])
def test_without_the_right_nothing_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: bytes | None
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(virtual_cluster, "_HOSTS", tmp_path / "hosts")
    if hosts is not None:
        (tmp_path / "hosts").write_bytes(hosts)
    before = _OURS.readlink()
    name_nodes(machine(tmp_path))
    assert _OURS.readlink() == before
    assert not names_resolve(machine(tmp_path))

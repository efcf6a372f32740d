"""`clusterctl tunnel`: a port of a rank's node on this machine, also over ssh, while nothing else listens anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeGuard

import pytest
from support.far import FarStage, made, staged
from support.scenario import BACK_ENDS, Stage, wait_until

from clusterctl.shared.node.tunnel import tcp_sockets
from clusterctl.shared.record.layout import RunDir

# Rank 1 serves its rank and node to everybody who asks, rank 0 only sleeps.
SERVER = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"rank {os.environ['RANK']} on {os.environ['SLURMD_NODENAME']} ".encode() + bytes(10**6))
if os.environ["RANK"] == "1":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print("serving", flush=True)
    server.serve_forever()
time.sleep(600)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def served(stage: Stage, port: int) -> RunDir:
    """A run of two nodes, whose second rank serves `port` of its node."""
    job = {"workload": '"command"', "argv": json.dumps(["python", "-c", SERVER, str(port)])}
    text = "".join(f"{key} = {value}\n" for key, value in job.items()) + "[resources]\nnodes = 2\n"
    run = stage.submit(stage.write_job("served", text))
    stage.wait_for_state(run, "training")
    wait_until(lambda: run.attempt(0).log(1).is_file() and "serving" in stage.log(run, 1), 30, "the server to listen")
    return run


def listening(stage: Stage) -> set[int]:
    """The TCP ports that processes of `stage` listen on, here and on the login node; a sandbox's nodes are elsewhere.

    Without those of every srun, on which it talks to Slurm's daemons.
    """
    inodes = {one.inode: one.address[1] for one in tcp_sockets() if one.state == "0A"}
    folders = [os.fsencode(path) for path in (stage.runs.parent, *([stage.far.folder] if is_far(stage) else []))]
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "comm").read_text() == "srun\n" and is_slurm(stage):
                continue
            if any(folder in (process / "environ").read_bytes() for folder in folders):
                links = {str(one.readlink()) for one in (process / "fd").iterdir()}
                found |= {port for inode, port in inodes.items() if f"socket:[{inode}]" in links}
    return found


def is_slurm(stage: Stage) -> bool:
    return "sandbox" in (stage.settings if is_far(stage) else stage.cluster)


def is_far(stage: Stage) -> TypeGuard[FarStage]:
    return isinstance(stage, FarStage)


@contextmanager
def tunnel(stage: Stage, run: RunDir, ports: str) -> Iterator[subprocess.Popen[str]]:
    process = stage.begin("tunnel", run.id, ports, "--rank", "1", "--cluster", stage.cluster)
    assert process.stdout
    address = process.stdout.readline()
    assert address == f"127.0.0.1:{ports.rpartition(':')[2]}\n", process.communicate()
    yield process


def asked(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
        text: bytes = answer.read()
    assert len(text) > 10**6
    return text.rstrip(b"\0").decode()


def steps_of_tunnels() -> list[str]:
    """The processes of the connecting ends."""
    found = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [one.decode(errors="replace") for one in found if b"clusterctl tunnel 1" in one]


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.long) for kind in ("emulator", "sandbox")])
def far_stage(request: pytest.FixtureRequest, far_shared: Path, tmp_path: Path) -> Iterator[FarStage]:
    """A login node reached over ssh, with one of the two back ends."""
    variables = {}
    if request.param == "sandbox":
        sandbox = request.getfixturevalue("sandbox").environment
        variables = {name: sandbox[name] for name in ("XDG_STATE_HOME", "SLURM_CONF")}
    with made(far_shared, variables=variables) as far, staged(far, tmp_path, kind=request.param) as stage:
        yield stage


def check(stage: Stage) -> None:
    there, here = free_port(), free_port()
    run = served(stage, there)
    before = listening(stage)
    with tunnel(stage, run, f"{there}:{here}") as process:
        assert listening(stage) - before == {here}
        first = asked(here)
        assert re.fullmatch(r"rank 1 on node\d+", first.strip()), first
        assert all(asked(here) == first for _ in range(3))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, process.communicate()
    wait_until(lambda: not steps_of_tunnels(), 60, "the step to end with its tunnel")
    assert stage.status(run)["stage"] == "training"  # not disturbed
    with tunnel(stage, run, f"{there}:{here}") as process:
        assert asked(here) == first
        assert stage.call("cancel", run.id, "--cluster", stage.cluster).returncode == 0
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, "the tunnel ended: " in errors) == (0, True), errors
    assert here not in listening(stage)


@pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)
def test_a_port_of_a_node_is_reached_until_ctrl_c_or_the_end_of_the_run(stage: Stage) -> None:
    check(stage)


def test_the_same_over_ssh_without_a_port_on_the_login_node(far_stage: FarStage) -> None:
    check(far_stage)

"""The configuration files of the sandbox's daemons, made from the templates in `cluster/sandbox/`."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import socket
import stat
import time
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from clusterctl.config.places import shipped_folder
from clusterctl.errors import UsageError
from clusterctl.runs.files import write_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.sandbox.description import Sandbox

CPUS_PER_NODE = 16  # nominal: Slurm may overcommit this machine
MEGABYTES_PER_NODE = 64_000
_JOB_NUMBERS = 60_000_000  # Slurm's maximum is 67 million
_GPU_MAJOR = 240  # a device number reserved for local use: there is no driver behind these device nodes


def write_files(sandbox: Sandbox) -> None:
    """Write everything to the sandbox's folder, including device nodes and munge's key."""
    for name in ("etc", "run", "log", "spool", "state", "dev"):
        (sandbox.path / name).mkdir(mode=0o700)
    etc, values = sandbox.path / "etc", _values(sandbox)
    names = ["slurm.conf"]
    names += ["slurmdbd.conf", "my.cnf"] if sandbox.request.accounting else []
    names += ["cgroup.conf"] if sandbox.request.cgroups else []
    templates = shipped_folder() / "cluster" / "sandbox"
    nodes = [f"{sandbox.address_of(node)} {node}" for node in sandbox.names]
    texts = {name: Template((templates / name).read_text(encoding="utf-8")).substitute(values) for name in names}
    texts |= {
        "gres.conf": "\n".join(["AutoDetect=off", *_gres_lines(sandbox), ""]),
        "plugstack.conf": "",
        "hosts": "\n".join(["127.0.0.1 localhost", f"{sandbox.address} {socket.gethostname()}", *nodes, ""]),
        "nsswitch.conf": _files_alone(Path("/etc/nsswitch.conf")),
        "munge.key": secrets.token_hex(64),
    }
    for name, text in texts.items():
        write_text(etc / name, text)  # readable only by its owner, as munged and slurmdbd require


def machine_gpus() -> list[Path]:
    return sorted(Path("/dev").glob("nvidia[0-9]*"), key=lambda path: int(path.name[6:]))


def _values(sandbox: Sandbox) -> dict[str, str | int]:
    host, contained = socket.gethostname().partition(".")[0], sandbox.request.cgroups
    return {
        "folder": sandbox.folder,
        "user": pwd.getpwuid(os.geteuid()).pw_name,
        "controller": f"{host}({sandbox.address})" if sandbox.namespaces else "localhost",
        "address": sandbox.address,
        "first_job": int(time.time()) % _JOB_NUMBERS + 1,
        "slurmctld_port": sandbox.port_of("slurmctld"),
        "slurmdbd_port": sandbox.port_of("slurmdbd"),
        "kill_wait": sandbox.request.kill_wait,
        "proctrack": "cgroup" if contained else "linuxproc",
        "task": "cgroup" if contained else "none",
        "gather": "cgroup" if contained else "linux",
        "accounting": "\n".join(_accounting_lines(sandbox)),
        "node_lines": "\n".join(_node_lines(sandbox)),
    }


def _accounting_lines(sandbox: Sandbox) -> Iterator[str]:
    if sandbox.request.accounting:
        yield "AccountingStorageType=accounting_storage/slurmdbd"
        yield f"AccountingStorageHost={sandbox.address}"
        yield f"AccountingStoragePort={sandbox.port_of('slurmdbd')}"
        yield f"AccountingStoragePass={sandbox.munge_socket}"  # or slurmctld asks the munge of this host
        yield "AccountingStorageTRES=gres/gpu"
        yield "AccountingStoreFlags=job_comment,job_script,job_env"


def _node_lines(sandbox: Sandbox) -> Iterator[str]:
    gpus = f" Gres=gpu:{sandbox.request.gpus_per_node}" if sandbox.request.gpus_per_node else ""
    for node in sandbox.names:
        host = "" if sandbox.namespaces else " NodeHostname=localhost"
        yield (
            f"NodeName={node}{host} NodeAddr={sandbox.address_of(node)} Port={sandbox.port_of(node)}"
            f" CPUs={CPUS_PER_NODE} RealMemory={MEGABYTES_PER_NODE}{gpus}"
        )


def _gres_lines(sandbox: Sandbox) -> Iterator[str]:
    """This machine's GPUs, each assigned to one node; additional device nodes are created if there are too few."""
    count = sandbox.request.gpus_per_node
    kind = f" Type={count.type}" if count.type else ""
    real = machine_gpus()
    if len(real) < count * sandbox.request.nodes:
        real = []
    for position, node in enumerate(sandbox.names):
        devices = real[position * count : (position + 1) * count] or [_make_gpu(sandbox, n) for n in range(count)]
        for device in devices:
            yield f"NodeName={node} Name=gpu{kind} File={device}"


def _make_gpu(sandbox: Sandbox, number: int) -> Path:
    device = sandbox.path / "dev" / f"gpu{number}"
    try:
        if not device.exists():
            os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(_GPU_MAJOR, number))
    except PermissionError as error:
        raise UsageError("only root can create device nodes for GPUs", "omit --gpus-per-node") from error
    return device


def _files_alone(nsswitch: Path) -> str:
    """This host's name service switch without DNS for host names: a node cannot reach a name server."""
    text = nsswitch.read_text(encoding="utf-8") if nsswitch.exists() else ""
    return re.sub(r"(?m)^hosts:.*\n?", "", text) + "hosts: files\n"

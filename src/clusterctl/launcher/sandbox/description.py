"""Describes a sandbox: its settings, its files, and its addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.launcher.config.places import state_folder
from clusterctl.shared.errors import SlurmError, UsageError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.spec import from_record, to_record
from clusterctl.shared.spec.records import InvalidRecord
from clusterctl.shared.spec.values import NO_GPUS, GpuCount

LONGEST_FOLDER = 64  # a Unix socket's path is limited to 107 bytes, and slurmstepd adds up to 42


@dataclass(frozen=True, kw_only=True)
class SandboxRequest:
    """The options of `clusterctl sandbox up`."""

    nodes: int = 4
    gpus_per_node: GpuCount = NO_GPUS
    accounting: bool = False
    cgroups: bool = False
    kill_wait: int = 30  # seconds between TERM and KILL


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """One sandbox. Its nodes are called node1, node2 ..."""

    folder: str
    boot_id: str  # of the running kernel: a reboot ends the sandbox
    request: SandboxRequest = field(default_factory=SandboxRequest)
    namespaces: bool = True  # each node has its own; otherwise all are this host, on different ports
    network: str = "127.0.0"  # the first three numbers of every address
    ports: tuple[int, ...] = ()  # of slurmctld, slurmdbd, and the nodes

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def slurm_conf(self) -> Path:
        return self.path / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.path / "run" / "munge.socket"

    @property
    def names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.request.nodes + 1)]

    @property
    def address(self) -> str:
        """The address of this host on the nodes' network."""
        return f"{self.network}.254" if self.namespaces else "127.0.0.1"

    def address_of(self, node: str) -> str:
        return f"{self.network}.{self.names.index(node) + 1}" if self.namespaces else "127.0.0.1"

    def port_of(self, part: str) -> int:
        return self.ports[["slurmctld", "slurmdbd", *self.names].index(part)]

    def log(self, part: str) -> Path:
        return self.path / "log" / f"{part}.log"

    def save(self) -> None:
        write_json(self.path / "sandbox.json", to_record(self))


def sandbox_folder() -> Path:
    """The folder of this user's sandbox. Raises UsageError for a path not usable in slurm.conf or for sockets."""
    folder = state_folder() / "sandbox"
    hint = "set XDG_STATE_HOME to another folder on a local disk"
    if len(str(folder)) > LONGEST_FOLDER:
        raise UsageError(f"the state folder's path is too long for Slurm's sockets: {folder}", hint)
    if not re.fullmatch(r"[A-Za-z0-9/._+@-]+", str(folder)):
        raise UsageError(f"the state folder's path is not usable in slurm.conf: {folder}", hint)
    return folder


def current(folder: Path) -> Sandbox | None:
    """The sandbox that was set up in `folder` since boot, whether or not it is still running."""
    try:
        sandbox = from_record(Sandbox, read_json(folder / "sandbox.json") or {})
    except InvalidRecord:  # missing, or of another version
        return None
    return sandbox if sandbox.boot_id == boot_id() else None


def commands() -> Path:
    """The SLURM_CONF that makes the Slurm commands on PATH use the sandbox. Raises SlurmError if none is running."""
    sandbox = current(sandbox_folder())
    if sandbox is None:
        raise SlurmError("no sandbox is running", "clusterctl sandbox up")
    return sandbox.slurm_conf


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

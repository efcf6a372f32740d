"""Starts and stops the sandbox, reports its status, and writes the configuration of its daemons."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from clusterctl.launcher.config.places import shipped_folder
from clusterctl.launcher.sandbox import marked_processes, nodes
from clusterctl.launcher.sandbox.description import Sandbox, SandboxRequest, boot_id, current
from clusterctl.shared.errors import SlurmError, UsageError
from clusterctl.shared.record.files import write_text
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator


# Command -> the package in Debian and Ubuntu that contains it.
_ALWAYS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client"}
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "mariadb-install-db": "mariadb-server"}
_NAMESPACES = {"ip": "iproute2", "unshare": "util-linux", "mount": "mount"}
_CGROUPS = Path("/sys/fs/cgroup")  # version 1: Slurm 22.05's plugin does not support version 2 here
_CONTROLLERS = ("cpuacct", "devices", "freezer", "memory")


@dataclass(frozen=True, kw_only=True)
class SandboxStatus:
    """The running parts of a sandbox. `nodes` has Slurm's state of each; empty if Slurm does not answer."""

    sandbox: Sandbox | None
    missing: tuple[str, ...] = ()  # daemons that should be running but are not
    nodes: dict[str, str]


def up(folder: Path, request: SandboxRequest, *, namespaces: bool | None = None) -> tuple[Sandbox, bool]:
    """Start the sandbox in `folder`, or the nodes of a running one that are off; also returns whether it is new.

    A sandbox with missing daemons is removed first. `namespaces`: whether each node gets its own; the default is yes if
    this user can create them. Raises SlurmError if a package is missing or a daemon does not start.
    """
    check_packages(request)
    if request.cgroups:
        check_cgroups()
    with _alone(folder):
        found = current(folder)
        if found and not _missing(found):
            _switch_on(found)
            return found, False
        _remove(folder)
        make_private(folder)
        if namespaces is None:
            namespaces = nodes.namespaces_allowed()
        sandbox = Sandbox(
            folder=str(folder),
            boot_id=boot_id(),
            request=request,
            namespaces=namespaces,
            network=nodes.free_network(folder) if namespaces else "127.0.0",
            ports=nodes.free_ports(2 + request.nodes),
        )
        try:
            write_files(sandbox)
            _start(sandbox)
        except BaseException:
            _stop(folder)  # keeps the logs, to analyse the error
            raise
        sandbox.save()
        return sandbox, True


def down(folder: Path) -> bool:
    """Stop everything of the sandbox in `folder` and remove its files; returns whether there was anything."""
    with _alone(folder):
        return _remove(folder)


def status(folder: Path) -> SandboxStatus:
    sandbox = current(folder)
    if sandbox is None:
        return SandboxStatus(sandbox=None, nodes={})
    return SandboxStatus(sandbox=sandbox, missing=tuple(_missing(sandbox)), nodes=nodes.states(sandbox))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Allow one `up` or `down` at a time. The lock ends with the process that holds it."""
    make_private(folder.parent)
    with folder.with_name("sandbox.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_packages(request: SandboxRequest, path: str = marked_processes.PATH) -> None:
    """Raise one SlurmError that names all missing packages."""
    needed = _ALWAYS | (_ACCOUNTING if request.accounting else {}) | (_NAMESPACES if os.geteuid() == 0 else {})
    missing = {command: package for command, package in needed.items() if shutil.which(command, path=path) is None}
    if missing:
        raise SlurmError(
            f"not installed here: {', '.join(missing)}",
            f"apt-get install -y --no-install-recommends {' '.join(dict.fromkeys(missing.values()))}",
        )


def check_cgroups() -> None:
    missing = [name for name in _CONTROLLERS if not (_CGROUPS / name / "cgroup.procs").exists()]
    if missing:
        raise UsageError(f"cgroups v1 not available: {', '.join(missing)}", "omit `cgroups=`")


def _start(sandbox: Sandbox) -> None:
    if sandbox.namespaces:
        nodes.lay_network(sandbox)
    # Slurm's authentication daemon, with the sandbox's own key. --force accepts a socket in a private folder.
    argv = ["munged", "--foreground", "--num-threads=10", "--force"]
    argv += [f"--key-file={sandbox.path}/etc/munge.key", f"--socket={sandbox.munge_socket}"]
    argv += [f"--pid-file={sandbox.path}/run/munged.pid", f"--seed-file={sandbox.path}/run/munged.seed"]
    marked_processes.serve(sandbox.path, "munged", argv, sandbox.log("munged"), str(sandbox.munge_socket))
    if sandbox.request.accounting:  # with an empty database; slurmctld expects its cluster to be registered
        defaults = f"--defaults-file={sandbox.path}/etc/my.cnf"
        (sandbox.path / "mysql").mkdir(mode=0o700)
        _call(sandbox, "mariadb-install-db", defaults, "--auth-root-authentication-method=socket", "--skip-test-db")
        database = str(sandbox.path / "run" / "mysql.socket")  # set by a variable: slurmdbd.conf has no option for it
        marked_processes.serve(sandbox.path, "mariadbd", ["mariadbd", defaults], sandbox.log("mariadbd"), database)
        address = (sandbox.address, sandbox.port_of("slurmdbd"))
        argv, log = ["slurmdbd", "-D"], sandbox.log("slurmdbd")
        marked_processes.serve(sandbox.path, "slurmdbd", argv, log, address, MYSQL_UNIX_PORT=database)
        user = pwd.getpwuid(os.geteuid()).pw_name
        for words in ("cluster sandbox", "account main cluster=sandbox", f"user {user} account=main cluster=sandbox"):
            _call(sandbox, "sacctmgr", "--immediate", "--quiet", "add", *words.split())
    address = (sandbox.address, sandbox.port_of("slurmctld"))
    marked_processes.serve(sandbox.path, "slurmctld", ["slurmctld", "-D"], sandbox.log("slurmctld"), address)
    _switch_on(sandbox)


def _switch_on(sandbox: Sandbox) -> None:
    """Start the nodes that are off, and wait only for them, since others may be cut off."""
    nodes.wait_for(sandbox, nodes.switch_on(sandbox, *sandbox.names))


def _call(sandbox: Sandbox, *argv: str) -> None:
    environment = marked_processes.environment(sandbox.path, argv[0])
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise SlurmError(f"{argv[0]}: {(done.stderr or done.stdout).strip()}")


def _missing(sandbox: Sandbox) -> list[str]:
    """The daemons that should be running but are not. Nodes may be off."""
    expected = ["munged", "slurmctld"]
    expected += ["switch"] if sandbox.namespaces else []
    expected += ["mariadbd", "slurmdbd"] if sandbox.request.accounting else []
    # A daemon's children carry its mark too; the switch is a sleeping process.
    alive = {each.part for each in marked_processes.find(sandbox.path) if each.command in (each.part, "sleep")}
    return [part for part in expected if part not in alive]


def _remove(folder: Path) -> bool:
    found = _stop(folder) or folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _stop(folder: Path) -> bool:
    """Stop all running processes, including those started meanwhile."""
    found = False
    while alive := marked_processes.find(folder):
        found = True
        marked_processes.end(alive)
    nodes.remove_network(folder)
    if (folder / "etc" / "cgroup.conf").exists():
        # slurmd leaves empty groups behind: remove the inner ones first.
        tops = [top for one in (folder / "spool").iterdir() for top in _CGROUPS.glob(f"*/slurm_{one.name}")]
        for top in tops:
            for group in sorted([*(path for path in top.rglob("*") if path.is_dir()), top], reverse=True):
                with suppress(OSError):
                    group.rmdir()
    return found


# The configuration files of the sandbox's daemons, made from the templates in `cluster/sandbox/`.


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


def _files_alone(nsswitch: Path) -> str:
    """This host's name service switch without DNS for host names: a node cannot reach a name server."""
    text = nsswitch.read_text(encoding="utf-8") if nsswitch.exists() else ""
    return re.sub(r"(?m)^hosts:.*\n?", "", text) + "hosts: files\n"


def machine_gpus() -> list[Path]:
    return sorted(Path("/dev").glob("nvidia[0-9]*"), key=lambda path: int(path.name[6:]))


def _values(sandbox: Sandbox) -> dict[str, str | int]:
    host, contained = socket.gethostname().partition(".")[0], sandbox.request.cgroups
    gpus = f" Gres=gpu:{sandbox.request.gpus_per_node}" if sandbox.request.gpus_per_node else ""
    on_host = "" if sandbox.namespaces else " NodeHostname=localhost"
    nodes = [
        f"NodeName={name}{on_host} NodeAddr={sandbox.address_of(name)} Port={sandbox.port_of(name)}"
        f" CPUs={CPUS_PER_NODE} RealMemory={MEGABYTES_PER_NODE}{gpus}"
        for name in sandbox.names
    ]
    accounting = [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={sandbox.address}",
        f"AccountingStoragePort={sandbox.port_of('slurmdbd')}",
        f"AccountingStoragePass={sandbox.munge_socket}",  # or slurmctld asks the munge of this host
        "AccountingStorageTRES=gres/gpu",
        "AccountingStoreFlags=job_comment,job_script,job_env",
    ]
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
        "accounting": "\n".join(accounting if sandbox.request.accounting else ()),
        "node_lines": "\n".join(nodes),
    }


def _gres_lines(sandbox: Sandbox) -> Iterator[str]:
    """This machine's GPUs, each assigned to one node; device nodes for all nodes are created if there are too few."""
    count = sandbox.request.gpus_per_node
    kind = f" Type={count.type}" if count.type else ""
    real, made = machine_gpus(), list[Path]()
    if len(real) < count * sandbox.request.nodes:
        real, made = [], [sandbox.path / "dev" / f"gpu{number}" for number in range(count)]
        try:
            for number, device in enumerate(made):
                os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(_GPU_MAJOR, number))
        except PermissionError as error:
            raise UsageError("only root can create device nodes for GPUs", "omit `gpus_per_node=`") from error
    for position, name in enumerate(sandbox.names):
        for device in real[position * count : (position + 1) * count] or made:
            yield f"NodeName={name} Name=gpu{kind} File={device}"

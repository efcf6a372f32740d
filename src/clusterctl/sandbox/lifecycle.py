"""Up, down, and what is there in between."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.runs.files import make_private
from clusterctl.sandbox import network, node, processes
from clusterctl.sandbox.accounting import start_accounting
from clusterctl.sandbox.cgroups import check_cgroups, remove_cgroups
from clusterctl.sandbox.packages import check_packages
from clusterctl.sandbox.record import Request, Sandbox, boot_id, current
from clusterctl.sandbox.slurm_files import write_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Status:
    """What of a sandbox lives. `nodes` has Slurm's word for the state of each, nothing when Slurm does not answer."""

    sandbox: Sandbox | None
    missing: tuple[str, ...] = ()  # daemons that should run and do not
    nodes: dict[str, str]


def up(folder: Path, request: Request, *, namespaces: bool | None = None) -> tuple[Sandbox, bool]:
    """The sandbox in `folder`, and whether it was started just now; nodes that are off in one that is up are started.

    One that is half dead is cleaned away first. `namespaces` says whether each node gets its own; default: where this
    user may make them. Raises SlurmError when a package is missing or a daemon does not start.
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
        sandbox = _designed(folder, request, namespaces)
        try:
            write_files(sandbox)
            _start(sandbox)
        except BaseException:
            _stop(folder)  # the logs stay, for whoever reads the error
            raise
        sandbox.save()
        return sandbox, True


def down(folder: Path) -> bool:
    """End everything that the sandbox in `folder` started, remove its files, and say whether there was anything."""
    with _alone(folder):
        return _remove(folder)


def status(folder: Path) -> Status:
    sandbox = current(folder)
    if sandbox is None:
        return Status(sandbox=None, nodes={})
    return Status(sandbox=sandbox, missing=tuple(_missing(sandbox)), nodes=node.states(sandbox))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One `up` or `down` at a time. The lock ends with the process that holds it."""
    make_private(folder.parent)
    with folder.with_name("sandbox.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _designed(folder: Path, request: Request, namespaces: bool | None) -> Sandbox:
    if namespaces is None:
        namespaces = network.namespaces_allowed()
    return Sandbox(
        folder=str(folder),
        boot_id=boot_id(),
        request=request,
        namespaces=namespaces,
        network=network.free_network(folder) if namespaces else "127.0.0",
        ports=network.free_ports(2 + request.nodes),
    )


def _start(sandbox: Sandbox) -> None:
    if sandbox.namespaces:
        network.lay_network(sandbox)
    _start_munged(sandbox)
    if sandbox.request.accounting:
        start_accounting(sandbox)
    address = (sandbox.address, sandbox.port_of("slurmctld"))
    processes.serve(sandbox.path, "slurmctld", ["slurmctld", "-D"], sandbox.log("slurmctld"), address)
    _switch_on(sandbox)


def _switch_on(sandbox: Sandbox) -> None:
    """Start the nodes that are off, and wait for them alone: another one may be cut off."""
    node.wait_for(sandbox, [name for name in sandbox.names if node.switch_on(sandbox, name)])


def _start_munged(sandbox: Sandbox) -> None:
    """Slurm's proof of who asks, with a key of the sandbox's own."""
    paths = {
        "key-file": sandbox.path / "etc" / "munge.key",
        "socket": sandbox.munge_socket,
        "pid-file": sandbox.path / "run" / "munged.pid",
        "seed-file": sandbox.path / "run" / "munged.seed",
    }
    argv = ["munged", "--foreground", "--num-threads=10"]
    argv += ["--force"]  # it would rather that every user could reach its socket
    argv += [f"--{name}={path}" for name, path in paths.items()]
    processes.serve(sandbox.path, "munged", argv, sandbox.log("munged"), str(sandbox.munge_socket))


def _missing(sandbox: Sandbox) -> list[str]:
    """The daemons without which the sandbox is no cluster, and do not run. A node may be off."""
    expected = ["munged", "slurmctld"]
    expected += ["switch"] if sandbox.namespaces else []
    expected += ["mariadbd", "slurmdbd"] if sandbox.request.accounting else []
    # A daemon's children carry its mark too; the switch is a process that sleeps.
    alive = {process.part for process in processes.find(sandbox.path) if process.command in (process.part, "sleep")}
    return [part for part in expected if part not in alive]


def _remove(folder: Path) -> bool:
    found = _stop(folder) or folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _stop(folder: Path) -> bool:
    """End what lives, and what that started meanwhile."""
    found = False
    while alive := processes.find(folder):
        found = True
        processes.end(alive)
    network.remove_network(folder)
    if (folder / "etc" / "cgroup.conf").exists():
        remove_cgroups(path.name for path in (folder / "spool").iterdir())
    return found

"""The processes of a sandbox: started with a mark in their environment and found by it in /proc.

A list of process IDs would miss processes started just before a crash, and would be wrong after a reboot.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.errors import SlurmError
from clusterctl.shared.node.processes import carriers, stat_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MARK = "CLUSTERCTL_SANDBOX"  # =<folder>
PART = "CLUSTERCTL_SANDBOX_PART"
START_SECONDS = 30
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class Process(NamedTuple):
    """A live process, identified by its ID and its start time in ticks since boot."""

    pid: int
    started: int
    part: str
    command: str

    def alive(self) -> bool:
        stat = stat_of(self.pid)
        return stat is not None and not stat.has_ended and stat.started == self.started


def start(
    folder: Path, part: str, argv: list[str], log: Path, *, stdin: int | None = None, **variables: str
) -> Process:
    """Start `argv` detached and marked, with its output in `log` and additional environment `variables`.

    `stdin` is a file descriptor; by default it gets no input.
    """
    program = shutil.which(argv[0], path=PATH)
    if program is None:
        raise SlurmError(f"{argv[0]} is not on PATH")
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    actions = [
        no_input if stdin is None else (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(program, argv, environment(folder, part) | variables, file_actions=actions, setsid=True)
    stat = stat_of(pid)
    return Process(pid, stat.started if stat else 0, part, argv[0])


def serve(
    folder: Path, part: str, argv: list[str], log: Path, address: str | tuple[str, int], **variables: str
) -> None:
    """Start a daemon and wait until it listens at `address`. Raises SlurmError with its last output if it exits."""
    daemon = start(folder, part, argv, log, stdin=None, **variables)

    def listens() -> bool:
        if not daemon.alive():
            raise SlurmError(f"{part} exited immediately{_last_words(log)}", f"see {log}")
        return answers(address)

    wait_until(listens, START_SECONDS, f"{part} to listen", log)


def environment(folder: Path, part: str) -> dict[str, str]:
    """A daemon's environment: the mark, and none of the caller's variables that affect Slurm."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    ours = {"PATH": PATH, "SLURM_CONF": str(folder / "etc" / "slurm.conf"), MARK: str(folder), PART: part}
    return kept | ours


def find(folder: Path) -> list[Process]:
    """All live processes of the sandbox in `folder`: those with its mark, and the tasks of its jobs."""
    slurm_conf = str(folder / "etc" / "slurm.conf")
    found = []
    for pid, variables in carriers(f"{MARK}={folder}", f"SLURM_CONF={slurm_conf}"):
        # slurmd sets its node's name only in tasks.
        part = variables.get(PART if variables.get(MARK) == str(folder) else "SLURMD_NODENAME", "")
        if part and (stat := stat_of(pid)) and not stat.has_ended:
            found.append(Process(pid, stat.started, part, stat.name))
    return found


def end(processes: Iterable[Process]) -> None:
    """Kill `processes` and wait until they have ended. No graceful exit is needed, since the files are removed too."""
    processes = [process for process in processes if process.alive()]
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    # The first process of a node ends only after all others of its node.
    wait_until(lambda: not any(process.alive() for process in processes), 10, "the sandbox's processes to end")
    for process in processes:
        with suppress(ChildProcessError):  # another clusterctl started it
            os.waitpid(process.pid, os.WNOHANG)


def wait_until(
    condition: Callable[[], object], seconds: float, what: str, log: Path | None = None, *, pause: float = 0.01
) -> None:
    """Poll `condition` every `pause` seconds. Raises SlurmError with the last line of `log` after the timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SlurmError(f"waited {seconds:.0f} s for {what}{_last_words(log)}", f"see {log}" if log else "")
        time.sleep(pause)


def answers(address: str | tuple[str, int]) -> bool:
    """Whether a process listens on a Unix socket's path, or on an address and port."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as probe:
        return probe.connect_ex(address) == 0


def _last_words(log: Path | None) -> str:
    try:
        lines = log.read_text(errors="replace").split("\n") if log else []
    except OSError:
        lines = []
    return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")

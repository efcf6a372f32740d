"""Start, signal and reap processes. Linux only."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.shared.node.processes import carriers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def spawn(
    argv: list[str], environment: Mapping[str, str], folder: str, out: int, err: int, stdin: str = os.devnull
) -> int:
    """Start a process in a session of its own, so that one signal reaches its tree; returns its pid.

    `stdin` is opened for it alone. It returns once the program runs, so that no signal can arrive too early. As under
    Slurm, /tmp replaces a folder that cannot be entered, and if the program cannot be started, the process exits with
    the errno.
    """
    started, starting = os.pipe()  # closed when the child execs or exits
    pid = os.fork()
    if pid:
        os.close(starting)
        os.read(started, 1)
        os.close(started)
        return pid
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and an exec would keep that
        os.setsid()
        os.dup2(os.open(stdin, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        try:
            os.chdir(folder)
        except OSError as error:
            _complain(f"couldn't chdir to `{folder}': {error.strerror}: going to /tmp instead")
            os.chdir("/tmp")
        os.execvpe(argv[0], argv, {**environment, "SLURM_TASK_PID": str(os.getpid())})
    except OSError as error:
        _complain(f"execve(): {argv[0]}: {error.strerror}")
        os._exit(error.errno or 1)
    finally:
        os._exit(1)


def signal_bytes(*numbers: signal.Signals) -> int:
    """A descriptor that becomes readable, and yields the signal's number, whenever one of these signals arrives."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return reader


def reaped() -> Iterator[tuple[int, int]]:
    """The children that have exited since the last call, each with its wait status."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def send_signal(group: int, number: int) -> None:
    """Signal a process group, if it still exists."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent exits: none can escape by daemonising itself."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, prctl(2)


def kill_marked(mark: str) -> None:
    """SIGKILL every process that was started with `mark` ("NAME=value") in its environment."""
    while found := carriers(mark):
        for pid, _ in found:
            with suppress(OSError):  # gone, or another user's
                os.kill(pid, signal.SIGKILL)


def _complain(message: str) -> None:
    print(f"slurmstepd: error: {message}", file=sys.stderr, flush=True)

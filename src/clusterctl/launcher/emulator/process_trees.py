"""Start and reap processes, and kill whole process trees. Linux only."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def spawn(argv: list[str], environment: Mapping[str, str], folder: str, out: int, err: int) -> int:
    """Start a process in a session of its own, so that one signal reaches its tree; returns its pid.

    It returns once the program runs, so that no signal can arrive too early. As under Slurm, /tmp replaces a folder
    that cannot be entered, and if the program cannot be started, the process exits with the errno.
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
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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


def descendants(ancestor: int, apart_from: Callable[[int], bool]) -> list[int]:
    """Every process below `ancestor`, except zombies and the whole trees of those for which `apart_from` holds."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found, unseen = [], [ancestor]
    while unseen:
        below = [pid for pid in children.get(unseen.pop(), []) if not apart_from(pid)]
        found += below
        unseen += below
    return found


def kill_marked(mark: str) -> None:
    """SIGKILL every process that was started with `mark` ("NAME=value") in its environment."""
    wanted = os.fsencode(mark)
    found = True
    while found:
        found = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # gone, or another user's
                if wanted in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    found = True


def _complain(message: str) -> None:
    print(f"slurmstepd: error: {message}", file=sys.stderr, flush=True)

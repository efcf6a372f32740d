"""A task that has its node's standby fork the rank (`standby`), and stays as the rank's deputy towards Slurm.

It passes on signals, and ends as the rank ended. If it is killed, so is its rank. A task that finds no standby, or one
that cannot fork, is the rank itself. Imports little: all tasks of a node start at once, after each killed rank.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress

NAME = "CLUSTERCTL_STANDBY"  # the variable that has the name of the job's standbys
OUT_OF_MEMORY = "clusterctl: the kernel has killed a process for lack of memory: oom_kill event"
LARGEST = 1 << 20  # bytes of a message
PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTERM,
    signal.SIGCONT,
)

_IMPORT_SECONDS = 300.0  # for the standby's imports; a rank that hangs in its own is noticed
_COME_SECONDS = 5.0  # from a task's start to that of its node's standby, whose step was started just before
_ENVIRONMENT_AT = 47  # the index of env_start after the name in /proc/PID/stat (proc(5))
_ATTEMPT = "CLUSTERCTL_ATTEMPT"
_MARKS = ("CLUSTERCTL_RUN_DIR", _ATTEMPT, "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")  # of leftovers


def hand_over() -> None:
    """Have this node's standby run the rank, and end as it ends; returns if this process must run it itself."""
    connection = _connected(os.environ.pop(NAME))
    environment = dict(os.environ)
    if connection is not None:
        _run_by(connection, environment)
    if (number := environment.get(_ATTEMPT, "0")) != "0":
        from clusterctl.shared.node.leftovers import end_earlier  # late: the standby does it otherwise

        end_earlier(int(number), environment)


def _run_by(connection: socket.socket, environment: dict[str, str]) -> None:
    """Have the standby fork the rank, and end as it ends; returns if it does not."""
    # A signal that comes between the rank's first step and the handlers here waits for them, and goes to the rank.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    try:
        # The rank ends what carries its attempt, and must not end this.
        show_environment({name: value for name, value in environment.items() if name != _ATTEMPT})
        umask = os.umask(0o077)
        os.umask(umask)
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        # What makes up this process besides its descriptors. The standby may have this folder at its own path alone: in
        # an image each process has mounts of its own.
        here = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all the rest
        made = [f"{umask} {cpus}", here, *(f"{name}={value}" for name, value in environment.items())]
        request = as_block(made)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(connection, [request], [0, 1, 2, folder])
        os.close(folder)
        connection.settimeout(_IMPORT_SECONDS)
        began = connection.recv(LARGEST)
        connection.settimeout(None)
    except OSError:  # no folder any more, too large an environment, no standby any more, or it hangs
        began = b""
    if began:
        _leave_like(*_followed(connection))
    connection.close()
    show_environment(environment)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _connected(name: str) -> socket.socket | None:
    """The standby of this user that has `name`, or None."""
    deadline = time.monotonic() + _COME_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(OSError):
            connection.connect(address(name))
            if user_of(connection) == os.geteuid():
                return connection
            deadline = 0.0
        connection.close()
        if time.monotonic() > deadline:
            return None
        time.sleep(0.02)


def _followed(connection: socket.socket) -> tuple[int, int, bool]:
    """Pass signals on to the rank until it has ended; returns its exit code, its signal, whether memory was full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in PASSED_ON:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == reader:
                    with suppress(OSError):
                        connection.send(os.read(reader, 64))
                else:
                    code, by, full = map(int, connection.recv(LARGEST).split() or (0, signal.SIGKILL, 0))
                    return code, by, bool(full)


def _leave_like(code: int, number: int, full: bool) -> None:
    if full:
        os.write(2, f"{OUT_OF_MEMORY}\n".encode())
    if number:
        import resource  # late: only for a rank that was killed

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has dumped its own
        with suppress(OSError):  # KILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(code or 128 + number if number else code)


# Both sides.


def address(name: str) -> str:
    """In the abstract namespace, which has no files; each node has its own, and so must each node of an emulator."""
    return f"\0clusterctl-{name}@{os.environ.get('SLURMD_NODENAME', '')}"


def user_of(connection: socket.socket) -> int:
    """The user at the other end: all users of a node can see an address, connect to it, and take it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # process, user, group (unix(7))
    return int.from_bytes(credentials[4:8], sys.byteorder)


def as_block(texts: list[str]) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def show_environment(variables: dict[str, str]) -> None:
    """Show `variables` as the environment of this process in /proc, and of those that it forks.

    The kernel shows the memory that the process was started with: as much is replaced as there is room for. C functions
    see variables where `os.environ` has put them, so that is set anew first. Raises OSError.
    """
    known = dict(os.environ)
    os.environ.clear()
    os.environ.update(known)
    with open("/proc/self/stat") as file:  # noqa: PTH123 - pathlib takes as long to import as all the rest
        fields = file.read().rpartition(")")[2].split()
    start, end = map(int, fields[_ENVIRONMENT_AT : _ENVIRONMENT_AT + 2])
    block, room = b"", end - start
    for name in sorted(variables, key=lambda name: name not in _MARKS):
        pair = as_block([f"{name}={variables[name]}"])
        if len(block) + len(pair) <= room:
            block += pair
    with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
        memory.seek(start)
        memory.write(block.ljust(room, b"\0"))

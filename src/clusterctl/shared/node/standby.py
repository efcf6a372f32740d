"""A process on each node that has imported what the ranks import, and becomes them: it forks one for each task.

    python -u .../clusterctl/shared/node/__main__.py RUN_DIR standby

runs in a step of its own for as long as the job. A task sends it what makes up a process (environment, descriptors,
folder, CPUs) and stays as the rank's deputy towards Slurm: it passes on signals, and ends as the rank ended. If the
task ends, so does its rank. A task that finds no standby, or one that cannot fork, is the rank itself.

A forked process does not have the threads of its parent, but has their locks. So there is no standby if imports have
started threads that last over a fork (OpenBLAS's do not), or a GPU's driver.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import re
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NAME = "CLUSTERCTL_STANDBY"  # the variable that has the name of the job's standbys
OUT_OF_MEMORY = "clusterctl: the kernel killed a process of this node's ranks: oom_kill event"

_PR_SET_PDEATHSIG = 1  # prctl(2)
_ENVIRONMENT_AT = 47  # the index of env_start after the name in /proc/PID/stat (proc(5))
_CREDENTIALS = struct.Struct("3i")  # process, user, group (unix(7))
_LARGEST = 1 << 20
_COME_SECONDS = 2.0  # from a task's start to that of its node's standby, whose step was started just before
_PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTERM,
    signal.SIGCONT,
)
_MARKS = ("CLUSTERCTL_RUN_DIR", "CLUSTERCTL_ATTEMPT", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID")


# A task's part.


def hand_over() -> None:
    """Have this node's standby run the rank, and end as it ends; returns if this process must run it itself."""
    connection = _connected(os.environ.pop(_NAME))
    if connection is None:
        return
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    request = {"environment": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "umask": _umask()}
    try:
        socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2, folder])
        began = connection.recv(_LARGEST)
    except OSError:  # too large an environment, or no standby any more
        began = b""
    finally:
        os.close(folder)
    if not began:
        connection.close()
        return
    marks = dict(os.environ)
    marks.pop("CLUSTERCTL_ATTEMPT", None)  # the rank ends what carries it
    _become(marks)
    _leave_like(_followed(connection))


def _connected(name: str) -> socket.socket | None:
    """The standby of this user that has `name`, or None."""
    deadline = time.monotonic() + _COME_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(_address(name))
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
            continue
        if _user_of(connection) == os.geteuid():
            return connection
        connection.close()
        return None


def _followed(connection: socket.socket) -> dict[str, int]:
    """Pass signals on to the rank until it has ended; returns how."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _PASSED_ON:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == reader:
                    with suppress(OSError):
                        connection.send(os.read(reader, 64))
                else:
                    end = connection.recv(_LARGEST)
                    return json.loads(end) if end else {"signal": signal.SIGKILL}  # with its standby


def _leave_like(end: Mapping[str, int]) -> NoReturn:
    if end.get("out_of_memory"):
        os.write(2, f"{OUT_OF_MEMORY}\n".encode())
    if number := end.get("signal"):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has dumped its own
        with suppress(OSError):  # KILL has no handler
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(end.get("code", 128 + end.get("signal", 0)))


# The standby's part.


class _Rank(NamedTuple):
    pid: int
    task: socket.socket


def serve(run_dir: str, users_path: Sequence[str]) -> None:
    """Import what the ranks of a run import, then fork one for each task that asks; returns in the ranks."""
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_IGN)  # the warning is for the ranks
    from clusterctl.shared.node.entry import import_workload  # late: a task's part needs little

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(_address(os.environ.pop(_NAME)))
    listener.listen(1024)
    before, path = dict(os.environ), [*sys.path]
    said = _output_of(lambda: import_workload(run_dir, users_path))
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    sys.path[:] = path
    if not _can_fork():
        raise SystemExit(0)
    gc.collect()
    gc.freeze()  # so that the ranks share these pages for as long as possible
    request = _Standby(listener).wait()
    environment = added | request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    _become(environment)
    os.umask(request["umask"])
    with suppress(OSError):  # CPUs that were taken away meanwhile
        os.sched_setaffinity(0, request["cpus"])
    if "numpy" in sys.modules:  # a new process has a random state of its own
        sys.modules["numpy"].random.seed()
    del sys.argv[2:]
    if said:
        sys.stderr.write(said)


class _Standby:
    """Forks ranks, and tells each one's task how it ended. It stays until they have ended: they end with it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._ranks: dict[int, _Rank] = {}
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe()
        self._kills = _kills_for_memory()

    def wait(self) -> dict[str, Any]:
        """Returns in each forked rank, with its task's request; the standby itself exits."""
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._reader, selectors.EVENT_READ)
        while not (self._ending and not self._ranks):
            for key, _ in self._selector.select():
                if key.fd == self._reader:
                    self._ending = self._ending or signal.SIGTERM in os.read(self._reader, 4096)
                    self._reap()
                elif key.fileobj is self._listener:
                    self._accept()
                elif (request := self._hear(key.fileobj)) is not None:  # type: ignore[arg-type]
                    return request
        os._exit(0)

    def _accept(self) -> None:
        with suppress(OSError):  # it has left already, or too many files are open
            task, _ = self._listener.accept()
            if _user_of(task) == os.geteuid():  # every user of the node can connect
                self._selector.register(task, selectors.EVENT_READ)
            else:
                task.close()

    def _hear(self, task: socket.socket) -> dict[str, Any] | None:
        """Take a task's request, in which case this returns in the new rank, or its signals, or its end."""
        message, descriptors = b"", list[int]()
        with suppress(OSError):
            message, descriptors, _, _ = socket.recv_fds(task, _LARGEST, 4)
        rank = next((rank for rank in self._ranks.values() if rank.task is task), None)
        if rank is not None:
            for number in message or [signal.SIGKILL]:
                os.kill(rank.pid, number)  # not waited for yet, so it is no other process
            if not message:
                self._selector.unregister(task)
            return None
        pid = self._fork(task) if len(descriptors) == 4 and not self._ending else None
        if pid == 0:
            self._take_over(descriptors)
            request: dict[str, Any] = json.loads(message)
            return request
        if pid is None:
            self._selector.unregister(task)
            task.close()
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _fork(self, task: socket.socket) -> int | None:
        """The process ID of the new rank, 0 in it, or None if the system allows no more processes."""
        parent, pid = os.getpid(), None
        handled = {signal.SIGCHLD, *_PASSED_ON}
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        with suppress(OSError):
            pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(128 + signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in handled:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            handled.remove(signal.SIGUSR2)  # until it can be handled, as the batch script has it
        elif pid is not None:
            self._ranks[pid] = _Rank(pid, task)
            with suppress(OSError):  # the task has been killed meanwhile, which is heard next
                task.send(b"began")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        return pid

    def _take_over(self, descriptors: list[int]) -> None:
        """In the rank: only what its task has, and none of the standby's connections."""
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        os.fchdir(descriptors[3])
        for rank in self._ranks.values():
            rank.task.close()
        for key in [*self._selector.get_map().values()]:
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        for descriptor in (*descriptors, self._reader, self._writer):
            os.close(descriptor)

    def _reap(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            rank = self._ranks.pop(pid)
            code, kills = os.waitstatus_to_exitcode(status), _kills_for_memory()
            end = {"code": code} if code >= 0 else {"signal": -code, "out_of_memory": int(kills > self._kills)}
            self._kills = kills
            with suppress(OSError):  # the task may have been killed
                rank.task.send(json.dumps(end).encode())
            with suppress(KeyError):
                self._selector.unregister(rank.task)
            rank.task.close()


def _can_fork() -> bool:
    """Whether forked processes can do without the threads that imports have started."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - the fork has ended those that end then


def _output_of(work: Callable[[], None]) -> str:
    """Run `work` and return what it has written to standard error, for example warnings."""
    kept, held = os.dup(2), os.memfd_create("standby")
    os.dup2(held, 2)
    try:
        work()
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
    text = os.pread(held, _LARGEST, 0)
    os.close(held)
    return text.decode(errors="replace")


def _kills_for_memory() -> int:
    """How many processes of this control group the kernel has killed because its memory was full; 0 if unknown."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                file = Path(f"/sys/fs/cgroup{path}/memory.events")
            elif "memory" in controllers.split(","):
                file = Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
            else:
                continue
            with suppress(OSError):
                if found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE):
                    return int(found[1])
    return 0


# Both.


def _address(name: str) -> str:
    """In the abstract namespace, which has no files; each node has its own, and so must each node of an emulator."""
    return f"\0clusterctl-{name}@{os.environ.get('SLURMD_NODENAME', '')}"


def _user_of(connection: socket.socket) -> int:
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(user)


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def _become(variables: Mapping[str, str]) -> None:
    """Show `variables` as the environment of this process in /proc, and of those that it forks.

    The kernel shows the memory that the process was started with: as much is replaced as there is room for. Python has
    read its variables from there; C functions see them where `os.environ` puts them, so that is set anew first.
    """
    known = dict(os.environ)
    os.environ.clear()
    os.environ.update(known)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[_ENVIRONMENT_AT : _ENVIRONMENT_AT + 2])
    text = b""
    for name in sorted(variables, key=lambda name: name not in _MARKS):
        pair = os.fsencode(f"{name}={variables[name]}") + b"\0"
        if len(text) + len(pair) <= end - start:
            text += pair
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))

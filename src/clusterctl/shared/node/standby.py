"""A process on each node that has imported what the ranks import, and becomes them: it forks one for each task.

    python -u .../clusterctl/shared/node/__main__.py RUN_DIR standby

runs in a step of its own for as long as the job, over the restarts in it. A task sends it what makes up a process, and
stays as the rank's `deputy`. Before it forks the first rank of an attempt, it ends what earlier ones have left.

A forked process does not have the threads of its parent, but has their locks. So there is no standby if imports have
started threads that last over a fork (OpenBLAS's do not), or a GPU's driver.
"""

from __future__ import annotations

import gc
import os
import re
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.node.deputy import LARGEST, NAME, PASSED_ON, address, show_environment, user_of
from clusterctl.shared.node.entry import import_workload
from clusterctl.shared.node.leftovers import end_earlier
from clusterctl.shared.node.processes import tied_to_this

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DRIVERS = ("/dev/nvidia", "/dev/kfd")  # a driver that is in use cannot be used after a fork


class _Request(NamedTuple):
    umask: int
    cpus: list[int]
    folder: str
    environment: dict[str, str]

    @classmethod
    def of(cls, message: bytes) -> _Request:
        """What `deputy` has sent."""
        first, folder, *pairs = os.fsdecode(message).split("\0")[:-1]
        umask, cpus = first.split()
        environment = dict(pair.partition("=")[::2] for pair in pairs)
        return cls(int(umask), list(map(int, cpus.split(","))), folder, environment)

    def fits(self, folder: int) -> bool:
        """Whether a fork has the task's CPUs, and its working directory, open as `folder`, at the same path."""
        with suppress(OSError):
            found = Path(self.folder).stat()
            return os.sched_getaffinity(0).issuperset(self.cpus) and os.path.samestat(found, os.fstat(folder))
        return False


def serve(run_dir: str, users_path: Sequence[str]) -> None:
    """Import what the ranks of a run import, then fork one for each task that asks; returns in the ranks."""
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)  # the warning is for the ranks
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address(os.environ.pop(NAME)))
    listener.listen(1024)
    before, path = dict(os.environ), [*sys.path]
    warnings = _stderr_of(lambda: import_workload(run_dir, users_path))
    # A rank that imports for itself has the variables that the imports set, too, and adds the user's folders later.
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    sys.path[:] = path
    if not _can_fork():
        raise SystemExit(0)
    gc.freeze()  # so that the ranks share these pages for as long as possible
    request = _Standby(listener).wait()
    os.environ.clear()
    os.environ.update(added | request.environment)
    show_environment(request.environment)
    os.umask(request.umask)
    with suppress(OSError):  # CPUs that were taken away meanwhile
        os.sched_setaffinity(0, request.cpus)
    if "numpy" in sys.modules:  # a new process has a random state of its own
        sys.modules["numpy"].random.seed()
    del sys.argv[2:]  # the word that made this process a standby, which a user's code must not see
    if warnings:
        sys.stderr.write(warnings)


class _Standby:
    """Forks ranks, and tells each one's task how it ended. It stays until they have ended: they end with it."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._ranks: dict[int, socket.socket] = {}  # process ID -> the connection to its task
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe()
        self._kills = _kills_for_memory()
        self._attempt = "0"

    def wait(self) -> _Request:
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
            if user_of(task) == os.geteuid():  # every user of the node can connect
                self._selector.register(task, selectors.EVENT_READ)
            else:
                task.close()

    def _hear(self, task: socket.socket) -> _Request | None:
        """Take a task's request, in which case this returns in the new rank, or its signals, or its end."""
        message, descriptors = b"", list[int]()
        with suppress(OSError):
            message, descriptors, _, _ = socket.recv_fds(task, LARGEST, 4)
        rank = next((pid for pid, connection in self._ranks.items() if connection is task), None)
        if rank is not None:
            for number in message or [signal.SIGKILL]:
                os.kill(rank, number)  # not waited for yet, so it is no other process
            if not message:
                self._forget(task)
            return None
        pid = None
        if len(descriptors) == 4 and not self._ending:
            request = _Request.of(message)
            if request.fits(descriptors[3]):
                self._end_earlier(request.environment)
                if (pid := self._fork(task)) == 0:
                    self._take_over(descriptors, request.folder)
                    return request
        if pid is None:
            self._forget(task)
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _forget(self, task: socket.socket) -> None:
        with suppress(KeyError, ValueError):  # it has been forgotten a moment ago
            self._selector.unregister(task)
        task.close()

    def _end_earlier(self, environment: dict[str, str]) -> None:
        if (number := environment.get("CLUSTERCTL_ATTEMPT", "0")) != self._attempt:
            self._attempt, self._kills = number, _kills_for_memory()
            with suppress(OSError):
                end_earlier(int(number), environment)

    def _fork(self, task: socket.socket) -> int | None:
        """The process ID of the new rank, 0 in it, or None if the system allows no more processes."""
        pid, die_with_parent = None, tied_to_this()
        handled = {signal.SIGCHLD, *PASSED_ON}
        signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        with suppress(OSError):
            pid = os.fork()
        if pid == 0:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            for number in handled:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            handled.remove(signal.SIGUSR2)  # until it can be handled, as the batch script has it
            with suppress(OSError):  # the task has been killed meanwhile, which the standby hears next
                task.send(b"began")  # from here, lest a task whose standby is killed now runs a rank that has begun
        elif pid is not None:
            self._ranks[pid] = task
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        return pid

    def _take_over(self, descriptors: list[int], folder: str) -> None:
        """In the rank: only what its task has, and none of the standby's connections."""
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        os.chdir(folder)
        for task in self._ranks.values():
            task.close()
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
            task = self._ranks.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            full = code != 0 and _kills_for_memory() > self._kills  # of this rank, or of another process of the attempt
            with suppress(OSError):  # the task may have been killed
                task.send(f"{max(code, 0)} {max(-code, 0)} {int(full)}".encode())
            self._forget(task)


def _can_fork() -> bool:
    """Whether forked processes can do without the threads that imports have started, and with the devices in use."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # the listing's own
            if os.readlink(f"/proc/self/fd/{name}").startswith(_DRIVERS):  # noqa: PTH115
                return False
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - the fork has ended those that end then


def _stderr_of(work: Callable[[], None]) -> str:
    """Run `work` and return what it has written to standard error, for example warnings."""
    kept, held = os.dup(2), os.memfd_create("standby")
    os.dup2(held, 2)
    try:
        work()
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
    text = os.pread(held, LARGEST, 0)
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

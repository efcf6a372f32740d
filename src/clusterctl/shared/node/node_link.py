"""A rank's connection to the writer of its node (`node_writer`): a Unix socket with an abstract name.

Such a name is not a file: nothing is left behind, and containers that share the node's network can use it. It is
derived from the attempt's secret, and both ends ask the kernel for the user of the other process.

A message is one JSON object with a `kind`:

    from a rank    hello    rank, local_rank, world_size, watchdog, role: "task", or "program" started by a task
                   beat     beat: its heartbeat
                   record   record: one of its events; number; urgent: write it immediately
                   sample   sample: of its node; node
    from the writer    written  number: the records up to this one are on disk
                       alarm    name: "hang" or "report"; asked: whether this process must send its stacks
                       leave    the attempt ends
                       newer    number: a newer attempt of the run has started
                       gpus     gpus: of the newest sample
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.shared.errors import TaskError, reason
from clusterctl.shared.record import secret
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import parse_record
from clusterctl.shared.record.heartbeats import as_record
from clusterctl.shared.record.interpreter import isolated

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.shared.record.heartbeats import Beat
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place

LONGEST_MESSAGE = 1 << 18  # the kernel's default maximum
_WRITTEN_SECONDS = 2.0  # how long a rank waits for the writer to write its urgent records
_START_SECONDS = 3.0  # how long a new writer may take until it listens
_TURN_SECONDS = 0.5  # the ranks of a node wait at these intervals, so that not all of them start a writer
_LONGEST_TURN_SECONDS = 4.0
_AGAIN_SECONDS = 5.0
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
# Like `python -m`, but from the same copy of the code.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from clusterctl.shared.node.node_writer import main; main()"
)
_IGNORED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # Slurm sends these to tasks

_OF_A_TASK = ("SLURM_PROCID", "SLURM_LOCALID")  # these identify a rank's processes


def address(attempt: Attempt, node: int) -> bytes:
    """The address of a node's writer. Raises TaskError without the attempt's secret."""
    return b"\0clusterctl-" + secret.sign(secret.read(attempt), "node writer", str(node).encode()).encode()


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process ID and user ID of the other end."""
    pid, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, user


def post(connection: socket.socket, message: dict[str, Any], *descriptors: int) -> None:
    """Send one message or raise OSError; never waits for a slow reader."""
    content = json.dumps(message).encode()
    socket.send_fds(connection, [content], descriptors, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class NodeLink:
    """The connection of one process. `left` gets undelivered records; `handlers` process the writer's messages."""

    def __init__(self, attempt: Attempt, place: Place, role: str, stacks: int | None = None) -> None:
        self.left: Callable[[list[dict[str, Any]]], None] = lambda records: None  # noqa: ARG005
        self.handlers: dict[str, Callable[[Fields], None]] = {}
        self._attempt, self._place, self._stacks = attempt, place, stacks
        self._hello: dict[str, Any] = {
            "kind": "hello",
            "rank": place.rank,
            "local_rank": place.local_rank,
            "role": role,
            "world_size": place.world_size,
        }
        self._socket: socket.socket | None = None
        self._changed = threading.Condition(threading.RLock())  # reentrant: `record` sends while it holds it
        self._unwritten: dict[int, dict[str, Any]] = {}
        self._number = 0
        self._writer: subprocess.Popen[bytes] | None = None  # if this process started it

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def open(self) -> None:
        """Connect to the writer, which the first rank of the node starts; continue without it if that fails."""
        with suppress(OSError, TaskError):
            self._connect()
        threading.Thread(target=self._listen, name="node link", daemon=True).start()

    def introduce(self, **more: Any) -> None:
        """Send the writer, and every later one, more information about this rank."""
        self._hello |= more
        self.send(self._hello)

    def beat(self, beat: Beat) -> None:
        self.send({"kind": "beat", "beat": as_record(beat)})

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; returns whether the writer will get it."""
        with self._changed:
            if self._socket is None:
                return False
            try:
                post(self._socket, message)
            except OSError:
                return False
            return True

    def record(self, record: dict[str, Any], *, urgent: bool) -> None:
        """Send an event to be written. An urgent one is on disk when this returns."""
        with self._changed:
            self._number += 1
            number = self._number
            self._unwritten[number] = record  # kept until the writer reports it, since the writer may be killed
            message = {"kind": "record", "record": record, "number": number, "urgent": urgent}
            sent = self.send(message)
            if sent and urgent:
                sent = self._changed.wait_for(lambda: number not in self._unwritten, _WRITTEN_SECONDS)
            if not sent:
                self._hand_back()

    def _hand_back(self) -> None:
        with self._changed:
            records, self._unwritten = list(self._unwritten.values()), {}
            if records:
                self.left(records)

    def _connect(self) -> None:
        """Connect. Raises OSError if there is no writer and none can be started."""
        where = address(self._attempt, self._place.node_rank)
        start_at = time.monotonic() + min(_TURN_SECONDS * self._place.local_rank, _LONGEST_TURN_SECONDS)
        deadline = start_at + _START_SECONDS
        # With slow file systems it takes longer to start, and a second writer would take even longer.
        started = self._writer is not None and self._writer.poll() is None
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(where)
                break
            except OSError:
                connection.close()
                if time.monotonic() > deadline:
                    raise
            if not started and time.monotonic() >= start_at:
                self._writer, started = _start(self._attempt, self._place), True
            time.sleep(0.01)
        if peer(connection)[1] != os.geteuid():
            connection.close()
            raise PermissionError("the writer's address belongs to another user")
        with self._changed:
            post(connection, self._hello, *([] if self._stacks is None else [self._stacks]))
            self._socket = connection

    def _listen(self) -> None:
        reported = False  # that there is no writer any more
        while True:
            while self._socket is not None:
                content = b""
                with suppress(OSError):
                    content = self._socket.recv(LONGEST_MESSAGE)
                if not content:  # the writer has ended
                    with self._changed:
                        if self._socket is not None:
                            self._socket.close()
                        self._socket = None
                        self._hello["again"] = True
                        self._hand_back()
                        self._changed.notify_all()
                elif (message := Fields(parse_record(content) or {})).text("kind") == "written":
                    with self._changed:
                        last = message.whole("number") or 0
                        left = {number: record for number, record in self._unwritten.items() if number > last}
                        self._unwritten = left
                        self._changed.notify_all()
                elif handler := self.handlers.get(message.text("kind")):
                    handler(message)
            try:
                self._connect()
                reported = False
            except (OSError, TaskError) as error:
                if not reported and "again" in self._hello:
                    reported = True
                    self.left([{"time": time.time(), "event": "writer", "error": reason(error)}])
                time.sleep(_AGAIN_SECONDS)


def _start(attempt: Attempt, place: Place) -> subprocess.Popen[bytes]:
    """Start this node's writer without inheriting this process's files (such as srun's), session and signals."""
    code = Path(__file__).parents[3]
    numbers = str(place.node_rank), str(place.nodes)
    words = isolated(sys.executable, "-c", _PROGRAM, str(code), str(attempt.path), *numbers)
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_TASK}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)  # until it ignores them
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """For the writer, which ends when the tasks do."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)

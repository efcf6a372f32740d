"""TCP connections through the input and output of a program: one end listens, the other connects on a rank's node.

Both ends send frames: a letter, a connection's number, a length, and that many bytes. The listening end is
`launcher/api/tunnel.py`. The other one is the text of this file, started with the rank's own Python in a step of the
job, so it imports only the standard library.

Neither end trusts the other: a frame that does not fit ends the tunnel. Each direction of a connection has at most
`WINDOW` bytes in transit, so a slow reader delays only its own connection, and no end stores more than that.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from typing import Self

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

GREETING = b"\0clusterctl tunnel 1\0"  # follows what a shell's start-up files may print
WINDOW = 2**18  # bytes
MOST_CONNECTIONS = 256
READY, OPEN, DATA, TAKEN, END, RESET, BYE = b"R", b"O", b"D", b"T", b"E", b"X", b"B"
_HEAD = struct.Struct(">cIH")
_COUNT = struct.Struct(">I")
_CHUNK = 2**15
_MOST_NOISE = 2**20
_CONNECT_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_JOB = re.compile(rb"(?:^|\0)SLURM_JOB_ID=([0-9]+)(?:\0|$)|/job_([0-9]+)(?:/|$)", re.MULTILINE)
_ESTABLISHED, _LISTEN = "01", "0A"  # in /proc/net/tcp, see proc(5)


class Broken(ValueError):
    """The other end sent something that its program never sends."""


class Refused(OSError):
    """A connection is not made; the message is the reason."""


class TcpSocket(NamedTuple):
    """A TCP socket on this machine, in this process's network namespace."""

    address: tuple[str, int]
    peer: tuple[str, int]
    state: str
    uid: int
    inode: str


def tcp_sockets() -> Iterator[TcpSocket]:
    """All of them, of every user. Raises OSError on a system without /proc."""
    for name in ("tcp", "tcp6"):
        if name == "tcp6" and not Path("/proc/self/net/tcp6").exists():
            continue
        for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
            _, ours, theirs, state, _, _, _, uid, _, inode, *_ = line.split()
            yield TcpSocket(_address(ours), _address(theirs), state, int(uid), inode)


def _address(text: str) -> tuple[str, int]:
    digits, port = text.split(":")
    words = (int(digits[start : start + 8], 16) for start in range(0, len(digits), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed), int(port, 16)


def uid_of_client(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user whose program connected from the local address `client` to `server`; None if it is unknown."""
    found = (one.uid for one in tcp_sockets() if (one.address, one.peer) == (client, server))
    return next(found, None)


@dataclass
class Connection:
    """One TCP connection: the task that relays it, and the counts of both directions."""

    task: asyncio.Task[None] | None = None
    allowance: int = WINDOW  # bytes that may still be sent
    more: asyncio.Event = field(default_factory=asyncio.Event)
    received: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    stored: int = 0  # bytes in `received`
    ended: bool = False  # the other end sends nothing more


class Multiplexer:
    """The connections of a tunnel, on one pair of streams."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        """`incoming` and `outgoing` are pipes of this process, which it closes."""
        self._pipes = (os.fdopen(incoming, "rb", 0), os.fdopen(outgoing, "wb", 0))
        self._reader = asyncio.StreamReader(_MOST_NOISE)
        self.connections: dict[int, Connection] = {}

    async def __aenter__(self) -> Self:
        loop, protocol = asyncio.get_running_loop(), asyncio.StreamReaderProtocol
        self._source, _ = await loop.connect_read_pipe(lambda: protocol(self._reader), self._pipes[0])
        sink, flow = await loop.connect_write_pipe(lambda: protocol(asyncio.StreamReader()), self._pipes[1])
        sink.set_write_buffer_limits(0)  # `drain` waits until all is written
        self._writer = asyncio.StreamWriter(sink, flow, None, loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._source.close()
        if not self._writer.transport.is_closing():  # the other end has not closed it
            self._writer.transport.abort()

    async def greet(self, about: bytes) -> None:
        """Send the greeting and the first frame."""
        self._writer.write(GREETING)
        await self.send(READY, 0, about)

    async def greeted(self) -> bytes:
        """The other end's first frame. Raises EOFError at the end of the stream, and Broken."""
        try:
            await self._reader.readuntil(GREETING)
        except asyncio.LimitOverrunError:
            raise Broken(f"more than {_MOST_NOISE} bytes before it started") from None
        kind, _, about = await self.receive()
        if kind != READY:
            raise Broken("no greeting")
        return about

    async def send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self._writer.write(_HEAD.pack(kind, number, len(payload)) + payload)
        await self._writer.drain()

    async def receive(self) -> tuple[bytes, int, bytes]:
        """The next frame. Raises EOFError at the end of the stream."""
        kind, number, length = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
        return kind, number, await self._reader.readexactly(length)

    def take(self, kind: bytes, number: int, payload: bytes) -> None:
        """Handle a frame of a connection, which may have ended here already. Raises Broken."""
        if kind not in (DATA, TAKEN, END, RESET) or (kind == DATA and not payload):
            raise Broken(f"an unexpected frame: {kind!r}")
        connection = self.connections.get(number)
        if connection is None:
            return
        if kind == TAKEN:
            if len(payload) != _COUNT.size:
                raise Broken("an invalid count")
            connection.allowance += _COUNT.unpack(payload)[0]
            connection.more.set()
        elif kind == RESET:
            if connection.task:
                connection.task.cancel()
        else:
            connection.stored += len(payload)
            if connection.ended or connection.stored > WINDOW:
                raise Broken("more data than allowed")
            connection.ended = kind == END
            connection.received.put_nowait(payload)
        if connection.allowance > WINDOW:
            raise Broken("an invalid count")

    def relay(self, number: int, connect: Callable[[], Awaitable[Streams]]) -> asyncio.Task[None]:
        """Relay the connection that `connect` makes until both directions have ended. Raises Broken."""
        if number in self.connections or len(self.connections) >= 2 * MOST_CONNECTIONS:
            raise Broken("too many connections")
        connection = self.connections[number] = Connection()  # at once: its first data may be the next frame
        connection.task = asyncio.create_task(self._relay(number, connection, connect))
        return connection.task

    async def _relay(self, number: int, connection: Connection, connect: Callable[[], Awaitable[Streams]]) -> None:
        writer, whole = None, False
        try:
            reader, writer = await connect()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._send_all(number, connection, reader))
                both.create_task(self._write_all(number, connection, writer))
            whole = True
        except* OSError as errors:
            first = errors.exceptions[0]
            with suppress(OSError):  # the other end is gone, too
                await self.send(RESET, number, str(first).encode()[:200] if isinstance(first, Refused) else b"")
        finally:
            del self.connections[number]
            if writer and whole:
                writer.close()
            elif writer:
                writer.transport.abort()

    def abort(self) -> None:
        """End all connections."""
        for connection in self.connections.values():
            if connection.task:
                connection.task.cancel()

    async def _send_all(self, number: int, connection: Connection, reader: asyncio.StreamReader) -> None:
        while True:
            while not connection.allowance:
                connection.more.clear()
                await connection.more.wait()
            data = await reader.read(min(_CHUNK, connection.allowance))
            if not data:
                return await self.send(END, number)
            connection.allowance -= len(data)
            await self.send(DATA, number, data)

    async def _write_all(self, number: int, connection: Connection, writer: asyncio.StreamWriter) -> None:
        while data := await connection.received.get():
            writer.write(data)
            await writer.drain()
            connection.stored -= len(data)
            await self.send(TAKEN, number, _COUNT.pack(len(data)))
        writer.write_eof()


class Port:
    """A port on this node, as long as a program of this user and of the job `job` listens on it."""

    def __init__(self, number: int, job: str) -> None:
        self.number, self.job = number, job
        self._jobs: dict[str, set[str]] = {}  # the jobs of the processes that have a socket, by its inode

    def listener(self) -> TcpSocket:
        """The socket to connect to. Raises Refused without one that is ours: others may listen on the same node."""
        found = [one for one in tcp_sockets() if one.state == _LISTEN and one.address[1] == self.number]
        ours = [one for one in found if one.uid == os.geteuid()]
        if not found:
            raise Refused(f"nothing listens on port {self.number}")
        if not ours:
            raise Refused(f"port {self.number} belongs to another user")
        # One that is connected to without leaving this node, if there is one.
        best = min(ours, key=lambda one: one.address[0] not in ("127.0.0.1", "0.0.0.0", "::1", "::"))
        if best.inode not in self._jobs:
            self._jobs[best.inode] = {*_jobs_with(best.inode)}
        jobs = self._jobs[best.inode]
        if jobs and self.job not in jobs:  # unknown if a process hides itself even from its own user
            raise Refused(f"port {self.number} belongs to another job of yours: {min(jobs)}")
        return best

    async def connect(self) -> Streams:
        """Connect to it. Raises OSError, and Refused if somebody else may have got the connection."""
        before = self.listener()
        address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(before.address[0], before.address[0])
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                streams = await asyncio.open_connection(address, self.number)
        except OSError as error:
            raise Refused(f"cannot connect to port {self.number}: {error.strerror or 'no answer'}") from None
        try:
            after = self.listener()
        except Refused:
            after = None
        if after != before:
            streams[1].transport.abort()
            raise Refused(f"another program took over port {self.number}")
        return streams


def _jobs_with(inode: str) -> Iterator[str]:
    """The Slurm jobs of those processes of this user that have the socket: by their cgroup and their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(one.readlink()) == f"socket:[{inode}]" for one in (process / "fd").iterdir()):
                text = (process / "environ").read_bytes() + b"\0\n" + (process / "cgroup").read_bytes()
                for found in _JOB.finditer(text):
                    yield (found[1] or found[2]).decode()


async def connecting_end(multiplexer: Multiplexer, port: Port, until: Awaitable[str]) -> None:
    """Connect for the listening end until that is gone, or until `until` returns why the tunnel ends."""
    try:
        problem = ""
        port.listener()
    except Refused as error:
        problem = str(error)
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    await multiplexer.greet(f"{node}\0{problem}".encode())

    async def serve() -> None:
        with suppress(EOFError, ConnectionError):
            while True:
                kind, number, payload = await multiplexer.receive()
                if kind == OPEN:
                    multiplexer.relay(number, port.connect)
                else:
                    multiplexer.take(kind, number, payload)

    serving, ending = asyncio.create_task(serve()), asyncio.ensure_future(until)
    await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
    if ending.done():
        with suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(_CONNECT_SECONDS):
                await multiplexer.send(BYE, 0, ending.result().encode())
    multiplexer.abort()
    for task in (serving, ending):
        task.cancel()
    await asyncio.gather(serving, ending, return_exceptions=True)


async def _end_of(pid: int, terminated: asyncio.Event) -> str:
    """Wait until the process ends, or its job, whose signal sets `terminated`."""
    stat = Path(f"/proc/{pid}/stat")

    def started() -> str:
        with suppress(OSError):
            return stat.read_text().rpartition(")")[2].split()[19]  # starttime
        return ""

    began = started()
    while began and started() == began:
        with suppress(TimeoutError):
            await asyncio.wait_for(terminated.wait(), _LOOK_SECONDS)
            return "its job is ending"
    return "it has ended"


async def main(pid: int, port: int) -> None:
    """Connect to `port` while the rank with this PID runs, through stdin and stdout."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    async with Multiplexer(0, os.dup(1)) as multiplexer:
        await connecting_end(multiplexer, Port(port, os.environ.get("SLURM_JOB_ID", "")), _end_of(pid, terminated))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))

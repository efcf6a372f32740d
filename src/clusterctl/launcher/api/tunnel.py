"""A port of a rank's node on this machine: connections go through a step of the run's job, and no other port is opened.

Frames travel through srun's input and output, and between two machines through the ssh session of the command. The
other end, and the frames, are in `shared/node/tunnel.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.api.nodes import beside
from clusterctl.shared.errors import HostError, SlurmError, UsageError
from clusterctl.shared.node import tunnel as ends
from clusterctl.shared.record.interpreter import isolated
from clusterctl.shared.record.roles import labels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from clusterctl.launcher.api.run import Run

_LOOPBACK = "127.0.0.1"
_PATIENCE_SECONDS = 5.0


class Ports(NamedTuple):
    """A port there, of the rank of a role if `role` is not empty, and the port of this machine that leads to it."""

    there: int
    here: int
    role: str = ""

    def label(self, rank: int) -> str:
        """The rank in words: `rank 3`, or `server r00`."""
        return labels([(self.role, rank)]) if self.role else f"rank {rank}"


def parse_ports(text: str) -> Ports:
    """`PORT`, `PORT:LOCAL`, or either after `ROLE:`. Raises UsageError."""
    role, separator, ports = text.partition(":") if text[:1].isalpha() else ("", "", text)
    there, separator, here = ports.partition(":")
    parts = (there, here if separator else there)
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:6]) <= 65535 for part in parts):
        hint = "use numbers from 1 to 65535, in a job with roles after one of them, as in server:8888"
        raise UsageError(f"not a port, or two as in 8888:9999: {text}", hint)
    return Ports(int(parts[0]), int(parts[1]), role)


def tunnel_step(run: Run, rank: int, port: int) -> tuple[list[str], Mapping[str, str]]:
    """The command line and environment of a step that connects to `port` beside `rank`. Raises what `beside` raises."""
    program = Path(ends.__file__).read_text(encoding="utf-8")
    return beside(run.directory, rank, lambda pid: isolated(f"/proc/{pid}/exe", "-c", program, str(pid), str(port)))


@dataclass
class ListeningEnd:
    """The end of a tunnel on this machine: it listens on the loopback port `local`.

    `announce` is called with the node's name, and a problem or an empty text, once connections are accepted; `warn`
    with each reason why a connection was refused, once.
    """

    local: int
    announce: Callable[[str, str], object]
    warn: Callable[[str], object]
    ended: str = ""  # why the other end ended, if it did so in good order
    _listener: socket.socket = field(init=False)
    _refused: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        """Raises UsageError if the port is taken, or closed to this user."""
        try:
            self._listener = socket.create_server((_LOOPBACK, self.local), backlog=ends.MOST_CONNECTIONS)
        except OSError as error:
            with socket.create_server((_LOOPBACK, 0)) as free:
                hint = f"another port of this machine: PORT:{free.getsockname()[1]}"
            raise UsageError(f"cannot listen on port {self.local} here: {error.strerror}", hint) from None

    def run(self, incoming: int, outgoing: int) -> None:
        """Relay connections through two pipes, which it closes, until the other end is gone. Raises HostError."""
        try:
            asyncio.run(self._run(incoming, outgoing))
        except ends.Broken as error:
            raise HostError(
                f"invalid data from the other end of the tunnel: {error}", "run the command again"
            ) from None
        finally:
            self._listener.close()

    async def _run(self, incoming: int, outgoing: int) -> None:
        async with ends.Multiplexer(incoming, outgoing) as multiplexer:
            with suppress(EOFError):
                node, _, problem = (await multiplexer.greeted()).decode(errors="replace").partition("\0")
                self.announce(node, problem)
                server = await asyncio.start_server(self._accepting(multiplexer), sock=self._listener)
                try:
                    await self._receive(multiplexer)
                finally:
                    server.close()
                    multiplexer.abort()

    def _accepting(self, multiplexer: ends.Multiplexer) -> Callable[..., Awaitable[None]]:
        numbers, free = itertools.count(1), asyncio.Semaphore(ends.MOST_CONNECTIONS)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def connected() -> ends.Streams:
                return reader, writer

            if reason := _refusal(writer):
                self._warn_once(reason)
                writer.transport.abort()
                return
            with suppress(asyncio.CancelledError):  # by the other end; Python 3.11 would log it
                async with free:
                    number = next(numbers)
                    await multiplexer.send(ends.OPEN, number)
                    await multiplexer.relay(number, connected)

        return accept

    async def _receive(self, multiplexer: ends.Multiplexer) -> None:
        while True:
            kind, number, payload = await multiplexer.receive()
            if kind == ends.BYE:
                self.ended = payload.decode(errors="replace")
                return
            if kind == ends.RESET and payload:
                self._warn_once(payload.decode(errors="replace"))
            multiplexer.take(kind, number, payload)

    def _warn_once(self, reason: str) -> None:
        if reason not in self._refused and len(self._refused) < ends.MOST_CONNECTIONS:
            self._refused.add(reason)
            self.warn(reason)

    @contextmanager
    def in_background(self) -> Iterator[tuple[int, Callable[[bytes], None]]]:
        """Run it in a thread within the block: a descriptor with what it sends, and where to put what is received."""
        output, sent = os.pipe()
        received, source = os.pipe()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                self.run(received, sent)
            except BaseException as error:  # raised again in the thread that waits
                failed.append(error)

        def put(data: bytes) -> None:
            if failed:
                raise failed[0]
            view = memoryview(data)
            with suppress(BrokenPipeError):  # it has ended, or failed
                while view:
                    view = view[os.write(source, view) :]

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield output, put
        finally:
            os.close(source)
            thread.join(_PATIENCE_SECONDS)
            os.close(output)
        if failed:
            raise failed[0]


def _refusal(writer: asyncio.StreamWriter) -> str:
    """Why a connection is refused: only programs of this user and of root may use the tunnel, where /proc shows it."""
    client, server = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
    try:
        uid = ends.uid_of_client(client, server)
    except OSError:
        return ""  # as on macOS
    if uid is None:
        return "refused a connection from an unknown user"
    return "" if uid in (0, os.geteuid()) else f"refused a connection from another user: {uid}"


def open_tunnel(end: ListeningEnd, run: Run, rank: int, port: int) -> None:
    """Relay connections of `end` to `port` beside `rank`, until the rank ends.

    Raises what `beside` raises, and SlurmError if the step ended before the rank.
    """
    argv, environment = tunnel_step(run, rank, port)
    theirs, outgoing = os.pipe()
    incoming, output = os.pipe()
    try:
        process = subprocess.Popen(argv, stdin=theirs, stdout=output, env=environment, start_new_session=True)
    except OSError as error:
        raise SlurmError(f"cannot run srun: {error.strerror}", "try it by hand: srun --version") from error
    os.close(theirs)
    os.close(output)
    try:
        end.run(incoming, outgoing)
    finally:  # it ends at the end of its input
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
    if not end.ended:
        raise SlurmError(f"the tunnel's step ended with exit code {process.returncode}", f"clusterctl status {run.id}")

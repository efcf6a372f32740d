"""The two ends of a tunnel, with pipes between them: whole bytes, fair connections, and no trust in either end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.scenario import wait_until

from clusterctl.launcher.api.tunnel import ListeningEnd, parse_ports
from clusterctl.shared.errors import HostError, UsageError
from clusterctl.shared.node import tunnel as ends

SOMEONE = 4242
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of another user")
# As root, since another user may not be able to read the interpreter.
BECOMES_SOMEONE = f"import os, socket, sys, time; os.setgid({SOMEONE}); os.setuid({SOMEONE})\n"
LISTENS = """
import socket, sys, time
one = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
time.sleep(600)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def echo_server(answer: Callable[[bytes], bytes] = lambda data: data) -> Iterator[int]:
    """A server that answers what it has received when the client has sent everything."""

    def talk(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            received = b"".join(iter(lambda: connection.recv(2**16), b""))
            connection.sendall(answer(received))

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=talk, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


class Tunnel:
    """Both ends, until the block ends."""

    def __init__(self, port: int, job: str = "") -> None:
        self.local, self.port, self.job = free_port(), port, job
        self.warnings: list[str] = []
        self.announced: list[tuple[str, str]] = []
        self.end = ListeningEnd(self.local, lambda *words: self.announced.append(words), self.warnings.append)

    def __enter__(self) -> Tunnel:
        here, theirs = os.pipe()
        there, ours = os.pipe()
        self.far = threading.Thread(target=self._far, args=(there, theirs))
        self.near = threading.Thread(target=self.end.run, args=(here, ours))
        self.far.start()
        self.near.start()
        wait_until(lambda: self.announced, 20, "the greeting")
        return self

    def _far(self, incoming: int, outgoing: int) -> None:
        async def connect() -> None:
            self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()

            async def until() -> str:
                await self.over.wait()
                return "the test is over"

            async with ends.Multiplexer(incoming, outgoing) as multiplexer:
                await ends.connecting_end(multiplexer, ends.Port(self.port, self.job), until())

        asyncio.run(connect())

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.over.set)
        self.far.join(60)
        self.near.join(60)
        assert not self.far.is_alive()
        assert not self.near.is_alive()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.local), timeout=120)

    def asked(self, data: bytes) -> bytes:
        with self.connect() as connection:

            def send() -> None:
                with suppress(OSError):  # it may be closed at once
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)

            threading.Thread(target=send).start()
            return b"".join(iter(lambda: connection.recv(2**16), b""))


def test_many_connections_at_once_carry_their_own_bytes_in_both_directions() -> None:
    numbers = random.Random(7)
    sizes = [0, 1, ends.WINDOW - 1, ends.WINDOW, 3 * ends.WINDOW + 5, *(numbers.randrange(2**17) for _ in range(15))]
    sent = [numbers.randbytes(size) for size in sizes]
    with echo_server(lambda data: data[::-1] + b"!") as port, Tunnel(port) as tunnel, ThreadPoolExecutor(20) as pool:
        assert list(pool.map(tunnel.asked, sent)) == [data[::-1] + b"!" for data in sent]
    assert (tunnel.warnings, tunnel.end.ended) == ([], "the test is over")


def test_it_listens_on_the_loopback_address_alone() -> None:
    with echo_server() as port, Tunnel(port) as tunnel:
        for address in ("127.0.0.2", "::1"):
            with pytest.raises(OSError):  # refused, or without IPv6 unreachable
                socket.create_connection((address, tunnel.local), 5)
        assert tunnel.asked(b"here") == b"here"


def test_a_connection_that_is_not_read_delays_no_other_and_stores_no_more_than_its_window() -> None:
    answer = echo_server(lambda _: bytes(20 * ends.WINDOW))
    with answer as port, Tunnel(port) as tunnel, tunnel.connect() as stuck:
        stuck.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        assert len(tunnel.asked(b"")) == 20 * ends.WINDOW
        stuck.settimeout(120)
        assert len(b"".join(iter(lambda: stuck.recv(2**16), b""))) == 20 * ends.WINDOW


def test_without_a_server_the_connection_is_closed_and_the_reason_reported_once() -> None:
    port = free_port()
    with Tunnel(port) as tunnel:
        assert tunnel.announced[0][1] == f"nothing listens on port {port}"
        for _ in range(3):
            with suppress(ConnectionError):
                assert tunnel.asked(b"x") == b""
        wait_until(lambda: tunnel.warnings, 20, "a warning")
        # it may start later
        with socket.create_server(("127.0.0.1", port)) as late, tunnel.connect() as connection, late.accept()[0] as met:
            connection.sendall(b"now")
            assert met.recv(3) == b"now"
    assert tunnel.warnings == [f"nothing listens on port {port}"]


@as_root
def test_a_port_of_another_user_on_the_node_is_not_reached() -> None:
    port = free_port()
    with listening(port, before=BECOMES_SOMEONE), Tunnel(port) as tunnel:
        assert tunnel.announced[0][1] == f"port {port} belongs to another user"
        with suppress(ConnectionError):
            assert tunnel.asked(b"a password") == b""
        wait_until(lambda: tunnel.warnings, 20, "a warning")
    assert tunnel.warnings == [f"port {port} belongs to another user"]


def test_a_port_of_another_job_on_the_node_is_not_reached_but_one_of_the_job_is() -> None:
    port = free_port()
    with listening(port, environment={"SLURM_JOB_ID": "17"}):
        with Tunnel(port, job="18") as tunnel:
            assert tunnel.announced[0][1] == f"port {port} belongs to another job of yours: 17"
        with Tunnel(port, job="17") as tunnel:
            assert tunnel.announced[0][1] == ""


@as_root
def test_another_user_of_this_machine_is_not_let_in() -> None:
    program = """
import socket, sys
s = socket.socket()
s.connect(("127.0.0.1", int(sys.argv[1])))
s.sendall(b"x")
print(s.recv(9))
"""
    with echo_server() as port, Tunnel(port) as tunnel:
        words = [sys.executable, "-I", "-S", "-c", BECOMES_SOMEONE + program, str(tunnel.local)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.stdout in ("b''\n", ""), done  # closed, or reset
        assert done.returncode == 0 or "ConnectionResetError" in done.stderr
        assert tunnel.asked(b"mine") == b"mine"
    assert tunnel.warnings == [f"refused a connection from another user: {SOMEONE}"]


@contextmanager
def listening(
    port: int, before: str = "", environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-I", "-S", "-c", before + LISTENS, str(port)]
    given = os.environ | (environment or {})
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=given) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


HEAD = struct.Struct(">cIH")
READY = ends.GREETING + HEAD.pack(ends.READY, 0, 5) + b"node\0"
HOSTILE = {
    "no greeting": b"R" * (2**20 + 100_000),
    "another first frame": ends.GREETING + HEAD.pack(ends.DATA, 1, 1) + b"x",
    "a connection that it opens itself": READY + HEAD.pack(ends.OPEN, 9, 0),
    "an unknown frame": READY + HEAD.pack(b"?", 1, 0),
    "empty data": READY + HEAD.pack(ends.DATA, 1, 0),
    "a second greeting": READY + HEAD.pack(ends.READY, 0, 0),
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
def test_a_login_node_that_sends_anything_else_ends_the_tunnel(sent: bytes) -> None:
    end = ListeningEnd(free_port(), lambda *_: None, lambda _: None)

    def receive() -> None:
        with end.in_background() as (_, put):
            for start in range(0, len(sent), 5000):
                put(sent[start : start + 5000])
            wait_until(lambda: put(b""), 5)  # raises what the end has raised

    with pytest.raises(HostError, match="invalid data"):
        receive()


@pytest.mark.parametrize(
    "frames",
    [
        [(ends.DATA, b"x" * 60_000)] * 5,  # more than a window
        [(ends.END, b""), (ends.DATA, b"x")],
        [(ends.END, b""), (ends.END, b"")],
        [(ends.TAKEN, b"\0\0\0\1")],
        [(ends.TAKEN, b"")],
    ],
)
def test_neither_end_stores_more_than_a_window_or_believes_an_impossible_count(
    frames: list[tuple[bytes, bytes]],
) -> None:
    async def attack() -> None:
        async with ends.Multiplexer(*os.pipe()) as multiplexer:
            multiplexer.connections[1] = ends.Connection()
            for kind, payload in frames:
                multiplexer.take(kind, 1, payload)
                multiplexer.take(kind, 2, payload)  # one that has ended

    with pytest.raises(ends.Broken):
        asyncio.run(attack())


def test_the_nodes_end_runs_as_text_with_the_standard_library_and_ends_with_its_rank_or_its_input() -> None:
    text = Path(ends.__file__).read_text()
    for gone in ("rank", "input", "job"):
        rank = subprocess.Popen(["sleep", "600"])
        words = [f"/proc/{os.getpid()}/exe", "-I", "-S", "-c", text, str(rank.pid), str(free_port())]
        far = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert far.stdin
            assert far.stdout
            assert far.stdout.read(len(ends.GREETING)) == ends.GREETING
            if gone == "rank":
                rank.kill()
                rank.wait()
            elif gone == "input":
                far.stdin.close()
            else:
                far.send_signal(signal.SIGTERM)
            assert far.wait(120) == 0, gone
            rest = far.stdout.read()
        finally:
            for process in (rank, far):
                process.kill()
                process.wait()
        assert (b"it has ended" in rest, b"its job is ending" in rest) == (gone == "rank", gone == "job"), gone
        far.stdin.close()
        far.stdout.close()


WRONG = ("", "0", "65536", "8888:", ":8888", "1:2:3", "-1", "8888:x", "８８", "99999999999999")


@pytest.mark.parametrize("text", [*WRONG, "web", "web:", "web:1:2:3", "web:x"])
def test_what_is_not_a_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a port"):
        parse_ports(text)
    assert (parse_ports("8888"), parse_ports("1:65535")) == ((8888, 8888, ""), (1, 65535, ""))
    assert (parse_ports("web:80"), parse_ports("a-1:80:8080")) == ((80, 80, "web"), (80, 8080, "a-1"))


def test_a_port_that_is_taken_here_is_refused_with_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on port {number} here") as refused:
            ListeningEnd(number, lambda *_: None, lambda _: None)
    free = int(refused.value.hint.rpartition(":")[2])
    socket.create_server(("127.0.0.1", free)).close()

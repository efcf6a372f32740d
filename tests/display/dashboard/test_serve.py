"""The dashboard's server, from its first line to its end."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from clusterctl.launcher.display.dashboard.application import Addresses, DashboardData, serve
from clusterctl.launcher.observe.status import RunStatuses


def test_ctrl_c_stops_it_even_while_it_prints_its_address(tmp_path: Path) -> None:
    announced: list[Addresses] = []

    def announce(addresses: Addresses) -> None:
        announced.append(addresses)
        raise KeyboardInterrupt

    serve(DashboardData(tmp_path, lambda: RunStatuses(0.0, (), ())), 0, announce)
    with socket.socket() as again:
        again.bind(("127.0.0.1", urlsplit(announced[0].url).port or 0))


@pytest.mark.parametrize(
    "head",
    [
        "POST / HTTP/1.1\r\nContent-Length: 900000000",
        "POST / HTTP/1.1\r\nContent-Length: 900000000\r\nExpect: 100-continue",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked",
        "GET / HTTP/1.1\r\nContent-Length: 2",
        f"GET /{'x' * 2**20} HTTP/1.1",
    ],
)
def test_a_strangers_body_is_not_stored(tmp_path: Path, head: str) -> None:
    addresses: list[Addresses] = []
    listening = threading.Event()

    def announce(found: Addresses) -> None:
        addresses.append(found)
        listening.set()

    # The server has no end but Ctrl-C, so its thread ends with this process.
    data = DashboardData(tmp_path, lambda: RunStatuses(0.0, (), ()))
    threading.Thread(target=serve, args=(data, 0, announce), daemon=True).start()
    assert listening.wait(20)
    port = urlsplit(addresses[0].url).port or 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        stranger.sendall(f"{head}\r\nHost: 127.0.0.1\r\n\r\n".encode())
        sent = 0
        with suppress(ConnectionError):
            while sent < 64 * 2**20:  # more than the sockets' buffers
                sent += stranger.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert sent < 64 * 2**20, "the server closed the connection"

"""A webhook on this machine: a real HTTP server that keeps the requests and answers as a test wants."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "T0K3N-of-the-webhook"


class WebHook(ThreadingHTTPServer):
    """`manner` is how it answers: a status, "hang", "slow" (a byte now and then), "close" or "redirect"."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manner: int | str = 200
        self.received: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/{TOKEN}"

    def texts(self) -> list[str]:
        return [str(one.get("text") or one.get("body")) for one in self.received]

    def events(self) -> list[str]:
        """The events in messages of the format "json"."""
        return [one["event"] for one in self.received]


class _Handler(BaseHTTPRequestHandler):
    server: WebHook

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        self.server.received.append(json.loads(content))
        manner = self.server.manner
        if manner == "hang":
            self.server.over.wait(60)
        elif manner == "slow":
            with suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.2)
        elif manner == "close":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif manner == "redirect":
            self.send_response(307)
            self.send_header("Location", self.server.url + "/elsewhere")
            self.end_headers()
        else:
            assert isinstance(manner, int)
            self.send_response(manner)
            self.end_headers()
            self.wfile.write(b"an answer that nobody reads")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_hook() -> Iterator[WebHook]:
    server = WebHook()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def dead_url() -> str:
    """The URL of a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/services/{TOKEN}"

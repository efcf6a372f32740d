"""A real server on the loopback interface, showing fabricated runs."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import waitress
from waitress import wasyncore

from clusterctl.launcher.display.dashboard.application import Application, DashboardData
from clusterctl.launcher.observe.ended_runs import QUIET_SECONDS, EndedRuns
from clusterctl.launcher.observe.runs import newest_first
from clusterctl.launcher.observe.status import RunStatuses, statuses_of
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.spec import Cluster

TOKEN = "t" * 43


@dataclass
class CountedSlurm:
    """A Slurm that does not answer and counts its queries."""

    queries: int = 0

    def snapshot(self) -> None:
        self.queries += 1
        raise SlurmError("no answer from <b>slurmctld</b>")

    def accounted(self, job_ids: Sequence[str]) -> None:
        self.queries += 1
        raise SlurmError("no answer")


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: str


@dataclass
class Server:
    """A dashboard of the runs in `folder`, with a clock that only tests advance."""

    folder: Path
    slurm: CountedSlurm = field(default_factory=CountedSlurm)
    now: float = 0.0
    port: int = 0
    application: Application | None = None

    def __call__(self, environ: Any, start_response: Any) -> Any:
        assert self.application
        return self.application(environ, start_response)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def cookie(self) -> str:
        return f"clusterctl-{self.port}={TOKEN}"

    def listen_at(self, port: int) -> None:
        ended = EndedRuns(clock=lambda: time.time() + 2 * QUIET_SECONDS)  # as if the runs had ended minutes ago

        def slurm_of(cluster: Cluster) -> Any:
            return self.slurm

        def look() -> RunStatuses:
            return statuses_of(newest_first(self.folder), slurm_of, ended=ended)

        self.port = port
        self.application = Application(
            DashboardData(self.folder, look, slurm_of, lambda: self.now), TOKEN, f"clusterctl-{port}"
        )

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Send one request as given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read().decode())

    def page(self, path: str) -> str:
        """The page for a client with the token."""
        reply = self.ask(path, Cookie=self.cookie)
        assert reply.status == 200, reply.body
        return reply.body

    def later(self) -> None:
        self.now += 60


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Starts the server of the fabricated runs."""
    with contextlib.ExitStack() as stack:

        def start() -> Server:
            server = Server(tmp_path / "runs")
            listening = waitress.create_server(server, host="127.0.0.1", port=0)
            server.listen_at(int(listening.effective_port))
            ended = threading.Event()
            thread = threading.Thread(target=_run, args=(listening, ended))
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
            return server

        yield start


def _run(listening: Any, ended: threading.Event) -> None:
    """Like waitress's `run`, which stops only at KeyboardInterrupt."""
    while not ended.is_set():
        wasyncore.loop(timeout=0.05, map=listening._map, count=1)
    for connection in list(listening._map.values()):
        connection.handle_close()  # wakes the thread that waits to write to it
    listening.task_dispatcher.shutdown()

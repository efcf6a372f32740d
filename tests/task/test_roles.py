"""The connections between the ranks of a job with roles: what they agree on, and who may take part."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from clusterctl.engine.task import meeting, roles
from clusterctl.engine.task.roles import Actor, probe
from clusterctl.shared.errors import TaskError
from clusterctl.shared.node.role_plan import Roles
from clusterctl.shared.record import secret
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.place import Place
from clusterctl.shared.record.roles import Address

JOB = {
    "restart": {"limit": 3, "without_progress": 3},
    "role": {
        "server": {"nodes": 2, "program": ["s"], "ready": "tcp://{host}:{port}", "ready_within": 60, "grace": 1},
        "trainer": {"nodes": 1, "program": ["t"], "needs": ["server"], "ends": "job", "grace": 1},
    },
}


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    found = RunDir(tmp_path / "run").attempt(0)
    found.path.mkdir(parents=True)
    found.secret.write_text("ab" * 32)
    found.secret.chmod(0o600)
    return found


def own(rank: int) -> Address:
    return Address("127.0.0.1", 1000 + rank, 2000 + rank)


@pytest.fixture
def actors(attempt: Attempt) -> Iterator[list[Actor]]:
    plan = Roles.of(Fields(JOB))
    assert plan is not None

    def join(rank: int) -> Actor:
        return Actor(plan, Place(rank, 0, rank, 3, 3), attempt, own(rank))

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(join, range(3)))
    yield found
    for actor in found:
        with suppress(OSError):
            actor._channel.connection.shutdown(socket.SHUT_RDWR)
    for thread in threading.enumerate():
        if thread.name in ("actor", "roles", "end"):
            thread.join(10)
            assert not thread.is_alive(), thread.name


def together(calls: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result(30)


def test_ranks_start_in_order_with_all_addresses_and_leave_together(actors: list[Actor]) -> None:
    ended: list[int] = []
    for rank, actor in enumerate(actors):
        actor.on_end = lambda rank=rank: ended.append(rank)
    assert actors[0].wait_for_start()
    assert actors[1].wait_for_start()
    actors[0].ready()
    actors[1].ready()
    assert actors[2].wait_for_start()
    assert actors[2].addresses == {"server": [own(0), own(1)], "trainer": [own(2)]}
    assert actors[2].ended(0, "", asked=False) is None
    assert [actor.wait_for_end().text("how") for actor in actors] == ["finished"] * 3
    together([actor.leave for actor in actors])
    assert sorted(ended) == [0, 1, 2]


def test_all_learn_which_rank_has_failed_and_why(actors: list[Actor]) -> None:
    actors[1].ended(3, "exited with 3", asked=False)
    for actor in actors:
        end = actor.wait_for_end()
        assert (end.text("how"), end.text("why"), actor.culprit) == ("failed", "exited with 3", "server r01")


def test_a_rank_whose_process_is_gone_ends_the_others(actors: list[Actor]) -> None:
    actors[1]._channel.connection.shutdown(socket.SHUT_RDWR)
    assert actors[0].wait_for_end().whole("rank") == 1
    assert actors[2].wait_for_end().whole("rank") == 1


def test_a_stranger_takes_no_part_and_disturbs_nobody(
    attempt: Attempt, actors: list[Actor], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = meeting.find(attempt)
    for sent in (b"", b"\0" * 36, b"GET / HTTP/1.1\r\n\r\n" * 4, b"\0" * 32 + b"\xff" * 4 + b"{}\n"):
        with socket.create_connection((host, port)) as stranger:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1024):
                pass
    monkeypatch.setattr(secret, "read", lambda attempt: b"x" * 32)
    channel = roles._connected(attempt, 1)
    channel.send({"kind": "joined", "host": "evil", "port": 1, "meeting": 1})
    with channel.connection, pytest.raises(OSError, match="ended|reset"):
        channel.receive()
    assert actors[0].end is None
    assert actors[0].wait_for_start()


def test_silent_strangers_do_not_hold_up_the_others(attempt: Attempt, actors: list[Actor]) -> None:
    with ExitStack() as closing:
        for _ in range(20):
            closing.enter_context(socket.create_connection(meeting.find(attempt)))
        late = closing.enter_context(socket.create_connection(meeting.find(attempt), timeout=10))
        assert len(late.recv(32)) == 32  # strangers served one after another would take 40 s
        actors[0].ready()
        actors[1].ready()
        assert actors[2].wait_for_start()


def test_a_message_that_was_sent_before_is_not_accepted_again(actors: list[Actor]) -> None:
    channel = actors[1]._channel
    recorded: list[bytes] = []

    class Recorder:
        def __init__(self, connection: socket.socket) -> None:
            self.connection = connection

        def recv(self, count: int) -> bytes:
            return self.connection.recv(count)

        def close(self) -> None:
            self.connection.close()

        def sendall(self, content: bytes) -> None:
            recorded.append(content)
            self.connection.sendall(content)

    connection = channel.connection
    channel.connection = Recorder(connection)  # type: ignore[assignment]
    actors[1].waiting("refused")
    connection.sendall(recorded[0])
    assert actors[0].wait_for_end().whole("rank") == 1
    channel.connection = connection


def test_no_rank_joins_without_the_coordinator(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        meeting.publish(attempt, *nobody.getsockname())
    plan = Roles.of(Fields(JOB))
    assert plan is not None
    monkeypatch.setattr(meeting, "TIMEOUT_SECONDS", 2)
    with pytest.raises(TaskError, match="coordinates the roles"):
        Actor(plan, Place(1, 0, 1, 3, 3), attempt, own(1))


def test_each_kind_of_ready_is_recognised(tmp_path: Path) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/well" else 503)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        assert probe(f"tcp://127.0.0.1:{port}", {}) == ""
        assert probe(f"http://127.0.0.1:{port}/well", {}) == ""
        assert probe(f"http://127.0.0.1:{port}/ill", {}).endswith("answers 503")
        server.shutdown()
    assert "refused" in probe(f"http://127.0.0.1:{port}/well", {})
    assert "refused" in probe(f"tcp://127.0.0.1:{port}", {})
    done = tmp_path / "done"
    assert probe(f"file:{done}", {}).startswith("no such file")
    done.touch()
    assert probe(f"file:{done}", {}) == ""


def test_a_line_of_a_log_counts_only_after_the_start_and_also_if_it_is_written_in_pieces(tmp_path: Path) -> None:
    log, missing = tmp_path / "log", tmp_path / "err"
    log.write_text("listening on 80\n")
    logs = {log: log.stat().st_size, missing: 0}
    assert probe("log:listening on", logs) == "not printed yet: listening on"
    with log.open("a") as file:
        file.write("now listen")
    assert probe("log:listening on", logs) != ""
    with log.open("a") as file:
        file.write("ing on 4711")
    assert probe("log:listening on", logs) == ""

"""One writer per node: all events of its ranks reach the disk, with or without the writer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from support.ranks import environments
from support.recorded import beat_of, recorded
from support.scenario import wait_until, writers

from clusterctl.launcher.observe.telemetry import used_by
from clusterctl.shared.node import node_link, node_writer
from clusterctl.shared.node.node_link import address
from clusterctl.shared.node.node_watch import NodeWatch
from clusterctl.shared.node.node_writer import NodeWriter
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.place import Place
from clusterctl.shared.spec import Watchdog

# A rank without a program: it executes each line of its stdin and prints "done".
RANK = """
import sys
from clusterctl.shared.node.answers import Answers, register_dump, stacks_text
from clusterctl.shared.node.events import Events
from clusterctl.shared.record.heartbeats import Beat, Pulse
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.node.node_link import NodeLink
from clusterctl.shared.record.place import Place
attempt, place = current_attempt(), Place.from_environment()
link = NodeLink(attempt, place, "task", register_dump())
events = Events(attempt, place.rank, link)
answers = Answers(attempt, place.rank, events, stacks_text)
link.handlers = {"alarm": answers.take, "leave": answers.leave}
link.open()
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Rank:
    def __init__(self, attempt: Attempt, environment: dict[str, str]) -> None:
        self.attempt, self.number = attempt, int(environment["SLURM_PROCID"])
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    @property
    def events(self) -> list[str]:
        return [event["event"] for event in recorded(self.attempt, self.number)]

    def leave(self) -> None:
        self.process.communicate()


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path / "run").attempt(0)


@pytest.fixture
def ranks(attempt: Attempt) -> Iterator[list[Rank]]:
    started = [Rank(attempt, environment) for environment in environments(attempt, [2])]
    yield started
    for rank in started:
        rank.process.kill()
        rank.process.communicate()
    wait_until(lambda: not writers(attempt), what="the writer to end with its last rank")


def the_writer(attempt: Attempt) -> int:
    """The writer that holds the node's address; a second one may be about to exit."""
    (writer,) = wait_until(lambda: found if len(found := writers(attempt)) == 1 else None)
    return int(writer)


def own_files(attempt: Attempt) -> list[str]:
    return sorted(path.name for path in (attempt.path / "events").glob("*"))


def test_ranks_of_a_node_share_a_writer_and_urgent_events_are_on_disk_at_once(
    attempt: Attempt, ranks: list[Rank]
) -> None:
    for rank in ranks:
        rank.do("events.state(__import__('clusterctl.shared.record.states').shared.record.states.State.TRAINING)")
        rank.do("events.exception(ValueError('boom'))")
        assert rank.events == ["stage", "exception"]  # at once and in order
    the_writer(attempt)
    assert own_files(attempt) == []
    (path,) = attempt.node_event_files().values()
    assert {record["rank"] for record in read_lines(path)} == {0, 1}


def test_heartbeats_share_a_file_and_an_ended_task_keeps_its_last_step(attempt: Attempt, ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.do("link.beat(Beat(1.0, 'training', 1.0, step=9, pid=4))")
    wait_until(lambda: all(beat_of(attempt, rank) for rank in (0, 1)))
    assert list(attempt.beat_files()) == [0]
    ranks[1].do("link.beat(Beat(2.0, 'ended', 1.0))")
    wait_until(lambda: (beat := beat_of(attempt, 1)) and beat.phase == "ended" and beat.step == 9)


def test_the_last_sample_is_on_disk_before_a_rank_leaves(attempt: Attempt, ranks: list[Rank]) -> None:
    """Slurm kills the writer with what else is left of a step as soon as its ranks have left."""
    leader, _ = ranks
    leader.do("events.state(__import__('clusterctl.shared.record.states').shared.record.states.State.TRAINING)")
    leader.do("link.send({'kind': 'sample', 'node': 'n0', 'sample': {'time': 1.0, 'peak': {'memory': 5}}})")
    leader.do("events.exit(0)")
    os.kill(the_writer(attempt), signal.SIGKILL)
    assert used_by(attempt).memory == 5


def test_a_killed_writer_is_restarted_without_losing_events(attempt: Attempt, ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.do("events.record('one')")
    first = the_writer(attempt)
    os.kill(first, signal.SIGKILL)
    ranks[0].do("events.exception(ValueError('boom'))")
    assert "exception" in ranks[0].events
    wait_until(lambda: set(writers(attempt)) - {first}, what="another writer")
    for rank in ranks:
        wait_until(lambda rank=rank: "writer" in rank.events)
        rank.do("events.exit(1)")
        assert set(rank.events) >= {"one", "writer", "exit"}
    the_writer(attempt)


def test_no_second_writer_is_started_while_one_is_starting(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment,) = environments(attempt, [1])
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "60"]))
        return started[-1]

    monkeypatch.setattr(node_link, "_start", start)
    monkeypatch.setattr(node_link, "_START_SECONDS", 0.1)
    link = node_link.NodeLink(attempt, Place.from_environment(environment), "task")
    try:
        for starts in (1, 1, 2):
            if starts == 2:
                started[0].kill()
                started[0].wait()
            with pytest.raises(OSError):
                link._connect()
            assert len(started) == starts
    finally:
        started[-1].kill()
        started[-1].wait()


def test_a_rank_writes_its_own_file_if_the_writer_is_stuck(attempt: Attempt, ranks: list[Rank]) -> None:
    ranks[0].do("events.record('one')")
    writer = the_writer(attempt)
    os.kill(writer, signal.SIGSTOP)
    try:
        ranks[0].do("events.exception(ValueError('boom'))")
        assert {event["event"] for event in read_lines(attempt.events(0))} >= {"exception"}
    finally:
        os.kill(writer, signal.SIGCONT)


def test_without_the_attempts_secret_a_rank_writes_its_own_file(attempt: Attempt) -> None:
    (environment,) = environments(attempt, [1])
    attempt.secret.unlink()
    rank = Rank(attempt, environment)
    rank.do("events.exception(ValueError('boom'))")
    rank.leave()
    assert writers(attempt) == []
    assert [event["event"] for event in read_lines(attempt.events(0))] == ["exception"]


def test_slurms_signals_to_the_step_do_not_end_the_writer(attempt: Attempt, ranks: list[Rank]) -> None:
    ranks[0].do("events.record('one')")
    writer = the_writer(attempt)
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT, signal.SIGINT):
        os.kill(writer, number)
    ranks[0].do("events.exit(0)")
    assert writers(attempt) == [writer]
    assert "exit" in ranks[0].events
    assert own_files(attempt) == []
    opened = {str(path.readlink()) for path in Path(f"/proc/{writer}/fd").iterdir()}
    assert not any(name.startswith("pipe:") for name in opened), "srun waits for any process that holds its pipes"


def test_frequent_events_starve_neither_samples_nor_the_watch_of_the_next_node_and_the_end_flushes_all(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_writer, "BEAT_SECONDS", 0.005)
    monkeypatch.setattr(node_writer, "NEIGHBOUR_SECONDS", 0.05)
    looked: list[int] = []
    monkeypatch.setattr(NodeWatch, "look_at_next", lambda watch: looked.append(watch.node))
    environments(attempt, [1])  # creates the attempt's secret
    attempt.beats(0).parent.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address(attempt, 0))
    listener.listen()
    writer = threading.Thread(target=NodeWriter(attempt, 0, 2, listener).run)
    writer.start()
    rank = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rank.connect(address(attempt, 0))
    node_link.post(rank, {"kind": "hello", "rank": 0, "role": "task", "watchdog": asdict(Watchdog())})
    sent = 0

    def written() -> list[object]:
        return list(read_lines(attempt.telemetry("n0")))

    def flood() -> bool:
        """Events before every turn of the writer, and few samples."""
        nonlocal sent
        for number in range(20):
            node_link.post(rank, {"kind": "record", "record": {"event": "stage"}, "number": number})
            time.sleep(0.002)
        node_link.post(rank, {"kind": "sample", "node": "n0", "sample": {"time": time.time(), "seconds": 5.0}})
        sent += 1
        return len(written()) > 2 and len(looked) > 2

    wait_until(flood)
    for _ in range(3):
        node_link.post(rank, {"kind": "sample", "node": "n0", "sample": {"time": time.time(), "seconds": 5.0}})
    rank.close()
    writer.join()
    listener.close()
    assert len(written()) == sent + 3


STUCK = "__import__('ctypes').PyDLL(None).sleep(600)"


def test_a_rank_stuck_in_native_code_is_noticed_and_its_stack_recorded(attempt: Attempt, ranks: list[Rank]) -> None:
    settings = asdict(Watchdog(floor=1, factor=1.0, action="fail"))
    for rank in ranks:
        rank.do(f"link.introduce(watchdog={settings!r})")
        rank.do("events.heart.enter('training'); [events.heart.beat(step) for step in range(9)]")
        rank.do("Pulse(events.heart, link.beat).start()")
    assert ranks[1].process.stdin is not None
    ranks[0].do("events.heart.wait()")
    ranks[1].process.stdin.write(STUCK + "\n")
    ranks[1].process.stdin.flush()
    assert ranks[0].process.wait(60) == 70
    assert ranks[0].events[-2:] == ["hang", "exit"]
    (frozen,) = wait_until(lambda: [event for event in recorded(attempt, 1) if event["event"] == "frozen"])
    assert "<string>" in frozen["stacks"]
    assert attempt.hang_json.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_another_user_cannot_use_the_writer(attempt: Attempt, ranks: list[Rank]) -> None:
    ranks[0].do("events.record('one')")
    program = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "link.connect(bytes.fromhex(sys.argv[1]))\n"
        'link.send(b\'{"kind": "hello", "rank": 0, "role": "task"}\')\n'
        'link.send(b\'{"kind": "record", "record": {"event": "exit"}, "number": 1, "urgent": true}\')\n'
        "print(link.recv(100))\n"
    )
    argv = [sys.executable, "-c", program, address(attempt, 0).hex()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert "written" not in done.stdout
    time.sleep(0.1)  # nothing must happen, so there is no condition to wait for
    ranks[0].do("events.record('two')")
    wait_until(lambda: "two" in ranks[0].events)
    assert ranks[0].events == ["one", "two"]

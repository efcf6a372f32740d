"""A node that is off is noticed by another one, and a node that is merely slow, or whose guard has died, is not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.scenario import wait_until

from clusterctl.shared.node import guard
from clusterctl.shared.node.guard import SILENT_SECONDS, START_SECONDS, Guard, answers
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A guard ignores TERM while it ends the job."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Nodes:
    """Guards of some nodes, looked after second by second; `off` ones do nothing, and do not answer."""

    def __init__(self, folder: Path, *names: str, refuse: Sequence[str] = ()) -> None:
        self.run = RunDir(folder / "run")
        self.folder = self.run.attempt(0).path / "guards"
        self.folder.mkdir(parents=True)
        (self.folder / "nodes").write_text("\n".join(names))
        (self.folder / "lost").touch()
        self.now, self.off, self.stopped = 0.0, set[str](), set[str]()
        self.cut = set[str]()  # they write their files, but connect to nothing
        self.nameless = False  # no name is resolved
        self.filtered = False
        self.asked: list[str] = []
        self.refuse = refuse
        self.guards = {name: self._guard(name) for name in names}

    def _guard(self, name: str) -> Guard:
        def answers(node: str) -> bool | None:
            return None if self.nameless else not self.filtered and not {node, name} & (self.off | self.cut)

        def command(words: Sequence[str]) -> bool:
            self.asked.append(" ".join(words))
            return words[0] not in self.refuse and name not in self.cut

        return Guard(self.folder, name, "12", "n1", answers, lambda: self.now, command)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.now += 1
            for name in list(self.guards):
                if name not in self.off | self.stopped and not self.guards[name].look():
                    del self.guards[name]

    @property
    def lost(self) -> list[str]:
        return (self.folder / "lost").read_text().split()


def test_a_node_that_is_switched_off_is_noticed_within_seconds(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", "n3")
    nodes.pass_time(10)
    nodes.off.add("n2")
    nodes.pass_time(SILENT_SECONDS - 1)
    assert nodes.lost == []
    nodes.pass_time(3)
    assert nodes.lost == ["n2"]
    assert nodes.asked == [], "the batch script goes on with another node"


def test_a_guard_that_has_died_or_been_stopped_says_nothing_about_its_node(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", "n3")
    nodes.pass_time(5)
    nodes.stopped.add("n2")
    nodes.pass_time(300)
    assert nodes.lost == []


def test_a_node_that_comes_back_before_the_second_look_is_not_lost(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2")
    nodes.pass_time(5)
    nodes.off.add("n2")
    nodes.pass_time(SILENT_SECONDS)
    nodes.off.clear()
    nodes.pass_time(30)
    assert nodes.lost == []


def test_two_neighbours_are_noticed_one_after_the_other(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", "n3", "n4")
    nodes.pass_time(5)
    nodes.off |= {"n2", "n3"}
    nodes.pass_time(15)
    assert nodes.lost == ["n2", "n3"]


def test_a_node_whose_guard_never_began_is_given_a_minute(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2")
    nodes.off.add("n2")
    nodes.pass_time(START_SECONDS - 2)
    assert nodes.lost == []
    nodes.pass_time(5)
    assert nodes.lost == ["n2"]


def test_where_a_firewall_hides_the_nodes_from_each_other_silence_alone_proves_nothing(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2")
    nodes.filtered = True
    nodes.pass_time(5)
    nodes.off.add("n2")
    nodes.pass_time(300)
    assert nodes.lost == []


@pytest.mark.parametrize("cut", ["n1", "n2", "n3"])
def test_a_node_that_only_the_network_has_lost_is_noticed_by_the_side_that_reaches_slurm(
    tmp_path: Path, cut: str
) -> None:
    """Its file still changes: the shared disk has a network of its own."""
    nodes = Nodes(tmp_path, "n1", "n2", "n3")
    nodes.pass_time(10)
    nodes.cut.add(cut)
    nodes.pass_time(20)
    assert nodes.lost == []
    nodes.pass_time(20)
    assert nodes.lost == [cut]
    assert ("scontrol requeue 12" in nodes.asked) == (cut == "n1"), "the node of the batch script"


def test_a_network_that_fails_for_seconds_costs_no_node(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", "n3")
    for _ in range(5):
        nodes.pass_time(20)
        nodes.cut.add("n2")
        nodes.pass_time(20)
        nodes.cut.clear()
    assert nodes.lost == []


@pytest.mark.parametrize("why", ["filtered", "nameless"])
def test_nothing_is_concluded_where_no_node_could_answer(tmp_path: Path, why: str) -> None:
    nodes = Nodes(tmp_path, "n1", "n2")
    nodes.filtered = why == "filtered"  # from the beginning
    nodes.pass_time(20)
    nodes.nameless = why == "nameless"
    nodes.pass_time(300)
    assert nodes.lost == []


def test_time_in_which_a_guard_could_not_look_does_not_count(tmp_path: Path) -> None:
    """The file system was away for all of them: the next node has not written either."""
    nodes = Nodes(tmp_path, "n1", "n2")
    nodes.pass_time(5)
    nodes.now += 1000
    nodes.guards["n1"].look()
    assert nodes.lost == []


def test_a_node_that_was_given_up_leaves(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", "n3")
    nodes.pass_time(5)
    nodes.off.add("n3")
    nodes.pass_time(10)
    nodes.off.clear()
    nodes.pass_time(1)
    assert nodes.guards.keys() == {"n1", "n2"}


@pytest.mark.parametrize(
    ("refuse", "asked"),
    [((), ["scontrol requeue 12"]), (("scontrol",), ["scontrol requeue 12", "scancel 12"])],
)
def test_if_the_script_is_lost_with_its_node_the_first_one_left_ends_the_job(
    tmp_path: Path, refuse: Sequence[str], asked: list[str]
) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", "n3", refuse=refuse)
    nodes.pass_time(5)
    nodes.off.add("n1")
    nodes.pass_time(10)
    assert (nodes.lost, nodes.asked) == (["n1"], asked)
    assert nodes.guards.keys() >= {"n3"}


@pytest.mark.parametrize(("of", "jobs"), [("12", ""), ("11", ""), ("11", "11 12 13 14"), ("9", "9 10")])
def test_its_successor_need_not_wait_until_slurm_has_noticed(tmp_path: Path, of: str, jobs: str) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", "n3")
    write_json(nodes.run.successor_json, {"of": of, "job_id": "13", **({"jobs": jobs} if jobs else {})})
    nodes.pass_time(5)
    nodes.off.add("n1")
    nodes.pass_time(10)
    freed = ["scancel 12", "scontrol update JobId=13 Dependency="]
    assert nodes.asked == (freed if "12" in (of, *jobs.split()) else ["scontrol requeue 12"])


def test_slurm_is_asked_again_until_it_has_ended_the_job(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1", "n2", refuse=("scontrol", "scancel"))
    nodes.pass_time(5)
    nodes.off.add("n1")
    nodes.pass_time(20)
    assert nodes.asked.count("scontrol requeue 12") > 5
    nodes.refuse = ()
    nodes.pass_time(1)
    assert "n2" not in nodes.guards


def test_a_closed_port_is_an_answer_and_so_is_an_open_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        monkeypatch.setattr(guard, "_PORT", port)
        assert answers("127.0.0.1")
    assert answers("127.0.0.1")
    assert not answers("no-such-node.invalid")


def test_it_runs_without_the_environment_of_the_tasks(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, "n1")
    words = [sys.executable, "-I", "-S", guard.__file__, str(nodes.folder), "12", "n1"]
    with subprocess.Popen(words, env={"SLURMD_NODENAME": "n1", "PATH": os.defpath}) as process:
        wait_until((nodes.folder / "n1").exists, 30)
        process.terminate()
        assert process.wait() == -15

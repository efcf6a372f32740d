"""The cost of switching on many nodes: scans of this machine's processes, and calls of `ip`."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from clusterctl.launcher.sandbox import marked_processes, nodes
from clusterctl.launcher.sandbox.description import Sandbox, SandboxRequest
from clusterctl.launcher.sandbox.marked_processes import Process


class Machine:
    """A machine with made-up processes; it counts the scans of them, and records what is run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *running: Process) -> None:
        self.scans = 0
        self.started: list[str] = []
        self.ran: list[tuple[list[str], list[str]]] = []
        self._running = [Process(1, 0, "switch", "sleep"), *running]
        self._pids = itertools.count(1000)
        monkeypatch.setattr(marked_processes, "find", self._find)
        monkeypatch.setattr(marked_processes, "start", self._start)
        monkeypatch.setattr(marked_processes, "end", list)
        monkeypatch.setattr(nodes, "_has_own_network", lambda pid: True)
        monkeypatch.setattr(nodes, "_run", lambda argv, lines="", **how: self.ran.append((argv, lines.split("\n"))))

    def _find(self, folder: Path) -> list[Process]:
        self.scans += 1
        return self._running

    def _start(self, folder: Path, part: str, argv: list[str], log: Path, **how: object) -> Process:
        self.started.append(part)
        return Process(next(self._pids), 0, part, argv[0])


def sandbox_of(folder: Path, nodes: int) -> Sandbox:
    return Sandbox(folder=str(folder), boot_id="x", request=SandboxRequest(nodes=nodes), network="10.1.2")


@pytest.mark.parametrize("count", [4, 200])
def test_many_nodes_take_no_more_process_scans_and_ip_calls_than_one(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, sandbox = Machine(monkeypatch), sandbox_of(tmp_path, count)
    assert nodes.switch_on(sandbox, *sandbox.names) == machine.started == sandbox.names
    assert machine.scans <= 3
    assert [len(lines) for _, lines in machine.ran] == [count] * 3
    assert machine.ran[1][1][3] == "link add eth0 netns 1003 type veth peer node4 netns 1"


def test_only_nodes_that_are_off_are_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, Process(7, 0, "node1", "slurmd"), Process(8, 0, "node2", "sh"))
    sandbox = sandbox_of(tmp_path, 3)
    assert nodes.switch_on(sandbox, *sandbox.names) == machine.started == ["node2", "node3"]
    machine = Machine(monkeypatch, Process(7, 0, "node1", "slurmd"))
    assert nodes.switch_on(sandbox, "node1") == machine.started == machine.ran == []

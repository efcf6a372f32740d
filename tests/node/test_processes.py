"""What /proc shows about a program and its descendants."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scenario import wait_until

from clusterctl.shared.node.processes import ProcessTree, available_memory, command_of, descendants


def test_descendants_belong_to_the_tree_and_orphans_stay_in_it() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
    assert descendants(parents, {2}) == {2, 3, 4}
    assert descendants({3: 1, 4: 3, 5: 1}, {2, 3, 4}) == {3, 4}
    assert descendants({}, {2}) == set()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A shell that waits for a sleeping child."""
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, 9)


def test_a_tree_contains_only_its_root_and_descendants(sleeper: subprocess.Popen[bytes]) -> None:
    tree = ProcessTree(sleeper.pid)
    wait_until(lambda: len(tree.members()) == 2, what="the shell's child")
    assert os.getpid() not in tree.members()
    assert all(stat.state in "SRD" for stat in tree.members().values())


def test_a_process_is_described_by_its_program_and_its_system_call(sleeper: subprocess.Popen[bytes]) -> None:
    tree = ProcessTree(sleeper.pid)
    wait_until(lambda: "sleep 600" in " ".join(tree.describe()), what="the shell's child")
    lines = list(tree.describe())
    assert f"process {sleeper.pid}: sh" in lines, "arguments may contain secrets"
    assert any(line.startswith("  main thread sleeping") for line in lines)


def test_the_cpu_time_of_an_ended_child_still_counts() -> None:
    burn = f"{sys.executable} -c 'for _ in range(3000000): pass'; echo done; read line"
    with subprocess.Popen(["sh", "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        tree = ProcessTree(process.pid)
        assert list(tree.members()) == [process.pid]
        assert tree.used().cpu_seconds > 0.01


def made(proc: Path, pid: int, state: str, parent: int = 1, ticks: int = 100, disk: int = 0) -> None:
    """Write a process with one thread, in the format of proc(5)."""
    for folder in (proc / str(pid), proc / str(pid) / "task" / str(pid)):
        folder.mkdir(parents=True)
        numbers = ["0"] * 9 + [str(ticks), "0", "0", "0"] + ["0"] * 30
        (folder / "stat").write_text(f"{pid} (a (b) c) {state} {parent} {' '.join(numbers)}\n")
    (proc / str(pid) / "io").write_text(f"rchar: 5\nread_bytes: {disk}\nwrite_bytes: 7\n")


def test_cpu_and_disk_use_are_summed_over_the_tree(tmp_path: Path) -> None:
    made(tmp_path, 10, "S", ticks=100, disk=1000)
    made(tmp_path, 11, "S", parent=10, ticks=50, disk=0)
    made(tmp_path, 12, "R", parent=1, ticks=9999, disk=9999)
    used = ProcessTree(10, tmp_path).used()
    assert used.cpu_seconds == pytest.approx(150 / os.sysconf("SC_CLK_TCK"))
    assert used.disk_bytes == 1014


@pytest.mark.parametrize(("state", "waits"), [("D", True), ("S", False), ("R", False)])
def test_a_thread_in_uninterruptible_sleep_is_waiting_for_a_disk(tmp_path: Path, state: str, waits: bool) -> None:
    made(tmp_path, 10, "S")
    made(tmp_path, 11, state, parent=10)
    assert ProcessTree(10, tmp_path).waits_for_disk() is waits


def test_the_words_of_a_command_are_kept_apart_until_it_has_ended() -> None:
    with subprocess.Popen(["sh", "-c", "exec sleep 600 # two words"]) as process:
        wait_until(lambda: command_of(process.pid)[:1] == [b"sleep"], what="the exec")
        assert command_of(process.pid) == [b"sleep", b"600"]
        process.kill()
    assert command_of(process.pid) == []


def test_available_memory_is_a_part_of_the_machines() -> None:
    found = available_memory()
    assert found is not None
    assert 0 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

"""Processes are found by their mark and killed by their PID."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.scenario import wait_until

from clusterctl.launcher.sandbox import marked_processes
from clusterctl.shared.errors import SlurmError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    marked_processes.end(marked_processes.find(tmp_path))


def test_a_process_is_found_and_ended_with_its_children(folder: Path) -> None:
    marked_processes.start(folder, "parent", ["sh", "-c", "sleep 600 & wait"], folder / "log")
    wait_until(lambda: len(marked_processes.find(folder)) == 2, 5)
    assert {process.part for process in marked_processes.find(folder)} == {"parent"}
    marked_processes.end(marked_processes.find(folder))
    assert marked_processes.find(folder) == []


def test_processes_of_another_folder_are_left_alone(folder: Path) -> None:
    mine = marked_processes.start(folder, "mine", ["sleep", "600"], folder / "log")
    assert marked_processes.find(folder / "other") == []
    assert marked_processes.find(folder.parent) == []
    assert mine.alive()


def test_a_reused_pid_is_not_killed(folder: Path) -> None:
    mine = marked_processes.start(folder, "mine", ["sleep", "600"], folder / "log")
    marked_processes.end([mine._replace(started=mine.started - 1)])
    assert mine.alive()


def test_a_zombie_is_not_alive(folder: Path) -> None:
    process = marked_processes.start(folder, "mine", ["true"], folder / "log")
    wait_until(lambda: not process.alive(), 5)
    os.waitpid(process.pid, 0)


def test_a_daemon_that_exits_at_once_is_an_error_with_its_last_line(folder: Path) -> None:
    argv = ["sh", "-c", "echo no such key >&2; exit 1"]
    with pytest.raises(SlurmError, match="keeper exited immediately: no such key") as caught:
        marked_processes.serve(folder, "keeper", argv, folder / "log", str(folder / "socket"))
    assert str(folder / "log") in caught.value.hint


def test_a_missing_program_is_an_error(folder: Path) -> None:
    with pytest.raises(SlurmError, match="sllurmd is not on PATH"):
        marked_processes.start(folder, "x", ["sllurmd"], folder / "log")


def test_daemons_do_not_get_the_callers_ctrl_c(folder: Path) -> None:
    process = marked_processes.start(folder, "mine", ["sleep", "600"], folder / "log")
    assert os.getsid(process.pid) == process.pid
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)

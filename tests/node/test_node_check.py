"""The parts of a node's check that need no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.shared.node import node_check
from clusterctl.shared.node.node_check import Limits, clock_problem, disk_problem

LIMITS = Limits(seconds=10, clock_seconds=5, scratch="", scratch_size=1, shared_memory=1)


def test_a_disk_with_room_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH_HERE", str(tmp_path))
    assert disk_problem(replace(LIMITS, scratch="$SCRATCH_HERE")) == ""


def test_a_missing_or_full_disk_is_reported(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert disk_problem(replace(LIMITS, scratch=str(gone))) == f"cannot write to {gone}: No such file or directory"
    full = disk_problem(replace(LIMITS, scratch=str(tmp_path), scratch_size=1e9))
    assert full.endswith(f"MiB free in {tmp_path}, need 1000000000")
    assert "free in /dev/shm" in disk_problem(replace(LIMITS, scratch=str(tmp_path), shared_memory=1e9))


@pytest.mark.parametrize(
    ("ahead", "words"),
    [(0.2, ""), (-4.0, ""), (30.0, "its clock is off by -30 s"), (-30.0, "its clock is off by +30 s")],
)
def test_the_clock_is_compared_with_the_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, words: str
) -> None:
    monkeypatch.setattr(node_check, "clock_ahead", lambda _folder: ahead)
    assert clock_problem(tmp_path, 5) == words


def test_a_run_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    assert clock_problem(tmp_path / "gone", 5) == f"cannot write to {tmp_path / 'gone'}"

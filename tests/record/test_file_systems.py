"""Which file systems show changes late."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.launcher.submission.script import part
from clusterctl.shared.record import files
from clusterctl.shared.record.files import LATE_SECONDS, PROMPT, MountPoint, lateness, mounts


def test_the_innermost_and_latest_mount_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = str(tmp_path / "runs")
    found = [MountPoint(1, "/", "ext4"), MountPoint(2, runs, "tmpfs"), MountPoint(3, runs, "nfs4")]
    monkeypatch.setattr(files, "mounts", lambda: found)
    assert lateness(tmp_path / "runs" / "a") == LATE_SECONDS
    assert lateness(tmp_path / "runs2") == 0
    monkeypatch.setattr(files, "mounts", list)
    assert lateness(tmp_path) == LATE_SECONDS


def test_dev_shm_is_not_late() -> None:
    assert lateness(Path("/dev/shm")) == 0


def test_the_batch_script_knows_the_same_file_systems() -> None:
    (line,) = (line for line in part("batch.sh").splitlines() if line.strip().startswith("btrfs |"))
    named = {name for word in line.partition(")")[0].split("|") for name in word.strip().split("/")}
    assert {name.removesuffix("fs") if name == "overlayfs" else name for name in named} | {"ext4"} == PROMPT


def test_mount_points_may_contain_spaces_and_non_ascii_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "36 35 0:41 / /home/my\\040größe rw,relatime shared:1 - nfs4 server:/home rw\n".encode()
    monkeypatch.setattr(Path, "read_bytes", lambda path: line)
    assert list(mounts()) == [MountPoint(os.makedev(0, 41), "/home/my größe", "nfs4")]

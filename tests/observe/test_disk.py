"""Disk usage of folders."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.launcher.api.clean import DiskUse


def blocks(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_hard_links_count_once_and_symlinks_are_not_followed(tmp_path: Path) -> None:
    first, second, outside = (tmp_path / name for name in ("first", "second", "outside"))
    for folder in (first / "deeper", second, outside):
        folder.mkdir(parents=True)
    (first / "deeper" / "weights").write_bytes(b"x" * 50_000)
    (second / "same").hardlink_to(first / "deeper" / "weights")
    (second / "own").write_bytes(b"x" * 9_000)
    (outside / "large").write_bytes(b"x" * 1_000_000)
    (second / "link").symlink_to(outside)
    disk = DiskUse()
    assert disk.bytes_of(first) == blocks(first / "deeper" / "weights")
    own = blocks(second / "own")
    assert own <= disk.bytes_of(second) <= own + os.lstat(second / "link").st_blocks * 512
    assert disk.unread == []


def test_missing_folders_count_nothing_and_unreadable_ones_are_listed(tmp_path: Path) -> None:
    disk = DiskUse()
    assert disk.bytes_of(tmp_path / "missing") == 0
    (tmp_path / "file").touch()
    assert disk.bytes_of(tmp_path / "file" / "below") == 0
    assert disk.unread == [str(tmp_path / "file" / "below")]

"""The temporary folder of a process."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.engine.workloads.command import own_folder


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, just_made = tmp_path / "clusterctl-stop-left", tmp_path / "clusterctl-stop-new"
    with ExitStack() as stack:
        used = own_folder(stack)
        for folder in (left, just_made):
            folder.mkdir()
        for folder in (left, used):
            os.utime(folder, (0, 0))
        with ExitStack() as other:
            own = own_folder(other)
            assert set(tmp_path.iterdir()) == {used, just_made, own}
    assert list(tmp_path.iterdir()) == [just_made]

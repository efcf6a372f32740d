"""Copies of code that no run refers to: finding them, and keeping those that a submission reuses."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from clusterctl.launcher.api.clean import YOUNG_SECONDS, Unused, find_unused, remove_unused
from clusterctl.launcher.submission.snapshot import Code, find_code, take_snapshot
from clusterctl.shared.errors import ConfigError


class Folder:
    """A folder of runs, and a project that changes."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.project = folder / "runs", folder / "project"
        self.project.mkdir()
        (self.project / "same.py").write_text("x" * 10_000)

    def code(self, text: str) -> Code:
        (self.project / "train.py").write_text(text)
        return find_code(self.runs, self.project)

    def run(self, name: str, text: str) -> Path:
        """Submit a run of the project with `text`, long ago, and return its copy of the code."""
        copy = take_snapshot(self.code(text))
        (self.runs / name).mkdir()
        (self.runs / name / "code").symlink_to(Path("..", ".code", copy.name))
        self.age(copy)
        return copy

    def age(self, copy: Path) -> None:
        long_ago = time.time() - 2 * YOUNG_SECONDS
        os.utime(copy, (long_ago, long_ago))

    def forget(self, name: str) -> None:
        (self.runs / name / "code").unlink()
        (self.runs / name).rmdir()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_code_in_use_and_files_shared_with_it_are_kept(folder: Folder) -> None:
    kept, gone = folder.run("a", "print(1)"), folder.run("b", "print(2)" + "y" * 50_000)
    folder.forget("b")
    (unused,) = find_unused(folder.runs)
    assert unused.path == gone
    assert 50_000 <= unused.size < 100_000  # neither the package nor the rest of the project
    files = len(list((folder.runs / ".code" / ".files").iterdir()))
    assert remove_unused(unused)
    assert [path.name for path in (folder.runs / ".code").glob("[!.]*")] == [kept.name]
    assert (kept / "project" / "same.py").read_text() == "x" * 10_000
    assert len(list((folder.runs / ".code" / ".files").iterdir())) == files - 1
    assert find_unused(folder.runs) == []


def test_the_reported_sizes_cover_the_freed_space(folder: Folder) -> None:
    for number in range(3):
        folder.run(str(number), f"print({number})")
        folder.forget(str(number))
    found = find_unused(folder.runs)
    assert len(found) == 3
    on_disk = {status.st_ino: status.st_blocks * 512 for path in folder.runs.rglob("*.py") if (status := path.stat())}
    assert sum(unused.size for unused in found) >= sum(on_disk.values())
    assert all(map(remove_unused, found))
    assert {path.name for path in (folder.runs / ".code").iterdir()} == {".files", ".digests"}
    assert list((folder.runs / ".code" / ".files").iterdir()) == []


def test_a_new_copy_is_kept_before_any_run_refers_to_it(folder: Folder) -> None:
    copy = take_snapshot(folder.code("print(1)"))
    assert find_unused(folder.runs) == []
    folder.age(copy)
    assert [unused.path for unused in find_unused(folder.runs)] == [copy]


def test_a_new_copy_is_kept_even_if_the_local_clock_is_ahead(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 2 * YOUNG_SECONDS)
    take_snapshot(folder.code("new"))
    assert find_unused(folder.runs, time.time) == []


def test_a_copy_reused_after_it_was_listed_is_kept(folder: Folder) -> None:
    copy = folder.run("a", "print(1)")
    folder.forget("a")
    (unused,) = find_unused(folder.runs)
    assert take_snapshot(folder.code("print(1)")) == copy
    assert not remove_unused(unused)
    assert (copy / "project" / "train.py").read_text() == "print(1)"


def test_a_copy_removed_during_a_submission_is_recreated(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    code = folder.code("print(1)")
    monkeypatch.setattr(Code, "is_new", False)  # at the time of the check
    copy = take_snapshot(code)
    assert (copy / "project" / "train.py").read_text() == "print(1)"


def test_a_partial_copy_of_a_killed_submission_is_removed(folder: Folder) -> None:
    copy = folder.run("a", "print(1)")
    half = copy.with_name(f".{'0' * 20}.4711")
    (half / "project").mkdir(parents=True)
    (half / "project").chmod(0o555)
    folder.age(half)
    (unused,) = find_unused(folder.runs)
    assert unused.path == half
    assert remove_unused(unused)
    assert not half.exists()
    assert not remove_unused(Unused(half, 0))  # already removed, by another process


def test_an_unreadable_folder_is_an_error(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.run("a", "print(1)")
    (folder.runs / "notes.txt").write_text("")
    (folder.runs / "moved" / "code").mkdir(parents=True)
    assert find_unused(folder.runs) == []

    def denied(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "readlink", denied)
    with pytest.raises(ConfigError, match="cannot read"):
        find_unused(folder.runs)


def test_without_runs_nothing_is_unused(tmp_path: Path) -> None:
    assert find_unused(tmp_path / "runs") == []

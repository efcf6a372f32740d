"""Differences between two code snapshots: files, lines, and the number of files read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support.counted import counted

from clusterctl.launcher.observe.comparison import CodeChange, FileChange, code_changes, line_differences
from clusterctl.launcher.submission.snapshot import find_code, take_snapshot
from clusterctl.shared.record import files


def snapshot(folder: Path, files: dict[str, str | bytes]) -> Path:
    (folder / "lib" / "clusterctl").mkdir(parents=True)
    (folder / "project").mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def lines(first: Path, second: Path, name: str, change: FileChange = FileChange.CHANGED) -> tuple[str, ...] | None:
    return line_differences(first, second, CodeChange(name, change)).lines


def test_changed_files_are_listed_by_kind_of_change_project_files_first(tmp_path: Path) -> None:
    same = {"project/same.py": "1", "project/a/same.py": "2", "lib/clusterctl/same.py": "3"}
    first = snapshot(tmp_path / "1", same | {"project/gone.py": "", "project/b.py": "old", "lib/clusterctl/c.py": "0"})
    second = snapshot(
        tmp_path / "2", same | {"project/new/x.py": "", "project/b.py": "new", "lib/clusterctl/c.py": "1"}
    )
    for folder, name in ((first, "one.pyc"), (second, "two.pyc")):
        (folder / "lib/clusterctl/__pycache__").mkdir()
        (folder / "lib/clusterctl/__pycache__" / name).touch()
    assert code_changes(first, second) == (
        ("project/b.py", FileChange.CHANGED),
        ("project/gone.py", FileChange.REMOVED),
        ("project/new/x.py", FileChange.ADDED),
        ("lib/clusterctl/c.py", FileChange.CHANGED),
    )
    assert code_changes(first, first) == ()


def test_links_and_permissions_are_compared_too(tmp_path: Path) -> None:
    files = {"project/run.sh": "true"}
    first, second = (snapshot(tmp_path / name, files) for name in "12")
    (second / "project" / "run.sh").chmod(stat.S_IRWXU)
    for folder, target in ((first, "a"), (second, "b")):
        (folder / "project" / "same").symlink_to("nowhere")
        (folder / "project" / "other").symlink_to(target)
        os.mkfifo(folder / "project" / "pipe")
    found = [change.name for change in code_changes(first, second)]
    assert found == ["project/other", "project/pipe", "project/run.sh"]
    assert lines(first, second, "project/run.sh") == ()
    assert lines(first, second, "project/pipe") is None
    diff = lines(first, second, "project/other")
    assert diff
    assert [line for line in diff[3:] if not line.startswith("\\")] == [
        "-link to a\n\\ No newline at end of file",
        "+link to b\n\\ No newline at end of file",
    ]


@pytest.mark.parametrize("local", [True, False])
def test_only_files_that_may_differ_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    """Snapshots share identical files: files with the same inode are not opened."""
    project, runs = tmp_path / "project", tmp_path / "runs"
    project.mkdir()
    for number in range(300):
        (project / f"{number}.py").write_text(str(number))
    first = take_snapshot(find_code(runs, project))
    (project / "7.py").write_text("8")
    (project / "8.py").write_text("longer")
    second = take_snapshot(find_code(runs, project))
    if not local:
        monkeypatch.setattr("clusterctl.launcher.observe.comparison.local_devices", frozenset)
    assert files.local_devices()
    with counted(runs) as count:
        assert [change.name for change in code_changes(first, second)] == ["project/7.py", "project/8.py"]
    assert set(count.opened) == {str(folder / "project" / "7.py") for folder in (first, second)}


def test_copies_with_the_same_content_do_not_differ(tmp_path: Path) -> None:
    """As on a file system without hard links."""
    content = os.urandom(3 * 2**20)
    first, second = (snapshot(tmp_path / name, {"project/data.bin": content}) for name in "12")
    assert code_changes(first, second) == ()
    (second / "project" / "data.bin").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert code_changes(first, second) == (("project/data.bin", FileChange.CHANGED),)


def test_a_text_is_shown_line_by_line(tmp_path: Path) -> None:
    first = snapshot(tmp_path / "1", {"project/a.py": "x = 1\ny = 2\n", "project/gone.py": "z\n"})
    second = snapshot(tmp_path / "2", {"project/a.py": "x = 1\ny = 3", "project/new.py": "z\n"})
    assert lines(first, second, "project/a.py") == (
        "--- a/project/a.py",
        "+++ b/project/a.py",
        "@@ -1,2 +1,2 @@",
        " x = 1",
        "-y = 2",
        "+y = 3\n\\ No newline at end of file",
    )
    added = lines(first, second, "project/new.py", FileChange.ADDED)
    removed = lines(first, second, "project/gone.py", FileChange.REMOVED)
    assert added == ("--- /dev/null", "+++ b/project/new.py", "@@ -0,0 +1 @@", "+z")
    assert removed == ("--- a/project/gone.py", "+++ /dev/null", "@@ -1 +0,0 @@", "-z")


@pytest.mark.parametrize("content", [b"a\0b", b"\xff\xfe", b"x\n" * 2**20], ids=["zero", "not UTF-8", "large"])
def test_binary_files_are_only_named(tmp_path: Path, content: bytes) -> None:
    first = snapshot(tmp_path / "1", {"project/a": b"x"})
    second = snapshot(tmp_path / "2", {"project/a": content})
    assert lines(first, second, "project/a") is None


def test_secrets_are_masked_before_lines_are_compared(tmp_path: Path) -> None:
    first = snapshot(tmp_path / "1", {"project/a": "key = hunter2\nx = 1\n"})
    second = snapshot(tmp_path / "2", {"project/a": "key = hunter2\nx = 2\n"})
    change = CodeChange("project/a", FileChange.CHANGED)
    found = line_differences(first, second, change, lambda text: text.replace("hunter2", "***"))
    assert found.lines
    assert " key = ***" in found.lines

"""Snapshots of code: by content, complete, bounded, and nothing that is not the project's."""

from __future__ import annotations

import os
import socket
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from clusterctl.errors import ConfigError
from clusterctl.launch import code_files
from clusterctl.launch.snapshot import find_code, take_snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "package" / "é with space.py").write_text("")
    return folder


def names(code: Path) -> set[str]:
    return {str(path.relative_to(code / "project")) for path in (code / "project").rglob("*") if not path.is_dir()}


def test_the_same_content_is_kept_once_and_a_change_makes_another(tmp_path: Path, project: Path) -> None:
    first = take_snapshot(find_code(tmp_path / "runs", project))
    assert take_snapshot(find_code(tmp_path / "runs", project)) == first
    (project / "train.py").write_text("print(2)\n")
    second = take_snapshot(find_code(tmp_path / "runs", project))
    assert second != first
    assert (first / "project" / "train.py").read_text() == "print(1)\n"
    assert len(list((tmp_path / "runs" / ".code").glob("[!.]*"))) == 2


def test_this_package_is_in_it_without_what_python_compiled(tmp_path: Path) -> None:
    code = take_snapshot(find_code(tmp_path / "runs", None))
    assert (code / "lib" / "clusterctl" / "runs" / "entry.py").is_file()
    assert not list(code.rglob("*.pyc"))


def test_git_decides_what_belongs_to_a_project(tmp_path: Path, project: Path) -> None:
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / ".gitignore").write_text("data/\n")
    (project / "data").mkdir()
    (project / "data" / "large").write_text("x")
    subprocess.run(["git", "-C", project, "add", "train.py"], check=True)
    (project / "gone.py").write_text("")
    subprocess.run(["git", "-C", project, "add", "gone.py"], check=True)
    (project / "gone.py").unlink()
    assert names(take_snapshot(find_code(tmp_path / "runs", project))) == {
        ".gitignore",
        "train.py",
        "package/é with space.py",
    }


def test_a_project_in_a_folder_that_git_ignores_is_copied_whole(tmp_path: Path, project: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("project/\n")
    assert names(take_snapshot(find_code(tmp_path / "runs", project))) == {"train.py", "package/é with space.py"}


@pytest.mark.parametrize("git", [False, True])
def test_runs_inside_the_project_are_left_out(project: Path, git: bool) -> None:
    if git:
        subprocess.run(["git", "init", "-q", project], check=True)
    take_snapshot(find_code(project / "runs", project))
    assert names(take_snapshot(find_code(project / "runs", project))) == {"train.py", "package/é with space.py"}


def test_links_inside_the_project_lead_into_the_copy(tmp_path: Path, project: Path) -> None:
    (project / "plain").symlink_to("train.py")
    (project / "dangling").symlink_to("nowhere")
    (project / "package" / "absolute").symlink_to(project / "train.py")
    (project / "package" / "roundabout").symlink_to("../../project/train.py")
    (project / "folder").symlink_to("package")
    other_name = tmp_path / "other-name"
    other_name.symlink_to(project)
    (project / "by-other-name").symlink_to(project.resolve() / "train.py")
    code = take_snapshot(find_code(tmp_path / "runs", other_name)) / "project"
    links = {str(path.relative_to(code)): str(path.readlink()) for path in code.rglob("*") if path.is_symlink()}
    assert links == {
        "plain": "train.py",
        "dangling": "nowhere",
        "package/absolute": "../train.py",
        "package/roundabout": "../train.py",
        "folder": "package",
        "by-other-name": "train.py",
    }


def test_what_a_link_leads_out_to_is_not_copied(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_files, "LARGEST_BYTES", 10_000)
    outside = tmp_path / "outside"
    outside.mkdir()
    os.truncate(os.open(outside / "large", os.O_CREAT | os.O_WRONLY), 20_000)
    (project / "file").symlink_to("../outside/large")
    (project / "folder").symlink_to(outside)
    code = find_code(tmp_path / "runs", project)
    assert {file.name: file.link for file in code.project if file.leads_out} == {
        "file": f"{outside}/large",
        "folder": str(outside),
    }
    copy = take_snapshot(code) / "project"
    assert (copy / "file").readlink() == outside / "large"
    assert (copy / "folder").readlink() == outside


def test_what_is_no_file_is_left_out(tmp_path: Path, project: Path) -> None:
    os.mkfifo(project / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(project / "socket"))
        assert names(take_snapshot(find_code(tmp_path / "runs", project))) == {"train.py", "package/é with space.py"}


def test_a_large_file_is_not_held_in_memory(tmp_path: Path, project: Path) -> None:
    (project / "large").touch()
    os.truncate(project / "large", 64 * 2**20)
    tracemalloc.start()
    try:
        copy = take_snapshot(find_code(tmp_path / "runs", project))
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    assert (copy / "project" / "large").stat().st_size == 64 * 2**20


def test_modes_and_times_are_kept(tmp_path: Path, project: Path) -> None:
    (project / "train.py").chmod(0o755)
    os.utime(project / "train.py", (1, 1))
    status = (take_snapshot(find_code(tmp_path / "runs", project)) / "project" / "train.py").stat()
    assert (status.st_mode & 0o777, status.st_mtime) == (0o555, 1)


def test_snapshots_have_in_common_the_files_that_are_the_same_and_nobody_writes_through_them(
    tmp_path: Path, project: Path
) -> None:
    first = take_snapshot(find_code(tmp_path / "runs", project))
    (project / "train.py").write_text("print(2)\n")
    second = take_snapshot(find_code(tmp_path / "runs", project))
    entry, again = (code / "lib" / "clusterctl" / "runs" / "entry.py" for code in (first, second))
    assert entry.samefile(again)
    assert entry.stat().st_mode & 0o222 == 0
    assert not (first / "project" / "train.py").samefile(second / "project" / "train.py")
    kept, same = (code / "project" / "package" / "é with space.py" for code in (first, second))
    assert kept.samefile(same)
    assert kept.stat().st_mode & 0o222 == 0


def test_without_hard_links_everything_is_copied(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", unsupported)
    code = take_snapshot(find_code(tmp_path / "runs", project))
    copied, original = code / "lib" / "clusterctl" / "runs" / "entry.py", Path(code_files.__file__)
    assert copied.read_bytes() == original.parents[1].joinpath("runs", "entry.py").read_bytes()


def test_nobody_can_write_to_what_runs_share(tmp_path: Path, project: Path) -> None:
    (project / "link.py").symlink_to(project / "train.py")
    (project / "run.sh").write_text("")
    (project / "run.sh").chmod(0o755)
    code = take_snapshot(find_code(tmp_path / "runs", project))
    shared = [code / "project", *(code / "project").rglob("*"), *(code / "lib").rglob("*.py")]
    assert [path for path in shared if not path.is_symlink() and path.stat().st_mode & 0o222] == []
    assert (code / "project" / "run.sh").stat().st_mode & 0o111 == 0o111
    assert (project / "train.py").stat().st_mode & 0o200
    assert (code / "lib" / "clusterctl").stat().st_mode & 0o200  # Python keeps what it compiled there


def test_a_project_that_is_too_large_is_refused_with_a_way_out(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "LARGEST_BYTES", 5)
    (project / "package" / "weights.bin").write_bytes(b"x" * 2**20)
    with pytest.raises(ConfigError, match=r"holds more.*the largest so far: package/ \(\d files, 1 MiB\)") as caught:
        take_snapshot(find_code(tmp_path / "runs", project))
    assert ".gitignore" in caught.value.hint
    with pytest.raises(ConfigError, match="no such folder"):
        take_snapshot(find_code(tmp_path / "runs", project / "none"))


def test_a_project_of_too_many_files_is_refused_before_they_are_all_looked_at(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "MOST_FILES", 1)
    with pytest.raises(ConfigError, match="more than 500 MiB or 1 files"):
        take_snapshot(find_code(tmp_path / "runs", project))


def test_the_files_of_a_submodule_are_the_projects_too(tmp_path: Path, project: Path) -> None:
    inner = project / "inner"
    inner.mkdir()
    (inner / "model.py").write_text("")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C"]
    for folder in (inner, project):
        subprocess.run([*git, folder, "init", "-q"], check=True)
        subprocess.run([*git, folder, "add", "."], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([*git, folder, "commit", "-q", "-m", "x"], check=True)
    assert "inner/model.py" in names(take_snapshot(find_code(tmp_path / "runs", project)))


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        take_snapshot(find_code(tmp_path / "runs", project))
    assert [path.name for path in (tmp_path / "runs" / ".code").iterdir()] == [".files"]
    assert list((tmp_path / "runs" / ".code" / ".files").iterdir()) == []

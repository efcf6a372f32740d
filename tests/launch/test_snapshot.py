"""Snapshots of code: by content, complete, bounded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterctl.errors import ConfigError
from clusterctl.launch import snapshot
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
    assert len(list((tmp_path / "runs" / ".code").iterdir())) == 2


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


def test_links_are_kept_and_runs_inside_the_project_are_not(tmp_path: Path, project: Path) -> None:
    (project / "link.py").symlink_to("train.py")
    (project / "dangling").symlink_to("nowhere")
    take_snapshot(find_code(project / "runs", project))
    found = names(take_snapshot(find_code(project / "runs", project)))
    assert found == {"train.py", "package/é with space.py", "link.py", "dangling"}


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
    monkeypatch.setattr(snapshot, "LARGEST_BYTES", 5)
    with pytest.raises(ConfigError, match="holds") as caught:
        take_snapshot(find_code(tmp_path / "runs", project))
    assert ".gitignore" in caught.value.hint
    with pytest.raises(ConfigError, match="no such folder"):
        take_snapshot(find_code(tmp_path / "runs", project / "none"))


def test_a_project_of_too_many_files_is_refused_before_they_are_all_looked_at(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_FILES", 1)
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

    monkeypatch.setattr("shutil.copy2", full)
    with pytest.raises(OSError, match="No space"):
        take_snapshot(find_code(tmp_path / "runs", project))
    assert list((tmp_path / "runs" / ".code").iterdir()) == []

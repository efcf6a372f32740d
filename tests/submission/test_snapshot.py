"""Snapshots of code: stored by content, complete, limited in size, and only the project's files."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batch_host import make_repository, write_index

import clusterctl
from clusterctl.launcher.config.shown import ProgressListener
from clusterctl.launcher.submission import code_files, snapshot
from clusterctl.launcher.submission.code_files import CodeFile, LargeCode, largest
from clusterctl.launcher.submission.git import git_state
from clusterctl.launcher.submission.snapshot import find_code, take_snapshot
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record import files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "package" / "é with space.py").write_text("")
    return folder


def names(code: Path) -> set[str]:
    return {str(path.relative_to(code / "project")) for path in (code / "project").rglob("*") if not path.is_dir()}


def test_identical_code_is_stored_once(tmp_path: Path, project: Path) -> None:
    first = take_snapshot(find_code(tmp_path / "runs", project))
    assert take_snapshot(find_code(tmp_path / "runs", project)) == first
    (project / "train.py").write_text("print(2)\n")
    second = take_snapshot(find_code(tmp_path / "runs", project))
    assert second != first
    assert (first / "project" / "train.py").read_text() == "print(1)\n"
    assert len(list((tmp_path / "runs" / ".code").glob("[!.]*"))) == 2


def test_clusterctl_is_included_without_bytecode(tmp_path: Path) -> None:
    code = take_snapshot(find_code(tmp_path / "runs", None))
    assert (code / "lib" / "clusterctl" / "shared" / "node" / "entry.py").is_file()
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


def test_links_inside_the_project_point_into_the_copy(tmp_path: Path, project: Path) -> None:
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


def test_targets_of_links_out_of_the_project_are_not_copied(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_pipes_and_sockets_are_left_out(tmp_path: Path, project: Path) -> None:
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


def test_snapshots_share_identical_files_read_only(tmp_path: Path, project: Path) -> None:
    first = take_snapshot(find_code(tmp_path / "runs", project))
    (project / "train.py").write_text("print(2)\n")
    second = take_snapshot(find_code(tmp_path / "runs", project))
    entry, again = (code / "lib" / "clusterctl" / "shared" / "node" / "entry.py" for code in (first, second))
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
    copied, original = code / "lib" / "clusterctl" / "shared" / "node" / "entry.py", Path(code_files.__file__)
    assert copied.read_bytes() == original.parents[2].joinpath("shared", "node", "entry.py").read_bytes()


def test_shared_files_are_read_only(tmp_path: Path, project: Path) -> None:
    (project / "link.py").symlink_to(project / "train.py")
    (project / "run.sh").write_text("")
    (project / "run.sh").chmod(0o755)
    code = take_snapshot(find_code(tmp_path / "runs", project))
    shared = [code / "project", *(code / "project").rglob("*"), *(code / "lib").rglob("*.py")]
    assert [path for path in shared if not path.is_symlink() and path.stat().st_mode & 0o222] == []
    assert (code / "project" / "run.sh").stat().st_mode & 0o111 == 0o111
    assert (project / "train.py").stat().st_mode & 0o200
    assert (code / "lib" / "clusterctl").stat().st_mode & 0o200  # Python writes bytecode there


def test_a_large_project_is_copied_only_on_request(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "LARGEST_BYTES", 200_000)
    (project / "package" / "weights.bin").write_bytes(b"x" * 2**20)
    with pytest.raises(LargeCode, match=r"contains 3 files, 1 MiB; the largest: package/ \(2 files, 1 MiB\)") as caught:
        find_code(tmp_path / "runs", project)
    assert ".gitignore" in caught.value.hint
    assert "`large_code=True`" in caught.value.hint
    assert "package/weights.bin" in names(take_snapshot(find_code(tmp_path / "runs", project, large=True)))
    with pytest.raises(ConfigError, match="no such folder"):
        find_code(tmp_path / "runs", project / "none")


def test_many_small_files_are_listed_before_one_larger_file() -> None:
    small = [CodeFile(f"data/{number}.txt", "", size=1) for number in range(1000)]
    files = [CodeFile("package/weights.bin", "", size=2**20), *small, CodeFile("job.toml", "", size=40)]
    assert largest(files) == "data/ (1,000 files, 0 MiB), package/ (1 file, 1 MiB), job.toml (0 MiB)"


def test_a_project_with_far_too_many_files_is_refused_early(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "MOST_FILES", 2)
    for number in range(50):
        (project / f"{number}").touch()
    with pytest.raises(LargeCode, match="contains more than 21 files"):
        find_code(tmp_path / "runs", project)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the project's files whose content was read for their digests."""
    files: list[str] = []
    library, digest = str(Path(clusterctl.__file__).parent), snapshot.digest_of

    def noted(file: CodeFile) -> str:
        if not file.source.startswith(library):
            files.append(file.name)
        return digest(file)

    monkeypatch.setattr(snapshot, "digest_of", noted)
    return files


def minutes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 60)


def test_only_changed_files_of_a_known_project_are_read(
    tmp_path: Path, project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    take_snapshot(find_code(runs, project))  # too recent to be cached
    minutes_pass(monkeypatch)
    first = take_snapshot(find_code(runs, project))
    read.clear()
    assert take_snapshot(find_code(runs, project)) == first
    assert read == []
    (project / "train.py").write_text("print(2)\n")
    os.utime(project / "train.py", ns=(0, (project / "package" / "é with space.py").stat().st_mtime_ns))
    second = take_snapshot(find_code(runs, project))
    assert read == ["train.py"]
    assert (second / "project" / "train.py").read_text() == "print(2)\n"
    (project / "train.py").chmod(0o755)
    assert find_code(runs, project).folder != second


def test_digests_are_cached_for_any_name_without_a_newline(
    tmp_path: Path, project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = ["tab\there.py", " blank ", "ret\rurn", os.fsdecode(b"\xff.py"), "a\nb.py"]
    for name in odd:
        (project / name).write_text(f"{odd.index(name)}\n")
    minutes_pass(monkeypatch)
    first = take_snapshot(find_code(tmp_path / "runs", project))
    read.clear()
    assert take_snapshot(find_code(tmp_path / "runs", project)) == first
    assert read == ["a\nb.py"]


def test_an_unchanged_file_is_not_opened_and_its_cached_digest_is_kept(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes_pass(monkeypatch)
    take_snapshot(find_code(tmp_path / "runs", project))
    kept = {path: path.read_text().splitlines() for path in (tmp_path / "runs" / ".code" / ".digests").iterdir()}
    (project / "train.py").write_text("print(2)\n")
    calls: list[str] = []

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, *how, **more: calls.append(str(path)) or call(path, *how, **more)

    for name in ("open", "stat", "lstat"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    code = find_code(tmp_path / "runs", project)
    files = {file.source for file in code.project if file.link is None}
    assert [path for path in calls if path in files] == [str(project / "train.py")]
    take_snapshot(code)
    monkeypatch.undo()
    assert sum(map(len, kept.values())) > len(code.library) + len(files)  # a line each
    for path, lines in kept.items():
        changed = set(path.read_text().splitlines()[2:]) ^ set(lines[2:])
        assert all(line.endswith(" train.py") for line in changed)


def test_a_recently_changed_file_is_read_again(tmp_path: Path, project: Path, read: list[str]) -> None:
    take_snapshot(find_code(tmp_path / "runs", project))
    read.clear()
    take_snapshot(find_code(tmp_path / "runs", project))
    assert read.count("train.py") == 1


def test_every_file_on_a_network_file_system_is_opened(
    tmp_path: Path, project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes_pass(monkeypatch)
    take_snapshot(find_code(tmp_path / "runs", project))
    monkeypatch.setattr(files, "LOCAL", set())
    opened: list[object] = []
    os_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *how, **at: opened.append(path) or os_open(path, *how, **at))
    read.clear()
    code = find_code(tmp_path / "runs", project)
    assert read == []
    assert {file.source for file in code.project} <= set(opened)


@pytest.mark.parametrize("damage", [lambda text: "", lambda text: text[:-9], lambda text: text.replace("-444", "-555")])
def test_a_damaged_digest_cache_is_dropped(
    damage: Callable[[str], str], tmp_path: Path, project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes_pass(monkeypatch)
    first = take_snapshot(find_code(tmp_path / "runs", project))
    for file in (tmp_path / "runs" / ".code" / ".digests").iterdir():
        file.write_text(damage(file.read_text()))
    assert find_code(tmp_path / "runs", project).folder == first
    assert read.count("train.py") == 2


def test_a_new_file_is_read_once_for_its_digest(
    tmp_path: Path, project: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes_pass(monkeypatch)
    take_snapshot(find_code(tmp_path / "runs", project))
    assert read.count("train.py") == 1


def test_a_new_file_takes_the_fewest_system_calls(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes_pass(monkeypatch)
    take_snapshot(find_code(tmp_path / "runs", project))
    files = [project / f"{number}.py" for number in range(100)]
    for file in files:
        file.write_text(f"{file}\n")
    calls: Counter[str] = Counter()
    recording = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if recording and ("/project/" in str(arguments) or type(arguments[0]) is int):
            calls[event] += 1

    def counting(name: str) -> Callable[..., Any]:
        call = getattr(os, name)
        return lambda *words: calls.update([name]) or call(*words)

    sys.addaudithook(hook)
    code = find_code(tmp_path / "runs", project)
    for name in ("fstat", "copy_file_range"):
        monkeypatch.setattr(os, name, counting(name))
    take_snapshot(code)
    recording = False
    assert {event: round(count / 100) for event, count in calls.items() if count >= 50} == {
        "open": 3,  # for its digest, to copy it, and the copy
        "os.link": 2,  # linking is tried instead of listing which files are new
        "os.chmod": 1,
        "os.utime": 1,
        "fstat": 2,  # to see that it is the listed file, and whether it changed while it was copied
        "copy_file_range": 1,
    }


@pytest.mark.parametrize("step", ["digest_of", "_add"])
def test_files_on_a_network_file_system_are_processed_in_parallel(
    step: str, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        (project / f"{number}.py").write_text(f"{number}")
    local = take_snapshot(find_code(tmp_path / "runs", project))
    monkeypatch.setattr(files, "LOCAL", set())
    real, together, begun = getattr(snapshot, step), threading.Barrier(2, timeout=30), itertools.count()

    def first_two_meet(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and next(begun) < 2:
            together.wait()
        return real(*arguments)

    monkeypatch.setattr(snapshot, step, first_two_meet)
    copy = take_snapshot(find_code(tmp_path / "others", project))
    assert next(begun) > 2
    assert copy.name == local.name
    assert names(copy) == names(local)
    assert (copy / "project" / "7.py").read_text() == "7"


def test_a_file_that_is_edited_while_it_is_copied_is_not_shared(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = find_code(tmp_path / "runs", project)
    minutes_pass(monkeypatch)
    (project / "train.py").write_text("print(3)\n")
    copy = take_snapshot(code)
    assert (copy / "project" / "train.py").stat().st_nlink == 1


def test_a_large_copy_reports_progress(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorder(ProgressListener):
        def __init__(self) -> None:
            self.steps: list[tuple[str, int | None]] = []
            self.done = 0

        def begin(self, text: str, total: int | None = None) -> None:
            self.steps.append((text, total))

        def advance(self, size: int) -> None:
            self.done += size

    (project / "weights.bin").write_bytes(b"x" * 1000)
    take_snapshot(find_code(tmp_path / "runs", project), small := Recorder())
    assert small.steps == []
    monkeypatch.setattr(snapshot, "_WORTH_A_BAR", 1000)
    (project / "train.py").write_text("print(2)\n")
    take_snapshot(find_code(tmp_path / "runs", project), large := Recorder())
    assert large.steps == [("copying the code: 3 files", 1009)]
    (project / "weights.bin").write_bytes(b"y" * 1000)
    take_snapshot(find_code(tmp_path / "runs", project, progress=large), large)
    assert large.steps[1:] == [("reading the code: 3 files", 1009), ("copying the code: 3 files", 1009)]
    assert large.done == 3 * 1009


def test_files_of_a_submodule_are_included(tmp_path: Path, project: Path) -> None:
    inner = project / "inner"
    inner.mkdir()
    (inner / "model.py").write_text("")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y", "-C"]
    for folder in (inner, project):
        subprocess.run([*git, folder, "init", "-q"], check=True)
        subprocess.run([*git, folder, "add", "."], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([*git, folder, "commit", "-q", "-m", "x"], check=True)
    assert "inner/model.py" in names(take_snapshot(find_code(tmp_path / "runs", project)))


@settings(max_examples=15)
@given(data=st.data())
def test_nothing_outside_the_project_is_read_or_written_whatever_git_lists(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Random links, folders and files, below and beside them, and an index with any names and submodules."""
    world = tmp_path_factory.mktemp("world")
    outside, project, runs = world / "outside", world / "a" / "project", world / "b" / "runs"
    for folder in (outside, outside / "d", project):
        folder.mkdir(parents=True)
        (folder / "x").write_text("SECRET" if folder != project else "")
        make_repository(folder)
    parts = st.sampled_from(["a", "d", "x", "..", ".", "", ".git", "outside"])
    paths = st.lists(parts, min_size=1, max_size=5).map("/".join)
    listed = data.draw(st.lists(paths, max_size=6, unique=True), "index")
    targets = st.sampled_from([str(outside), "../../outside", str(outside / "x"), "d", "..", "/"])
    for name, target in data.draw(st.dictionaries(st.sampled_from(["a", "d", "a/d", "d/a"]), targets), "links").items():
        parent = (project / name).parent
        if not parent.is_symlink() and not os.path.lexists(project / name):
            parent.mkdir(exist_ok=True)
            (project / name).symlink_to(target)
    submodules = data.draw(st.lists(paths, max_size=2).map(lambda names: dict.fromkeys(names, "1" * 40)), "submodules")
    write_index(project, listed, submodules)
    runs.parent.mkdir()
    (runs.parent / "errors.py").touch()
    before = {str(path.relative_to(world)) for path in world.rglob("*")}
    package = [CodeFile("errors.py", str(world / "b" / "errors.py"))]  # all of it would take a second
    with patch.object(snapshot, "package_files", lambda _: package):
        found = find_code(runs, project)
    copy = take_snapshot(found) / "project"
    git_state(project)
    new = {str(path.relative_to(world)) for path in world.rglob("*")} - before
    assert not [path for path in new if not path.startswith("b")]
    for path in copy.rglob("*"):
        assert copy.resolve() in path.parent.resolve().parents or path.parent.resolve() == copy.resolve()
        assert path.is_symlink() or path.is_dir() or "SECRET" not in path.read_text()
    for name in listed:
        if ".." in name.split("/"):
            assert any(line.endswith(f": {name.removesuffix('/')}") for line in found.ignored)


def test_a_name_below_a_link_is_left_out_and_reported(tmp_path: Path, project: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "id_rsa").write_text("SECRET")
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / "d").symlink_to(outside)
    (project / "z.py").touch()
    write_index(project, ["d/id_rsa", "../outside/id_rsa", "/train.py", "gone/file", "train.py"], {"d": "1" * 40})
    code = find_code(tmp_path / "runs", project)
    assert {*code.ignored} == {
        "a name in git's index that leads out of the project: ../outside/id_rsa",
        "a name in git's index that leads out of the project: /train.py",
        "a name in git's index below a link: d/id_rsa",
    }
    copy = take_snapshot(code)
    assert names(copy) == {"train.py", "z.py", "package/é with space.py"}
    assert (copy / "project" / "d").readlink() == outside


@pytest.mark.parametrize("exchanged", ["package", "package/inner"])
def test_a_folder_that_becomes_a_link_after_the_listing_is_not_followed(
    tmp_path: Path, project: Path, exchanged: str
) -> None:
    for folder in (project / "package" / "inner", tmp_path / "outside" / "inner"):
        folder.mkdir(parents=True)
        (folder / "x").write_text("SECRET")
    code = find_code(tmp_path / "runs", project)
    (project / exchanged).rename(tmp_path / "gone")
    (project / exchanged).symlink_to(tmp_path / "outside" / Path(exchanged).relative_to("package"))
    with pytest.raises(NotADirectoryError):
        take_snapshot(code)


def test_a_file_that_is_replaced_after_the_listing_is_copied(tmp_path: Path, project: Path) -> None:
    code = find_code(tmp_path / "runs", project)
    (project / "new").write_text("print(3)\n")
    (project / "new").rename(project / "train.py")  # as editors save
    assert (take_snapshot(code) / "project" / "train.py").read_text() == "print(3)\n"


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.copy_file_range", full)
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        take_snapshot(find_code(tmp_path / "runs", project))
    assert [path.name for path in (tmp_path / "runs" / ".code").iterdir()] == [".files"]
    assert list((tmp_path / "runs" / ".code" / ".files").iterdir()) == []

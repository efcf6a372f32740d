"""Files that are read while they are being written."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.node import script_start
from clusterctl.shared.node.events import Events
from clusterctl.shared.record import checkpoints, marks
from clusterctl.shared.record.files import (
    Lines,
    NotAFile,
    append,
    exists,
    is_folder,
    open_regular,
    read_beginning,
    read_json,
    read_lines,
    read_whole,
    rename,
    replacing,
    with_retries,
    write_first,
    write_json,
)
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import request_restart
from clusterctl.shared.record.ownership import make_private


def test_a_torn_last_line_and_a_foreign_line_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\nnonsense\n[1]\n{"a": 2}\n{"a": 3')
    assert list(read_lines(path)) == [{"a": 1}, {"a": 2}]


def test_a_missing_file_reads_as_empty(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none")) == []
    assert read_json(tmp_path / "none") is None


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(content: bytes) -> None:
    path = Path("/dev/shm/clusterctl-test-lines")
    path.write_bytes(content)
    try:
        assert all(isinstance(record, dict) for record in read_lines(path))
    finally:
        path.unlink()


def test_lines_that_a_full_disk_rejects_are_written_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, write, room = Lines(tmp_path / "x.jsonl"), os.write, [5]

    def scarce(descriptor: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(descriptor, content[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", scarce)
    for number in (1, 2):
        lines.append({"n": number})
    assert list(read_lines(tmp_path / "x.jsonl")) == []
    room[0] = 1000
    lines.append({"n": 3})
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"n": 1}, {"n": 2}, {"n": 3}]
    room[0] = 0
    for _ in range(10):
        lines.append({"fill": "x" * 100_000})
    with pytest.raises(OSError, match="No space left"):
        lines.append({"fill": "x" * 100_000})


def test_a_program_that_ends_on_a_full_disk_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, write, refused = Lines(tmp_path / "x.jsonl"), os.write, [3]

    def full(descriptor: int, content: bytes) -> int:
        refused[0] -= 1
        if refused[0] >= 0:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    lines.append({"n": 1})
    assert not lines.settle(0)
    assert lines.settle()
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"n": 1}]
    assert lines.settle(0)


def test_a_reader_sees_either_the_old_or_the_new_json(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"n": 0, "fill": "x" * 100_000})
    stop = threading.Event()

    def rewrite() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            write_json(path, {"n": n, "fill": "x" * 100_000})

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        assert all(len(json.loads(path.read_text())["fill"]) == 100_000 for _ in range(200))
    finally:
        stop.set()
        writer.join()


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    folder = make_private(tmp_path / "a" / "b")
    write_json(folder / "x.json", {})
    Lines(folder / "y.jsonl").append({})
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "x.json", folder / "y.jsonl")] == [
        0o700,
        0o600,
        0o600,
    ]


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    writers = [Lines(path) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda w=writer, n=number: [w.append({"n": n, "fill": "x" * 500}) for _ in range(100)])
        for number, writer in enumerate(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record["n"] for record in read_lines(path)) == sorted(list(range(4)) * 100)


def failing(call: Callable[..., Any], number: int, *, done: bool, times: int = 1) -> Callable[..., Any]:
    """`call`, but the first `times` calls fail: before doing anything, or after if `done`."""
    left = [times]

    def fails(*arguments: Any, **named: Any) -> Any:
        if not left[0]:
            return call(*arguments, **named)
        left[0] -= 1
        if done:
            call(*arguments, **named)
        raise OSError(number, os.strerror(number))

    return fails


@pytest.mark.parametrize("done", [False, True])
def test_a_line_is_written_once_despite_transient_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    lines = Lines(tmp_path / "x.jsonl")
    lines.append({"n": 1})
    monkeypatch.setattr(os, "write", failing(os.write, errno.EIO, done=done, times=2 - done))
    lines.append({"n": 2})
    monkeypatch.setattr(os, "write", failing(os.write, errno.EIO, done=done))
    assert append(tmp_path / "x.jsonl", b'{"n": 3}\n') == 9
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_checking_a_failed_write_is_retried_if_reading_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines(tmp_path / "x.jsonl")
    monkeypatch.setattr(os, "write", failing(os.write, errno.EIO, done=True))
    for place, name in ((Path, "open"), (os, "fdopen")):
        monkeypatch.setattr(place, name, failing(getattr(place, name), errno.EIO, done=False))
    lines.append({"n": 1})
    monkeypatch.undo()
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"n": 1}]


def test_a_partially_written_line_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", failing(lambda fd, content: write(fd, content[:4]), errno.EIO, done=True))
    assert append(tmp_path / "x.jsonl", b'{"n": 3}\n') == 9
    assert list(read_lines(tmp_path / "x.jsonl")) == [{"n": 3}]


def test_partially_written_megabytes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, content = os.write, b"".join(b'{"n": %d}\n' % n for n in range(200_000))
    monkeypatch.setattr(os, "write", failing(lambda fd, content: write(fd, content[:1_000_003]), errno.EIO, done=True))
    assert append(tmp_path / "x.jsonl", content) == len(content)
    assert (tmp_path / "x.jsonl").read_bytes() == content


@pytest.mark.parametrize("done", [False, True])
def test_the_folder_of_a_new_file_is_created_despite_transient_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(os, "mkdir", failing(os.mkdir, errno.ESTALE, done=done))
    Lines(tmp_path / "events" / "x.jsonl").append({"n": 1})
    assert list(read_lines(tmp_path / "events" / "x.jsonl")) == [{"n": 1}]


@pytest.mark.parametrize("done", [False, True])
def test_json_is_written_renamed_and_read_despite_transient_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(Path, "replace", failing(Path.replace, errno.EIO, done=done))
    write_json(tmp_path / "x.json", {"a": 1})
    monkeypatch.setattr(os, "open", failing(os.open, errno.ESTALE, done=False))
    assert read_json(tmp_path / "x.json") == {"a": 1}
    monkeypatch.setattr(Path, "rename", failing(Path.rename, errno.EIO, done=done))
    assert rename(tmp_path / "x.json", tmp_path / "y.json") == tmp_path / "y.json"
    assert read_json(tmp_path / "y.json") == {"a": 1}


def test_existing_paths_are_found_despite_transient_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", failing(os.stat, errno.ESTALE, done=False))
    assert exists(tmp_path)
    monkeypatch.setattr(os, "stat", failing(os.stat, errno.EIO, done=False))
    assert is_folder(tmp_path)
    assert not is_folder(tmp_path / "missing")
    assert not exists(tmp_path / "no\0name")


def test_permanent_errors_are_raised_at_once_and_transient_ones_after_retries(tmp_path: Path) -> None:
    calls: list[int] = []

    def broken(number: int) -> None:
        calls.append(number)
        raise OSError(number, os.strerror(number))

    for number, times in ((errno.EACCES, 1), (errno.EIO, 4)):
        calls.clear()
        with pytest.raises(OSError, match=os.strerror(number)):
            with_retries(lambda number=number: broken(number))
        assert len(calls) == times
    with pytest.raises(FileNotFoundError):
        rename(tmp_path / "none", tmp_path / "y")


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("write", [write_json, script_start.write])
def test_a_new_file_whose_creation_the_kernel_repeats_is_made_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, write: Callable[[Path, dict[str, Any]], None]
) -> None:
    """After ESTALE it repeats the open, which has made the file: seen on the late file system of the tests."""
    made: list[Path] = []
    really = os.open

    def repeated(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and len(made) < times:
            made.append(path)
            os.close(really(path, flags, mode))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", repeated)
    write(tmp_path / "origin.json", {"checkpoint": "0-20"})
    assert read_json(tmp_path / "origin.json") == {"checkpoint": "0-20"}
    assert len(made) == times


@pytest.mark.parametrize("target", ["victim", "nowhere"])
def test_a_new_file_is_never_written_through_a_planted_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Others may write to the folder, and may have guessed the temporary name."""
    (tmp_path / "victim").write_text("precious")
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f".x.json.{bytes(4).hex()}").symlink_to(tmp_path / target)
    (tmp_path / "x.json").symlink_to(tmp_path / target)
    with pytest.raises(FileExistsError):
        write_json(tmp_path / "x.json", {})
    monkeypatch.undo()
    write_json(tmp_path / "x.json", {})
    assert not (tmp_path / "x.json").is_symlink()
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_the_first_of_many_writers_is_whole_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hang.json"
    with ThreadPoolExecutor(8) as pool:
        first = [*pool.map(lambda number: write_first(path, {"by": number}), range(40))]
    assert first.count(True) == 1
    assert json.loads(path.read_text()) == {"by": first.index(True)}
    assert [*tmp_path.iterdir()] == [path]
    path.unlink()
    monkeypatch.setattr(os, "link", refused_link)
    assert [write_first(path, {"by": number}) for number in (1, 2)] == [True, False]
    assert [*tmp_path.iterdir()] == [path]


def refused_link(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_failed_replacement_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("before")
    with pytest.raises(TypeError), replacing(tmp_path / "x") as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "before"


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "make", [pipe, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to("/dev/ptmx")]
)
@pytest.mark.parametrize("read", [open_regular, read_whole, read_json, lambda path: read_beginning(path, 10)])
def test_anything_but_a_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    make(tmp_path / "x")
    with pytest.raises(NotAFile, match="not a regular file"):
        read(tmp_path / "x")


def test_a_sparse_file_of_any_size_is_read_up_to_a_limit(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(2**38)
    assert len(read_beginning(tmp_path / "x", 1000)) == 1000
    with pytest.raises(ValueError, match="larger than 16 MiB"):
        read_whole(tmp_path / "x")


def test_the_directory_of_a_run_that_was_moved_while_it_runs_does_not_reappear(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(0)
    attempt.path.mkdir(parents=True)
    events = Events(attempt, 0)
    events.began(0, 0)
    run.path.rename(tmp_path / "moved")
    for write in (
        lambda: events.exit(1),
        lambda: Events(attempt, 1).began(1, 0),
        lambda: Lines(attempt.metrics, run.path),
        lambda: marks.ask_for_restart(attempt, progress=True),
        lambda: request_restart(attempt, "warned"),
        lambda: checkpoints.write_aside(attempt, 10),
        lambda: write_json(attempt.hang_json, {}),
    ):
        with suppress(OSError):
            write()
        assert not run.path.exists()
    assert RunDir(tmp_path / "moved").attempt(0).events(0).exists()

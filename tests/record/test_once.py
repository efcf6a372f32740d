from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.shared.record.once import LeaseTaken, leased_briefly, prepared_once


def writing(calls: list[Path]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        calls.append(folder)
        (folder / "data").write_text("whole")

    return prepare


def test_concurrent_callers_prepare_once_and_leave_nothing_behind(tmp_path: Path) -> None:
    calls: list[Path] = []
    target = tmp_path / "cache" / "cora-1"
    second = threading.Event()

    def prepare(folder: Path) -> None:
        writing(calls)(folder)
        if len(calls) == 1:
            second.wait(1.0)  # gives the other threads time to start
        else:
            second.set()

    threads = [threading.Thread(target=prepared_once, args=(target, prepare)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert (target / "data").read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_an_existing_folder_is_not_prepared_again(tmp_path: Path) -> None:
    calls: list[Path] = []
    for _ in range(2):
        assert prepared_once(tmp_path / "d", writing(calls)) == tmp_path / "d"
    assert len(calls) == 1


def test_a_failed_preparation_leaves_nothing_and_can_be_retried(tmp_path: Path) -> None:
    def failing(folder: Path) -> None:
        (folder / "data").write_text("half")
        raise ValueError("broken file")

    with pytest.raises(ValueError, match="broken file"):
        prepared_once(tmp_path / "d", failing)
    assert list(tmp_path.iterdir()) == []
    prepared_once(tmp_path / "d", writing([]))
    assert (tmp_path / "d" / "data").read_text() == "whole"


def test_the_lease_of_a_killed_holder_is_taken_over_with_its_leftovers(tmp_path: Path) -> None:
    leftovers = tmp_path / ".d.lease" / "half"
    leftovers.mkdir(parents=True)
    prepared_once(tmp_path / "d", writing([]), stale_seconds=0.2)
    assert list(tmp_path.iterdir()) == [tmp_path / "d"]


CHANGES = {"os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.utime", "shutil.rmtree", "open"}


@pytest.mark.parametrize("damaged", [False, True], ids=["new", "damaged"])
def test_wherever_a_holder_is_killed_the_next_caller_gets_the_whole_folder(tmp_path: Path, damaged: bool) -> None:
    """Before each change that it makes to the disk."""

    def is_whole(folder: Path) -> bool:
        return (folder / "data").read_text() == "whole"

    for number in itertools.count():
        target = tmp_path / str(number) / "d"
        if damaged:
            target.mkdir(parents=True)
            (target / "data").write_text("half")
        pid = os.fork()
        if pid == 0:
            _kill_before_change(number, target.parent)
            prepared_once(target, writing([]), whole=is_whole)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        calls: list[Path] = []
        prepared_once(target, writing(calls), stale_seconds=0.05, whole=is_whole)
        assert is_whole(target), number
        if os.waitstatus_to_exitcode(status) == 0:
            break
    assert calls == []
    assert number >= 6, "mkdir of the folder, the lease and the work, a file, its rename, and the lease's end"


def _kill_before_change(number: int, folder: Path) -> None:
    left = itertools.count(number, -1)

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event in CHANGES and str(arguments[0]).startswith(str(folder)) and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def test_callers_wait_for_a_lease_that_is_kept_alive(tmp_path: Path) -> None:
    lease = tmp_path / ".d.lease"
    lease.mkdir()
    waiting = threading.Thread(target=prepared_once, args=(tmp_path / "d", writing(calls := []), 1.0))
    waiting.start()
    for beat in range(8):  # longer than a lease lasts without renewal
        os.utime(lease, (beat, beat))
        waiting.join(timeout=0.2)
    assert calls == []
    (lease / "made").mkdir()
    (lease / "made").rename(tmp_path / "d")
    waiting.join()
    assert calls == []


def test_the_first_of_two_lease_holders_wins(tmp_path: Path) -> None:
    def overtaken(folder: Path) -> None:
        (folder / "data").write_text("late")
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "data").write_text("first")

    prepared_once(tmp_path / "d", overtaken)
    assert (tmp_path / "d" / "data").read_text() == "first"
    assert list(tmp_path.iterdir()) == [tmp_path / "d"]


def test_an_incomplete_folder_is_prepared_again_once(tmp_path: Path) -> None:
    target = tmp_path / "d"
    target.mkdir()
    (target / "data").write_text("half")
    calls: list[Path] = []

    def whole(folder: Path) -> bool:
        try:
            return (folder / "data").read_text() == "whole"
        except FileNotFoundError:  # another thread is replacing it
            return False

    threads = [
        threading.Thread(target=prepared_once, args=(target, writing(calls)), kwargs={"whole": whole}) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert (target / "data").read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_brief_lease_is_refused_at_once_until_it_is_too_old_for_a_living_holder(tmp_path: Path) -> None:
    lease = tmp_path / "lease"
    with leased_briefly(lease, 60), pytest.raises(LeaseTaken), leased_briefly(lease, 60):
        pass
    assert list(tmp_path.iterdir()) == []
    lease.mkdir()  # of a process that was killed
    os.utime(lease, (0, 0))
    with leased_briefly(lease, 60):
        assert list(tmp_path.iterdir()) == [lease]
    assert list(tmp_path.iterdir()) == []

"""Processing many files in parallel: results in order, and no new work after an error."""

from __future__ import annotations

import threading
import time

import pytest

from clusterctl.launcher.submission.code_files import in_threads


@pytest.mark.parametrize("remote", [False, True])
def test_results_come_in_order(remote: bool) -> None:
    assert list(in_threads(lambda number: number**2, range(1000), remote=remote)) == [n**2 for n in range(1000)]


def test_local_files_need_no_threads() -> None:
    assert set(in_threads(lambda _: threading.get_ident(), range(1000), remote=False)) == {threading.get_ident()}


def test_after_an_error_nothing_new_is_started() -> None:
    started: list[int] = []

    def work(number: int) -> None:
        started.append(number)
        if number == 5:
            raise OSError("full")
        time.sleep(0.001)

    with pytest.raises(OSError, match="full"):
        list(in_threads(work, range(100_000), remote=True))
    done = len(started)
    assert done < 10_000
    time.sleep(0.01)
    assert len(started) == done

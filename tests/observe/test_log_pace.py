"""Scheduling the polls of followed logs."""

from __future__ import annotations

import pytest

from clusterctl.launcher.observe.logs import LONGEST_SECONDS, OPENS_A_SECOND, SIZES_A_SECOND, LogPace

LOOK = 0.25


def looks(pace: LogPace[int], count: int, since: float, seconds: float) -> list[tuple[float, set[int], set[int]]]:
    """The polls of `count` silent files: when, which are stat'ed, and which are opened."""
    times = [since + LOOK * number for number in range(int(seconds / LOOK))]
    found = []
    for now in times:
        if pace.is_due(now):
            found.append((now, *pace.look(range(count), now)))
            pace.saw([], now)
    return found


@pytest.mark.parametrize("count", [2, 64, 8_192, 131_072])
def test_a_silent_minute_costs_little_whatever_the_number_of_logs(count: int) -> None:
    pace = LogPace[int]()
    looks(pace, count, 0.0, 60.0)
    minute = looks(pace, count, 60.0, 60.0)
    assert sum(len(sizes) for _, sizes, _ in minute) <= 60 * SIZES_A_SECOND
    assert sum(len(opened) for _, _, opened in minute) <= 60 * OPENS_A_SECOND
    assert len(minute) == 60 / LONGEST_SECONDS


def test_every_log_of_4096_ranks_is_checked_within_ten_seconds() -> None:
    pace, count = LogPace[int](), 8_192
    looks(pace, count, 0.0, 60.0)
    for pause in (0.0, 0.7, 1.9):  # starting anywhere in the round
        seen = set().union(*(sizes for _, sizes, _ in looks(pace, count, 60.0 + 100 * pause, 10.0)))
        assert seen == set(range(count))


def test_few_logs_are_opened_per_poll_of_a_silent_run() -> None:
    """On NFS, opening a file shows what was added; stat may return a size that is a minute old."""
    pace = LogPace[int]()
    looks(pace, 2 * 16, 0.0, 60.0)
    assert all(len(opened) == 32 for _, _, opened in looks(pace, 32, 60.0, 10.0))


def test_growing_logs_are_polled_four_times_per_second_and_a_find_triggers_a_full_poll() -> None:
    pace, count = LogPace[int](), 8_192
    looks(pace, count, 0.0, 60.0)
    pace.look(range(count), 62.0)
    pace.saw([7], 62.0)
    assert not pace.is_due(62.2)
    assert pace.is_due(62.25)
    sizes, _ = pace.look(range(count), 62.25)
    assert sizes == set(range(count))
    pace.saw([7], 62.25)
    sizes, _ = pace.look(range(count), 62.5)
    assert 7 in sizes
    assert len(sizes) <= SIZES_A_SECOND * LOOK + 1


def test_a_clock_set_back_does_not_stop_polling() -> None:
    pace = LogPace[int]()
    pace.look([1], 1000.0)
    pace.saw([], 1000.0)
    assert pace.is_due(10.0)

"""At which logs of a followed run to look, and when."""

from __future__ import annotations

import pytest

from clusterctl.observe.log_pace import LONGEST_SECONDS, OPENS_A_SECOND, SIZES_A_SECOND, LogPace

LOOK = 0.25


def looks(pace: LogPace[int], count: int, since: float, seconds: float) -> list[tuple[float, set[int], set[int]]]:
    """The looks at so many files while nothing is added: when, whose sizes, and which are opened."""
    times = [since + LOOK * number for number in range(int(seconds / LOOK))]
    found = []
    for now in times:
        if pace.is_due(now):
            found.append((now, *pace.look(range(count), now)))
            pace.saw([], now)
    return found


@pytest.mark.parametrize("count", [2, 64, 8_192, 131_072])
def test_a_minute_of_silence_costs_little_whatever_the_number_of_logs(count: int) -> None:
    pace = LogPace[int]()
    looks(pace, count, 0.0, 60.0)
    minute = looks(pace, count, 60.0, 60.0)
    assert sum(len(sizes) for _, sizes, _ in minute) <= 60 * SIZES_A_SECOND
    assert sum(len(opened) for _, _, opened in minute) <= 60 * OPENS_A_SECOND
    assert len(minute) == 60 / LONGEST_SECONDS


def test_every_log_of_4096_ranks_is_looked_at_within_ten_seconds() -> None:
    pace, count = LogPace[int](), 8_192
    looks(pace, count, 0.0, 60.0)
    for pause in (0.0, 0.7, 1.9):  # wherever in the round it begins
        seen = set().union(*(sizes for _, sizes, _ in looks(pace, count, 60.0 + 100 * pause, 10.0)))
        assert seen == set(range(count))


def test_few_logs_are_opened_at_each_look_of_a_silent_run() -> None:
    """A file server tells of what was added when a file is opened; its sizes alone may be a minute old."""
    pace = LogPace[int]()
    looks(pace, 2 * 16, 0.0, 60.0)
    assert all(len(opened) == 32 for _, _, opened in looks(pace, 32, 60.0, 10.0))


def test_a_log_that_grows_is_looked_at_four_times_a_second_and_what_a_turn_finds_is_a_reason_to_look_at_all() -> None:
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


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    pace = LogPace[int]()
    pace.look([1], 1000.0)
    pace.saw([], 1000.0)
    assert pace.is_due(10.0)

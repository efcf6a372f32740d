"""Which ranks slow the others down."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.diagnosis.running import stragglers


def test_small_differences_and_single_ranks_are_not_reported() -> None:
    assert stragglers({0: 0.1, 1: 0.14}) == []
    assert stragglers({0: 0.0001, 1: 0.001}) == []
    assert stragglers({0: 0.1}) == stragglers({}) == []


def test_ranks_without_data_are_ignored() -> None:
    assert stragglers({0: None, 1: None}) == stragglers({0: None, 1: 9.0}) == []


def test_the_slower_of_two_ranks_is_reported_and_the_slowest_of_many_first() -> None:
    assert [straggler.rank for straggler in stragglers({0: 0.1, 1: 0.2})] == [1]
    found = stragglers({**dict.fromkeys(range(20, 30), 0.1), 0: 0.1, 3: 0.4, 9: 1.0})
    assert [straggler.rank for straggler in found] == [9, 3]
    assert [round(straggler.slowdown) for straggler in found] == [10, 4]


@given(st.dictionaries(st.integers(0, 99), st.none() | st.floats(0, 1e9)))
def test_never_more_than_half_of_the_ranks_are_stragglers(busy: dict[int, float | None]) -> None:
    known = [seconds for seconds in busy.values() if seconds is not None]
    assert 2 * len(stragglers(busy)) <= len(known)

"""Which ranks hold the others up."""

from __future__ import annotations

from clusterctl.insight.slow_ranks import Pace, Straggler, stragglers


def test_a_rank_that_takes_half_as_long_again_is_a_straggler() -> None:
    paces = {rank: Pace(1.0, 100) for rank in range(8)} | {3: Pace(1.6, 100)}
    assert stragglers(paces) == [Straggler(3, 1.6, 0.0)]


def test_a_rank_behind_the_others_comes_first() -> None:
    paces = {rank: Pace(1.0, 100) for rank in range(8)} | {3: Pace(1.6, 100), 5: Pace(1.0, 90)}
    assert [straggler.rank for straggler in stragglers(paces)] == [5, 3]


def test_of_two_ranks_nobody_can_say_which_one_is_slow() -> None:
    assert stragglers({0: Pace(1.0, 10), 1: Pace(9.0, 1)}) == []


def test_ranks_that_have_said_nothing_are_no_stragglers() -> None:
    assert stragglers({rank: Pace() for rank in range(4)}) == []
    assert stragglers({0: Pace(), 1: Pace(1.0, 5), 2: Pace(1.0, 5), 3: Pace(1.0, 4)}) == []

"""The marks that the batch script reads: only their names matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.shared.node.events import Events
from clusterctl.shared.record.files import is_listed
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.marks import RankMark, all_done, ask_for_restart, restart_file


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return RunDir(tmp_path).attempt(0)


def names(attempt: Attempt) -> list[str]:
    return sorted(path.name for path in attempt.marks.iterdir())


def test_a_rank_has_one_mark_named_after_its_state(attempt: Attempt) -> None:
    ranks = [RankMark(attempt, rank) for rank in range(5)]
    for rank in ranks:
        rank.begin()
    for rank, code in zip(ranks, (0, 143, 70, 75), strict=False):
        rank.end(code)
    assert names(attempt) == ["00000.done", "00001.term", "00002.asked", "00003.asked", "00004.running"]


def test_a_rank_that_was_terminated_may_still_finish(attempt: Attempt) -> None:
    rank = RankMark(attempt, 12345)
    rank.begin()
    rank.end(143)
    rank.end(0)
    assert names(attempt) == ["12345.done"]


def test_a_rank_that_lost_its_connections_is_not_one_that_srun_has_ended(attempt: Attempt) -> None:
    first, second = RankMark(attempt, 0), RankMark(attempt, 1)
    for rank in (first, second):
        rank.begin()
    first.end(1, cut=True)
    first.end(143)
    second.end(143)
    second.end(1, cut=True)
    assert names(attempt) == ["00000.cut", "00001.cut"]


def test_a_missing_mark_does_not_stop_a_rank_from_exiting(attempt: Attempt) -> None:
    RankMark(attempt, 0).end(0)


def test_the_events_of_a_rank_move_its_mark(attempt: Attempt) -> None:
    events = Events(attempt, 7)
    assert not attempt.marks.exists()
    events.began(0, 0)
    assert names(attempt) == ["00007.running"]
    events.exit(75)
    assert names(attempt) == ["00007.asked"]


def test_a_restart_is_requested_by_a_file(attempt: Attempt) -> None:
    assert not is_listed(restart_file(attempt))
    ask_for_restart(attempt, progress=True)
    assert is_listed(restart_file(attempt))
    assert names(attempt) == ["restart"]


def test_an_attempt_without_progress_is_marked(attempt: Attempt) -> None:
    ask_for_restart(attempt, progress=False)
    assert names(attempt) == ["no-progress", "restart"]


def test_all_done_means_every_rank_exited_with_0_and_no_restart_is_requested(attempt: Attempt) -> None:
    assert not all_done(attempt, 2)
    ranks = [RankMark(attempt, rank) for rank in range(2)]
    for rank in ranks:
        rank.begin()
        assert not all_done(attempt, 2)
        rank.end(0)
    assert all_done(attempt, 2)
    assert not all_done(attempt, 3)
    ask_for_restart(attempt, progress=True)
    assert not all_done(attempt, 2)

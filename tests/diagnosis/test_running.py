"""How a run that goes on is doing, from its heartbeats alone."""

from __future__ import annotations

from dataclasses import replace

from support.traces import BEAT, END, attempt, rank, trace

from clusterctl.diagnosis.diagnose import Diagnosis, judge
from clusterctl.errors import Cause
from clusterctl.runs.heartbeats import Beat
from clusterctl.runs.stages import Stage


def of(*beats: Beat | None) -> Diagnosis:
    """What is said, two seconds after the newest beat, of four ranks with these beats."""
    placed = [beat and replace(beat, host=f"n{number}") for number, beat in enumerate(beats)]
    ranks = [rank(number, exit_code=None, ended=None, beat=beat) for number, beat in enumerate(placed)]
    newest = max((beat.time for beat in beats if beat), default=END)
    told = trace(attempt(*ranks, exit_code=None, end=None), stage=Stage.TRAINING)
    return judge(replace(told, now=newest + 2))


def test_a_healthy_run_says_its_step_and_pace() -> None:
    found = of(BEAT, BEAT, BEAT, BEAT).headline
    assert (found.cause_class, found.step, found.attempt) == (Cause.HEALTHY, 40, 0)
    assert "4 of 4 ranks get on: training, step 40, 100 ms a step" in found.cause


def test_a_rank_that_writes_no_more_while_others_do_is_named() -> None:
    found = of(BEAT, BEAT, replace(BEAT, time=BEAT.time - 40), BEAT).headline
    assert (found.cause_class, found.rank, found.node) == (Cause.HANG, 2, "n2")
    assert "40 s" in found.cause


def test_a_node_that_fell_silent_with_all_its_ranks_is_named() -> None:
    late = rank(2).beat
    assert late
    ranks = [rank(number, exit_code=None, beat=replace(late, time=END - 40 * (number > 1))) for number in range(4)]
    told = trace(attempt(*ranks, exit_code=None, end=None), stage=Stage.TRAINING)
    found = judge(replace(told, now=END + 2)).headline
    assert (found.cause_class, found.rank, found.node, found.certainty) == (Cause.NODE, None, "node2", "likely")


def test_the_rank_for_which_the_others_wait_is_named() -> None:
    late = replace(BEAT, step_time=BEAT.time - 90, since=BEAT.time - 500)
    waiting = replace(late, waiting=BEAT.time - 90)
    diagnosis = of(waiting, waiting, waiting, late)
    found = diagnosis.headline
    assert (found.cause_class, found.rank) == (Cause.HANG, 3)
    assert "90 s" in found.cause
    assert diagnosis.commands[-1].startswith("clusterctl cancel")


def test_a_long_evaluation_is_no_hang() -> None:
    found = of(*[replace(BEAT, phase="evaluating", since=BEAT.time - 1800, step_time=BEAT.time - 1800)] * 4).headline
    assert found.cause_class is Cause.HEALTHY


def test_where_no_rank_writes_any_more_the_nodes_are_suspected() -> None:
    told = trace(attempt(exit_code=None, end=None), stage=Stage.TRAINING)
    assert judge(replace(told, now=END + 600)).headline.cause_class is Cause.HANG


def test_ranks_without_a_heartbeat_are_told_as_not_known() -> None:
    assert "1 of 4 ranks" in of(BEAT, BEAT, BEAT, None).unknown[0]
    assert of(None, None, None, None).headline.certainty == "likely"


def test_a_straggler_is_named_with_its_slowdown() -> None:
    found = of(BEAT, replace(BEAT, busy_seconds=0.35), BEAT, BEAT).headline
    assert (found.cause_class, found.rank, found.node) == (Cause.STRAGGLER, 1, "n1")
    assert "3.5 times" in found.cause


def test_what_a_rank_does_besides_training_makes_it_no_straggler() -> None:
    assert of(BEAT, replace(BEAT, busy_seconds=9.0, phase="evaluating"), BEAT).headline.cause_class is Cause.HEALTHY


def test_a_suspended_run_is_not_taken_for_one_that_hangs() -> None:
    ranks = [rank(number, exit_code=None, beat=BEAT) for number in range(4)]
    told = trace(attempt(*ranks, exit_code=None, end=None), stage=Stage.TRAINING)
    told = replace(told, now=END + 600, status=replace(told.status, suspended=True))
    found = judge(told).headline
    assert (found.cause_class, found.certainty) == (Cause.PENDING, "certain")
    assert "suspended" in found.cause

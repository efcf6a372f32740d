"""The health of a running run, judged from its heartbeats."""

from __future__ import annotations

from dataclasses import replace

from support.traces import BEAT, END, attempt, rank, trace

from clusterctl.launcher.diagnosis.diagnose import Diagnosis, judge
from clusterctl.launcher.diagnosis.finding import Finding
from clusterctl.launcher.observe.attempt import Alarm
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.heartbeats import Beat
from clusterctl.shared.record.states import State


def of(*beats: Beat | None) -> Diagnosis:
    """The diagnosis of four ranks with these heartbeats, two seconds after the newest."""
    placed = [beat and replace(beat, host=f"n{number}") for number, beat in enumerate(beats)]
    ranks = [rank(number, exit_code=None, ended=None, beat=beat) for number, beat in enumerate(placed)]
    newest = max((beat.time for beat in beats if beat), default=END)
    evidence = trace(attempt(*ranks, exit_code=None, end=None), state=State.TRAINING)
    return judge(replace(evidence, now=newest + 2))


def test_a_healthy_run_shows_its_step_and_pace() -> None:
    found = of(BEAT, BEAT, BEAT, BEAT).headline
    assert (found.cause_class, found.step, found.attempt) == (Cause.HEALTHY, 40, 0)
    assert "4 of 4 ranks are making progress: training, step 40, 100 ms per step" in found.cause


ENDED = replace(BEAT, phase="ended")


def exiting(*codes: int | None) -> Finding:
    ranks = [
        rank(number, exit_code=code, ended=END if code is not None else None, beat=BEAT if code is None else ENDED)
        for number, code in enumerate(codes)
    ]
    evidence = trace(attempt(*ranks, exit_code=None, end=None), state=State.TRAINING)
    return judge(replace(evidence, now=END + 70)).headline if None not in codes else judge(evidence).headline


def test_a_run_whose_ranks_have_exited_is_not_making_progress() -> None:
    done = exiting(0, 0, 0, 0)
    assert (done.cause_class, done.certainty) == (Cause.HEALTHY, "likely")
    assert done.cause == "all 4 ranks have exited; its batch script has not recorded the end yet"
    failed = exiting(143, 3, 143, 143)
    assert failed.cause_class is Cause.PENDING
    assert failed.cause == "rank 0 exited with 143; its batch script has not recorded the end yet"
    assert "rank 1 exited with 3" in failed.facts


def test_ranks_that_have_exited_do_not_count_as_making_progress() -> None:
    found = exiting(3, None, None, None)
    assert (found.cause_class, found.certainty) == (Cause.HEALTHY, "likely")
    assert found.cause.startswith("3 of 4 ranks are making progress: training, step 40")
    assert found.facts == ("rank 0 exited with 3",)


def test_a_rank_whose_heartbeat_stopped_is_named() -> None:
    found = of(BEAT, BEAT, replace(BEAT, time=BEAT.time - 40), BEAT).headline
    assert (found.cause_class, found.rank, found.node) == (Cause.HANG, 2, "n2")
    assert "40 s" in found.cause


def test_a_node_whose_ranks_are_all_silent_is_named() -> None:
    late = rank(2).beat
    assert late
    ranks = [rank(number, exit_code=None, beat=replace(late, time=END - 40 * (number > 1))) for number in range(4)]
    evidence = trace(attempt(*ranks, exit_code=None, end=None), state=State.TRAINING)
    found = judge(replace(evidence, now=END + 2)).headline
    assert (found.cause_class, found.rank, found.node, found.certainty) == (Cause.NODE, None, "node2", "likely")


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    late = replace(BEAT, step_time=BEAT.time - 90, since=BEAT.time - 500)
    waiting = replace(late, waiting=BEAT.time - 90)
    diagnosis = of(waiting, waiting, waiting, late)
    found = diagnosis.headline
    assert (found.cause_class, found.rank) == (Cause.HANG, 3)
    assert "90 s" in found.cause
    assert diagnosis.commands[-1].startswith("clusterctl cancel")


def test_a_long_evaluation_is_not_a_hang() -> None:
    found = of(*[replace(BEAT, phase="evaluating", since=BEAT.time - 1800, step_time=BEAT.time - 1800)] * 4).headline
    assert found.cause_class is Cause.HEALTHY


def test_if_all_heartbeats_stopped_the_nodes_are_suspected() -> None:
    evidence = trace(attempt(exit_code=None, end=None), state=State.TRAINING)
    assert judge(replace(evidence, now=END + 600)).headline.cause_class is Cause.HANG


def test_ranks_without_a_heartbeat_are_reported_as_unknown() -> None:
    assert "1 of 4 ranks" in of(BEAT, BEAT, BEAT, None).unknown[0]
    assert of(None, None, None, None).headline.certainty == "likely"


def test_nodes_that_cannot_copy_the_modules_are_reported_from_the_start() -> None:
    lines = (
        "clusterctl: n2 imports from the shared file system: cannot copy modules to /disk/x: No space left on device\n"
        "clusterctl: n1 imports from the shared file system: cannot copy modules to /disk/x: Permission denied\n"
    )
    reason = "n1: cannot copy modules to /disk/x: Permission denied"
    for beat in (BEAT, None):
        ranks = [rank(number, exit_code=None, ended=None, beat=beat) for number in range(4)]
        evidence = trace(attempt(*ranks, lines=lines, exit_code=None, end=None), state=State.IMPORTING)
        facts = judge(replace(evidence, now=BEAT.time + 2)).headline.facts
        assert f"2 nodes import from the shared file system, which is slower; {reason}" in facts


def test_a_straggler_is_named_with_its_slowdown() -> None:
    found = of(BEAT, replace(BEAT, busy_seconds=0.35), BEAT, BEAT).headline
    assert (found.cause_class, found.rank, found.node) == (Cause.STRAGGLER, 1, "n1")
    assert "3.5 times" in found.cause


def test_time_outside_training_does_not_make_a_rank_a_straggler() -> None:
    assert of(BEAT, replace(BEAT, busy_seconds=9.0, phase="evaluating"), BEAT).headline.cause_class is Cause.HEALTHY


IDLE = replace(BEAT, step=0, step_time=None, step_seconds=None, slow_seconds=None, busy_seconds=None, idle=480.0)


def test_an_idle_program_that_logs_no_steps_is_not_healthy() -> None:
    diagnosis = of(IDLE, replace(IDLE, idle=485.0), replace(IDLE, idle=720.0), IDLE)
    found = diagnosis.headline
    assert (found.cause_class, found.rank, found.certainty) == (Cause.HANG, None, "likely")
    assert found.cause.startswith("logs no steps and has been idle since ")
    assert "480 s" in found.cause
    assert "the last active rank was rank 0 on n0" in found.facts
    assert any("reports it after 1800 s" in fact for fact in found.facts)
    assert any(command.startswith("clusterctl logs") for command in diagnosis.commands)


def test_idle_gpus_are_reported_while_steps_continue() -> None:
    idle = replace(BEAT, gpu_idle=400.0)
    found = of(idle, replace(idle, gpu_idle=900.0), idle, idle).headline
    assert (found.cause_class, found.rank, found.certainty) == (Cause.IDLE_GPUS, None, "certain")
    assert found.cause.startswith("all GPUs on all nodes have been idle since ")
    assert found.cause.endswith(": for 400 s")
    assert found.facts == ("set watchdog.idle_gpu to end such runs",)
    for busy in (replace(BEAT, gpu_idle=200.0), BEAT):
        assert of(idle, busy, idle, idle).headline.cause_class is Cause.HEALTHY


def test_a_long_evaluation_on_one_rank_is_not_a_hang() -> None:
    found = of(replace(IDLE, idle=0.0), IDLE, IDLE, IDLE).headline
    assert found.cause_class is Cause.HEALTHY
    assert found.cause == "logs no steps; 1 of 4 ranks were active within the last minute"
    assert found.facts == ("the other 3 have been idle for 480 s or more",)


def test_an_active_program_that_logs_no_steps_is_never_a_hang() -> None:
    ages = replace(IDLE, since=BEAT.time - 90_000, idle=3.0)
    found = of(ages, ages, ages, ages).headline
    assert (found.cause_class, found.cause) == (
        Cause.HEALTHY,
        "logs no steps; 4 of 4 ranks were active within the last minute",
    )


def test_the_watchdogs_report_on_idle_ranks_is_shown_while_they_are_idle() -> None:
    alarm = Alarm(END - 60, 0, "training", 1805.0, (), "idle")
    evidence = [rank(n, exit_code=None, beat=replace(IDLE, idle=1900.0), stacks=f"process {n}") for n in range(4)]
    stuck = trace(attempt(*evidence, exit_code=None, end=None, reported=alarm), state=State.TRAINING)
    found = judge(replace(stuck, now=END)).headline
    assert (found.cause_class, found.traceback) == (Cause.HANG, "rank 0:\nprocess 0")
    assert "noticed by the watchdog after 1805 s without progress" in found.facts
    alive = [replace(one, beat=replace(IDLE, idle=2.0)) for one in evidence]
    back = trace(attempt(*alive, exit_code=None, end=None, reported=alarm), state=State.TRAINING)
    assert judge(replace(back, now=END)).headline.cause_class is Cause.HEALTHY


def test_a_damaged_heartbeat_with_a_huge_idle_time_is_shown() -> None:
    assert "idle since 1970" in of(*[replace(IDLE, idle=1e308)] * 4).headline.cause.replace("1969", "1970")


def test_idle_ranks_are_explained_by_a_rank_that_exited() -> None:
    evidence = [rank(n, exit_code=None, ended=None, beat=IDLE) for n in range(4)]
    evidence[2] = rank(2, exit_code=0, ended=END - 500, beat=replace(IDLE, phase="ended", idle=None))
    found = judge(replace(trace(attempt(*evidence, exit_code=None, end=None), state=State.TRAINING), now=END)).headline
    assert (found.cause_class, found.facts[0]) == (Cause.HANG, "rank 2 had exited with 0 before")


def test_a_suspended_run_is_not_a_hang() -> None:
    ranks = [rank(number, exit_code=None, beat=BEAT) for number in range(4)]
    evidence = trace(attempt(*ranks, exit_code=None, end=None), state=State.TRAINING)
    evidence = replace(evidence, now=END + 600, status=replace(evidence.status, suspended=True))
    found = judge(evidence).headline
    assert (found.cause_class, found.certainty) == (Cause.PENDING, "certain")
    assert "suspended" in found.cause

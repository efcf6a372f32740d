"""The rules that decide the state of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.api import json_output
from clusterctl.launcher.display.runs_table import note
from clusterctl.launcher.observe.attempt import Answer, AttemptEvidence, LeftOut, RunEvidence
from clusterctl.launcher.observe.run_record import Condition, Predecessor, RunRecord
from clusterctl.launcher.observe.slurm_log import EndedBy
from clusterctl.launcher.observe.state import ARRIVAL_SECONDS, NEVER_STARTS, SUBMIT_SECONDS, judge, settled
from clusterctl.launcher.slurm import JobState, QueuedJob
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources

NOW = 10_000.0
LIMIT = 1200
RECORD = RunRecord(
    RunDir(Path("/runs/cora-20260102-030405-00a1")),
    NOW - 3600,
    Job(name="cora", workload="reddit", resources=Resources(time=LIMIT, warning=120), train=RedditTrain()),
    Cluster(name="site"),
)
A_MINUTE = replace(RECORD, job=replace(RECORD.job, resources=Resources(time=60, warning=15)))
WARM = replace(RECORD, allocation="12")
SUBMITTED = RunEvidence(RECORD, "12", None, None, ())
RUNNING = AttemptEvidence(number=0, job_id="12", start=5000.0, state=State.TRAINING)
DONE = replace(RUNNING, done=True)
FAILED = replace(RUNNING, end=5100.0, exit_code=1)
TERMINATED = replace(RUNNING, end=5100.0, exit_code=143, signal="TERM")
AT_LIMIT = replace(TERMINATED, end=5000.0 + LIMIT + 3)
REQUEUED = replace(RUNNING, end=5100.0, exit_code=75, requeued=True)
LEFT = replace(RUNNING, end=5100.0, exit_code=75, asked=True)  # warned, saved, and not restarted
LEFT_BEFORE_LIMIT = replace(LEFT, end=5000.0 + LIMIT - 120)
REQUEUING = replace(REQUEUED, requeued=False, requeuing=True)  # Slurm has not confirmed it
EXCLUDING = replace(RUNNING, end=5100.0, exit_code=69, requeued=True, excluded=(LeftOut("node2", "check", ""),))
GONE = Answer(None)


CHAINED = replace(RECORD, predecessors=(Predecessor("prepare-20260102-030405-00a1", Condition.FINISHED),))
NEVER_BEGAN = replace(SUBMITTED, record=CHAINED)


def job(state: JobState, reason: str = "", restart_count: int = 0) -> Answer:
    return Answer(QueuedJob("12", state, reason, "", None, 5200, restart_count, "/runs"))


def evidence(*attempts: AttemptEvidence, answer: Answer | None = None, **changes: object) -> RunEvidence:
    return replace(SUBMITTED, attempts=attempts, answer=answer, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (evidence(FAILED, finished_at=5.0), State.FINISHED),
        (evidence(FAILED), State.FAILED),
        (evidence(replace(FAILED, exit_code=0, done=True)), State.FINISHED),
        (evidence(replace(FAILED, exit_code=0)), State.FINISHED),  # finished.json and the markers become visible later
        (evidence(TERMINATED, cancelled_at=5090.0), State.CANCELLED),
        (evidence(AT_LIMIT), State.TIMED_OUT),
        (evidence(FAILED, replace(FAILED, number=1, exit_code=2)), State.FAILED),
        (evidence(LEFT), State.PREEMPTED),
        (evidence(LEFT_BEFORE_LIMIT), State.TIMED_OUT),
        (evidence(REQUEUED, cancelled_at=5200.0), State.CANCELLED),
        (
            evidence(replace(LEFT, end=5002.0), record=A_MINUTE),
            State.TIMED_OUT,
        ),  # warned a minute too early, as allowed
        (evidence(replace(FAILED, exit_code=75)), State.FAILED),  # the program's own code: nobody requested a restart
        # A cancellation that was requested, but refused by Slurm:
        (evidence(FAILED, cancelled_at=5090.0), State.FAILED),
        (evidence(replace(FAILED, exit_code=0), cancelled_at=5090.0), State.FINISHED),
        (evidence(replace(FAILED, exit_code=137, refused=Refusal.CANCELLED), cancelled_at=5090.0), State.CANCELLED),
        # Slurm's words take precedence over the time limit at submission:
        (evidence(replace(AT_LIMIT, ended_by=EndedBy.CANCELLATION)), State.CANCELLED),
        (evidence(replace(TERMINATED, ended_by=EndedBy.TIME_LIMIT)), State.TIMED_OUT),
        (evidence(replace(FAILED, exit_code=143, ended_by=EndedBy.CANCELLATION)), State.CANCELLED),
        (evidence(replace(LEFT, limit=240)), State.TIMED_OUT),  # shortened by hand
        (evidence(replace(LEFT_BEFORE_LIMIT, limit=86_400)), State.PREEMPTED),  # extended
    ],
)
def test_ends_that_files_alone_decide(known: RunEvidence, state: State) -> None:
    assert settled(known)
    status = judge(known, NOW)
    assert (status.state, status.sure) == (state, True)


@pytest.mark.parametrize(
    "open_",
    [evidence(), evidence(RUNNING), evidence(TERMINATED), evidence(cancelled_at=1.0), evidence(FAILED, RUNNING)],
)
def test_states_that_need_slurm(open_: RunEvidence) -> None:
    assert not settled(open_)
    assert not judge(open_, NOW).sure


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (evidence(answer=job(JobState.PENDING)), State.QUEUED),
        (evidence(RUNNING, answer=job(JobState.PENDING)), State.TRAINING),  # it started after the answer
        (evidence(TERMINATED, answer=job(JobState.PENDING)), State.QUEUED),
        (evidence(REQUEUED, answer=job(JobState.PENDING, restart_count=1)), State.QUEUED),
        (evidence(REQUEUED, answer=job(JobState.COMPLETING)), State.QUEUED),
        (evidence(REQUEUED, answer=job(JobState.RUNNING, restart_count=1)), State.STARTING),
        (evidence(REQUEUED, answer=GONE), State.LOST),
        (evidence(REQUEUING, answer=GONE), State.LOST),
        (evidence(REQUEUING, answer=job(JobState.RUNNING)), State.TRAINING),  # its script holds the nodes
        (evidence(REQUEUING, answer=job(JobState.PENDING, restart_count=1)), State.QUEUED),
        (evidence(REQUEUING, answer=job(JobState.COMPLETING)), State.QUEUED),
        (evidence(REQUEUING, answer=job(JobState.RUNNING, restart_count=1)), State.STARTING),
        (evidence(replace(REQUEUING, ended_by=EndedBy.REQUEUE), answer=job(JobState.RUNNING)), State.QUEUED),
        (evidence(REQUEUING, answer=job(JobState.NODE_FAIL)), State.FAILED),
        (evidence(replace(REQUEUED, in_vain="clusterctl[launch]: x"), answer=GONE), State.FAILED),
        (evidence(replace(AT_LIMIT, ended_by=EndedBy.PREEMPTION), answer=job(JobState.PENDING)), State.QUEUED),
        (evidence(REQUEUED, answer=job(JobState.CANCELLED)), State.CANCELLED),
        (evidence(answer=job(JobState.RUNNING)), State.STARTING),
        (evidence(answer=job(JobState.CONFIGURING)), State.STARTING),
        (evidence(RUNNING, answer=job(JobState.RUNNING)), State.TRAINING),
        (evidence(replace(RUNNING, state=None), answer=job(JobState.RUNNING)), State.STARTING),
        (evidence(FAILED, answer=job(JobState.RUNNING, restart_count=1)), State.STARTING),
        (evidence(TERMINATED, answer=job(JobState.COMPLETING)), State.TRAINING),
        (evidence(FAILED, answer=job(JobState.COMPLETING)), State.FAILED),
        (evidence(TERMINATED, answer=job(JobState.TIMEOUT)), State.TIMED_OUT),
        (evidence(TERMINATED, answer=job(JobState.CANCELLED)), State.CANCELLED),
        (evidence(TERMINATED, answer=job(JobState.PREEMPTED)), State.PREEMPTED),
        (evidence(TERMINATED, answer=GONE), State.PREEMPTED),
        (evidence(RUNNING, answer=job(JobState.NODE_FAIL)), State.FAILED),
        (evidence(RUNNING, answer=job(JobState.OUT_OF_MEMORY)), State.FAILED),
        (evidence(RUNNING, answer=job(JobState.COMPLETED)), State.FAILED),
        (evidence(answer=job(JobState.COMPLETED)), State.FAILED),  # its script never ran properly
        *((evidence(DONE, answer=job(state)), State.FINISHED) for state in (JobState.COMPLETED, JobState.FAILED)),
        (evidence(DONE, answer=GONE), State.FINISHED),
        (evidence(DONE, answer=job(JobState.RUNNING)), State.TRAINING),  # its script is about to record the end
        (evidence(RUNNING, answer=GONE), State.LOST),
        (evidence(answer=GONE), State.LOST),
        (evidence(answer=GONE, never_wrote=True), State.CANCELLED),  # an element of an array, while it was pending
        (evidence(answer=Answer(None, ended=JobState.NODE_FAIL), never_wrote=True), State.FAILED),
        (evidence(answer=GONE, cancelled_at=1.0), State.CANCELLED),
        (evidence(RUNNING, answer=GONE, cancelled_at=1.0), State.CANCELLED),
        (evidence(RUNNING, answer=job(JobState.RUNNING), cancelled_at=1.0), State.TRAINING),
    ],
)
def test_states_that_slurm_and_files_decide_together(known: RunEvidence, state: State) -> None:
    status = judge(known, NOW)
    assert (status.state, status.sure) == (state, True)


def test_the_last_files_of_a_completed_job_may_still_arrive() -> None:
    known = evidence(RUNNING, answer=job(JobState.COMPLETED))  # at 5200
    assert judge(known, 5200.0 + ARRIVAL_SECONDS - 1).state is State.TRAINING
    assert judge(known, 5200.0 + ARRIVAL_SECONDS).state is State.FAILED


def test_with_visibility_lag_a_failed_job_is_judged_only_after_the_lag() -> None:
    prompt = evidence(RUNNING, answer=job(JobState.FAILED))  # at 5200
    assert judge(prompt, 5201.0).state is State.FAILED
    late = replace(prompt, late_seconds=70.0)
    assert [judge(late, 5200.0 + seconds).state for seconds in (69, 70)] == [State.TRAINING, State.FAILED]
    known = evidence(FAILED, answer=job(JobState.FAILED))
    assert judge(replace(known, late_seconds=70.0), 5201.0).state is State.FAILED


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED])
def test_a_suspended_run_is_shown_as_suspended(state: JobState) -> None:
    status = judge(evidence(RUNNING, answer=job(state)), NOW)
    assert (status.state, status.suspended, status.reason) == (State.TRAINING, True, "Suspended")
    assert not judge(evidence(RUNNING, answer=job(JobState.RUNNING)), NOW).suspended
    assert not judge(evidence(RUNNING, answer=job(state), finished_at=5.0), NOW).suspended


def test_a_queued_run_names_the_nodes_excluded_after_a_failed_check() -> None:
    status = judge(evidence(EXCLUDING, answer=job(JobState.PENDING, "BeginTime", restart_count=1)), NOW)
    assert (status.state, status.held_up_by) == (State.QUEUED, "BeginTime, without node2")


@pytest.mark.parametrize(
    ("attempts", "left_out"),
    [
        ([], "node2"),
        ([{"left_out": (LeftOut("node4", "down", "node5"),)}], "node2 node4"),
        ([{"requeued": True, "exit_code": 1, "excluded": (LeftOut("node3", "gpu", ""),)}, {}], "node2 node3"),
        ([{"exit_code": 1, "excluded": (LeftOut("node3", "gpu", ""),)}], "node2"),  # it did not go on
    ],
)
def test_a_run_shows_which_nodes_its_attempt_goes_on_without(attempts: list[dict[str, Any]], left_out: str) -> None:
    """Slurm excludes a node from all later starts of the job; a spare one replaces it in the same start."""
    running = [replace(RUNNING, number=number, **changes) for number, changes in enumerate(attempts or [{}], start=1)]
    status = judge(evidence(EXCLUDING, *running, answer=job(JobState.RUNNING, restart_count=1)), NOW)
    assert " ".join(one.node for one in status.left_out) == left_out
    if not status.state.ended:
        assert note(status) == str(status.left_out[-1])
    assert [one["node"] for one in json_output.run(status, NOW)["left_out"]] == left_out.split()


def test_a_resumed_run_may_get_the_nodes_again_that_its_former_job_excluded() -> None:
    resumed = replace(RECORD, past_attempts=1)
    again = evidence(EXCLUDING, replace(RUNNING, number=1), record=resumed, answer=job(JobState.RUNNING))
    assert judge(again, NOW).left_out == ()


def test_a_run_whose_script_cannot_requeue_it_shows_why_and_is_not_queued() -> None:
    held = replace(REQUEUING, requeue_problem="Unable to contact slurm controller")
    for answer in (job(JobState.RUNNING), None):
        status = judge(evidence(held, answer=answer), NOW)
        assert (status.state, status.requeuing) == (State.TRAINING, True)
        assert status.held_up_by == "not requeued: Unable to contact slurm controller"
    assert not judge(evidence(held, answer=job(JobState.PENDING, restart_count=1)), NOW).requeuing


def test_a_submission_in_progress_is_queued_and_one_without_a_job_is_lost() -> None:
    for age, state in ((SUBMIT_SECONDS - 1, State.QUEUED), (SUBMIT_SECONDS + 1, State.LOST)):
        young = evidence(answer=GONE, job_id=None, record=replace(RECORD, created=NOW - age))
        assert judge(young, NOW).state is state


@pytest.mark.parametrize(
    ("known", "state"),
    [
        (evidence(), State.QUEUED),
        (evidence(RUNNING), State.TRAINING),
        (evidence(TERMINATED), State.TRAINING),
        (evidence(REQUEUED), State.QUEUED),
    ],
)
def test_without_an_answer_from_slurm_the_state_comes_from_the_files_and_is_unsure(
    known: RunEvidence, state: State
) -> None:
    status = judge(known, NOW)
    assert (status.state, status.sure, status.state.ended) == (state, False, False)


def test_a_short_time_limit_does_not_turn_every_termination_into_a_timeout() -> None:
    short = replace(RECORD, job=replace(RECORD.job, resources=Resources(time=60)))
    early, late = (replace(TERMINATED, end=5000.0 + seconds) for seconds in (30, 50))
    assert not settled(evidence(early, record=short))
    assert judge(evidence(late, record=short), NOW).state is State.TIMED_OUT


def test_a_queued_run_has_a_reason_and_a_run_being_cancelled_is_cancelling() -> None:
    waiting = judge(evidence(answer=job(JobState.PENDING, "Resources"), cancelled_at=1.0), NOW)
    assert (waiting.reason, waiting.cancelling) == ("Resources", True)
    assert not judge(evidence(TERMINATED, cancelled_at=1.0), NOW).cancelling


def test_times_and_exit_code_come_from_the_attempts() -> None:
    status = judge(evidence(TERMINATED, replace(FAILED, number=1, start=6000.0, end=6100.0)), NOW)
    assert (status.started, status.ended, status.exit_code, len(status.attempts)) == (5000.0, 6100.0, 1, 2)
    alive = judge(evidence(RUNNING, answer=job(JobState.RUNNING)), NOW)
    assert (alive.started, alive.ended, alive.exit_code) == (5000.0, None, None)


def test_an_end_missing_from_the_files_comes_from_slurm() -> None:
    assert judge(evidence(RUNNING, answer=job(JobState.NODE_FAIL)), NOW).ended == 5200


@pytest.mark.parametrize(
    ("job_state", "state"),
    [
        (JobState.RUNNING, State.TRAINING),
        (JobState.COMPLETED, State.CANCELLED),
        (JobState.CANCELLED, State.CANCELLED),
        (JobState.TIMEOUT, State.TIMED_OUT),
        (JobState.NODE_FAIL, State.FAILED),
    ],
)
def test_the_end_of_an_allocation_does_not_decide_the_state_of_its_warm_run(job_state: JobState, state: State) -> None:
    assert judge(evidence(RUNNING, answer=job(job_state), record=WARM), NOW).state is state


def test_a_warm_run_terminated_with_its_allocation_is_cancelled() -> None:
    assert judge(evidence(TERMINATED, answer=GONE, record=WARM), NOW).state is State.CANCELLED
    given_back = evidence(TERMINATED, answer=job(JobState.COMPLETED), record=WARM)
    assert judge(given_back, 5200.0).state is State.CANCELLED  # immediately: its script has recorded its end


def test_a_hang_without_a_restart_is_a_failure() -> None:
    left = replace(RUNNING, end=5010.0, exit_code=75, asked=True)
    assert judge(evidence(left), NOW).state is State.PREEMPTED
    assert judge(evidence(replace(left, hung="silent")), NOW).state is State.FAILED


def test_attempts_before_a_resume_count_but_do_not_decide_the_state() -> None:
    resumed = replace(RECORD, resumed=NOW - 10, past_attempts=1, past_jobs=frozenset({"12"}))
    known = evidence(FAILED, record=resumed, job_id=None)
    assert not settled(known)
    status = judge(known, NOW)
    assert (status.state, len(status.attempts), status.started) == (State.QUEUED, 1, 5000.0)
    assert judge(replace(known, answer=GONE), NOW).state is State.QUEUED
    assert judge(replace(known, answer=GONE), NOW + SUBMIT_SECONDS).state is State.LOST
    again = replace(known, job_id="13", attempts=(FAILED, replace(RUNNING, number=1, job_id="13")))
    assert judge(again, NOW).state is State.TRAINING


def test_the_duration_of_a_run_excludes_pauses_between_attempts() -> None:
    resumed = replace(RUNNING, number=1, start=9000.0)
    assert judge(evidence(), NOW).ran(NOW) is None
    assert judge(evidence(RUNNING), NOW).ran(NOW) == NOW - 5000
    assert judge(evidence(FAILED), NOW).ran(NOW + 1e6) == 100
    assert judge(evidence(FAILED, replace(resumed, end=9040.0, exit_code=1)), NOW).ran(NOW) == 140
    assert judge(evidence(RUNNING, resumed), NOW).ran(NOW) == NOW - 5000, "the end of a lost attempt is unknown"


@pytest.mark.parametrize(
    ("known", "state", "reason"),
    [
        (replace(NEVER_BEGAN, answer=job(JobState.PENDING, "Dependency")), State.QUEUED, "Dependency"),
        (replace(NEVER_BEGAN, answer=job(JobState.PENDING, NEVER_STARTS)), State.QUEUED, NEVER_STARTS),
        (replace(NEVER_BEGAN, answer=job(JobState.CANCELLED, NEVER_STARTS)), State.CANCELLED, NEVER_STARTS),
        (replace(NEVER_BEGAN, answer=job(JobState.CANCELLED, "Dependency")), State.CANCELLED, ""),  # scancel
        (replace(NEVER_BEGAN, answer=GONE), State.CANCELLED, NEVER_STARTS),  # forgotten since
        (replace(NEVER_BEGAN, answer=GONE, cancelled_at=5.0), State.CANCELLED, ""),
        (replace(NEVER_BEGAN, answer=GONE, attempts=(RUNNING,)), State.LOST, ""),
        (replace(SUBMITTED, answer=GONE), State.LOST, ""),
    ],
)
def test_a_dependent_job_that_never_started_was_cancelled_by_slurm(
    known: RunEvidence, state: State, reason: str
) -> None:
    status = judge(known, NOW)
    assert (status.state, status.reason) == (state, reason)

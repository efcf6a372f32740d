"""The first cause of a failure, by class: from the reports of ranks and Slurm to the output of `clusterctl why`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_schema import schema, violations
from support.traces import BEAT, END, RECORD, START, attempt, failed, program_ended, raised, rank, trace

from clusterctl.launcher.api import json_output
from clusterctl.launcher.diagnosis.diagnose import accounting_may_help, judge
from clusterctl.launcher.diagnosis.finding import CERTAIN, UNSURE, Consequence, Finding, counted, what_followed
from clusterctl.launcher.diagnosis.traces import AttemptTrace, JobTrace, RankTrace, RunTrace
from clusterctl.launcher.observe.attempt import Alarm, Kills, SetupFlaw
from clusterctl.launcher.observe.run_record import Cancellation
from clusterctl.launcher.observe.slurm_log import by_attempt
from clusterctl.launcher.slurm.jobs import Accounted
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.record.states import State

SLURM = Path(__file__).parent / "slurm_22_05"
CLOSED = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.42.0.2]:31337"


def cause_of(evidence: RunTrace) -> Finding:
    return judge(evidence).headline


def captured(fault: str, *ranks: RankTrace, state: State = State.FAILED, **changes: object) -> RunTrace:
    """A run with the Slurm logs captured in the fixtures."""
    slurm_log = SLURM / f"{fault}.slurm.log"
    job_lines = tuple(slurm_log.read_text().splitlines()) if slurm_log.exists() else ()
    evidence = attempt(*ranks, lines=(SLURM / f"{fault}.host.log").read_text(), job_lines=job_lines, **changes)
    return trace(evidence, state=state)


def echoing(number: int, when: float = END - 4) -> RankTrace:
    return rank(number, **failed(CLOSED, "RuntimeError", when))


@pytest.mark.parametrize(("used", "shown"), [(15.5, True), (8.0, False)])
def test_a_rank_killed_when_its_node_was_nearly_full_says_so(used: float, shown: bool) -> None:
    dead = rank(2, exit_code=None, ended=None)
    found = cause_of(captured("kill9", dead, exit_code=137, memory={"node2": (used * 2**30, 16.0 * 2**30)}))
    assert (found.cause_class, found.rank) == (Cause.KILLED, 2)
    assert ("the job's memory on its node, shortly before: 15.5 of 16.0 GiB" in found.facts) == shown


# Output of a real Slurm


def test_a_manually_killed_rank_is_found_in_the_output_of_srun() -> None:
    dead = rank(2, exit_code=None, ended=None)
    found = cause_of(captured("kill9", dead, echoing(0), echoing(3), exit_code=137))
    assert (found.cause_class, found.rank, found.node, found.certainty) == (Cause.KILLED, 2, "node2", "certain")
    assert "SIGKILL" in found.cause
    assert {consequence.rank for consequence in found.secondary} == {0, 1, 3}


def test_out_of_memory_is_distinguished_from_a_manual_kill() -> None:
    dead = rank(2, **program_ended(137, 9))
    diagnosis = judge(captured("oom", dead))
    found = diagnosis.headline
    assert (found.cause_class, found.rank, found.certainty) == (Cause.HOST_MEMORY, 2, "certain")
    assert diagnosis.commands[0] == "clusterctl resume cora-20260102-030405-00a1 --set resources.memory=400M"


def test_a_killed_rank_is_out_of_memory_if_the_kernel_reported_it() -> None:
    words = "slurmstepd-node2: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes"
    dead = rank(2, exit_code=None)
    found = cause_of(captured("kill9", dead, rank(3, last_words=(words,))))
    assert (found.cause_class, found.rank) == (Cause.HOST_MEMORY, 2)


@pytest.mark.parametrize("fault", ["off", "down"])
def test_a_lost_node_is_named(fault: str) -> None:
    silent = [rank(number, exit_code=None) for number in (2, 3)]
    diagnosis = judge(captured(fault, *silent, exit_code=143, signal="TERM"))
    found = diagnosis.headline
    assert (found.cause_class, found.node, found.certainty) == (Cause.NODE, "node2", "certain")
    assert "--set resources.exclude=node2" in diagnosis.commands[0]


@pytest.mark.parametrize("gone", [(2, 3), (0, 1, 2, 3)])
def test_a_killed_slurmstepd_is_not_called_a_lost_node(gone: tuple[int, ...]) -> None:
    """srun kills the ranks that still have one; those of the other node may end on their own."""
    silent = [rank(number, exit_code=None, ended=None) for number in gone]
    found = cause_of(captured("stepd", *silent, exit_code=137))
    assert (found.cause_class, found.node, found.certainty) == (Cause.KILLED, "node2", "likely")
    assert "slurmstepd on node2" in found.cause


def test_a_rank_is_not_called_silent_while_files_from_other_nodes_may_still_arrive() -> None:
    silent = [rank(number, exit_code=None, ended=None) for number in (2, 3)]
    unwritten = attempt(*silent, exit_code=None, end=None)
    for arriving, cause in ((True, Cause.UNKNOWN), (False, Cause.NODE)):
        first = replace(unwritten, arriving=arriving)
        (before,) = judge(trace(first, attempt(number=1), state=State.FINISHED)).history
        assert before.cause_class is cause
        found = cause_of(trace(attempt(*silent, arriving=arriving)))
        assert (found.cause_class, found.certainty == UNSURE) == (cause, arriving)


def test_the_first_failure_is_only_likely_while_logs_of_other_ranks_may_still_arrive() -> None:
    mistaken = rank(2, **failed("no such layer", time=END - 4))
    for arriving, others, certainty in ((True, (), "certain"), (True, (3,), "likely"), (False, (3,), "certain")):
        silent = [rank(number, exit_code=None, ended=None) for number in others]
        found = cause_of(trace(attempt(mistaken, *silent, arriving=arriving)))
        assert (found.rank, found.certainty) == (2, certainty)


def test_a_time_limit() -> None:
    diagnosis = judge(captured("limit", state=State.TIMED_OUT, exit_code=143, signal="TERM"))
    found = diagnosis.headline
    assert (found.cause_class, found.rank, found.certainty) == (Cause.TIME, None, "certain")
    assert diagnosis.commands[0].endswith("--set resources.time=00:40:00")


def test_a_cancel_by_scancel_is_reported_as_such_and_accounting_names_the_user() -> None:
    evidence = captured("cancelled", state=State.CANCELLED, exit_code=143, signal="TERM")
    found = cause_of(evidence)
    assert found.cause_class is Cause.CANCELLED
    assert "not by clusterctl" in found.cause
    assert accounting_may_help(found)
    for uid, name in (("0", "root"), ("4294967294", "4294967294")):  # no user has the second uid
        known = cause_of(replace(evidence, accounted=(Accounted("12", "CANCELLED", uid, 0, 0, "node1"),)))
        assert known.cause == f"cancelled by {name} with scancel"


def test_a_cancel_by_clusterctl_names_the_user() -> None:
    evidence = captured("cancelled", state=State.CANCELLED, exit_code=143, signal="TERM")
    found = cause_of(replace(evidence, cancelled=Cancellation(END - 1, "ada@login1")))
    assert (found.cause_class, found.cause) == (Cause.CANCELLED, "cancelled by ada@login1")


def test_a_manual_requeue_is_in_the_history_of_the_next_attempt() -> None:
    first = captured("requeued", exit_code=143, signal="TERM").attempts[0]
    second = attempt(rank(1, **failed("no such layer")), number=1)
    diagnosis = judge(trace(first, second))
    found = diagnosis.headline
    assert (found.attempt, found.cause_class) == (1, Cause.USER)
    assert [(past.attempt, past.cause_class) for past in diagnosis.history] == [(0, Cause.PREEMPTED)]


def test_slurms_message_about_a_requeue_by_the_batch_script_is_not_the_cause() -> None:
    """A killed rank, and a checkpoint to resume from."""
    dead = rank(2, exit_code=None, ended=None)
    first = captured("kill9", dead, exit_code=137, requeued=True).attempts[0]
    slurm = tuple((SLURM / "requeued.slurm.log").read_text().splitlines())
    diagnosis = judge(trace(replace(first, job_lines=slurm), attempt(number=1), state=State.FINISHED))
    assert [past.cause_class for past in diagnosis.history] == [Cause.KILLED]


def test_a_killed_srun_is_the_cause_if_its_ranks_end_without_a_report() -> None:
    silent = [rank(number, exit_code=None) for number in (2, 3)]
    found = cause_of(captured("srun9", rank(0, exit_code=143), rank(1, exit_code=143), *silent, exit_code=137))
    assert (found.cause_class, found.rank) == (Cause.KILLED, None)
    assert found.cause.startswith("srun was killed on the job's first node")
    assert found.certainty == "likely", "a controller without its state ends srun in the same way"


def test_a_missing_interpreter_is_a_launch_failure() -> None:
    words = ("sh: 1: exec: /nowhere/python: not found",)
    ranks = [RankTrace(number, last_words=words) for number in range(4)]
    diagnosis = judge(captured("missing", *ranks, exit_code=127))
    found = diagnosis.headline
    assert (found.cause_class, found.cause) == (Cause.LAUNCH, words[0])
    assert "clusterctl doctor --cluster site" in diagnosis.commands


def test_a_program_without_output_is_identified_by_its_exit_code() -> None:
    evidence = rank(1, **program_ended(3))
    found = cause_of(captured("exit3", evidence))
    assert (found.cause_class, found.rank, found.cause) == (Cause.USER, 1, "python train.py failed")


# Causes and echoes


def test_an_echo_is_never_the_cause_even_if_its_clock_is_first() -> None:
    found = cause_of(trace(attempt(echoing(0, START), rank(3, **failed("bad value", time=END)), echoing(2, START))))
    assert (found.rank, found.cause) == (3, "ValueError: bad value")
    assert found.certainty == "certain"
    assert counted(found.secondary) == [f"ranks 0, 2: RuntimeError: {CLOSED}", "rank 1: ended with the others"]


def test_the_earlier_of_two_causes_wins_and_is_only_likely_if_they_are_close() -> None:
    first, second = rank(3, **failed("first", time=END - 20)), rank(0, **failed("second", time=END - 10))
    far = cause_of(trace(attempt(first, second)))
    assert (far.rank, far.certainty, far.facts) == (3, "certain", ())
    close = cause_of(trace(attempt(first, replace(second, raised=raised("second", time=END - 19.5)))))
    assert (close.rank, close.certainty) == (3, "likely")
    assert "rank 0 also failed within 2 s" in close.facts[0]


def test_the_same_error_on_every_rank_is_one_error() -> None:
    found = cause_of(
        trace(attempt(*(rank(n, **failed("No module named 'x'", "ModuleNotFoundError")) for n in range(4))))
    )
    assert (found.cause_class, found.certainty) == (Cause.USER, "certain")
    assert "the same on ranks 1-3" in found.facts
    assert what_followed(found) == []


def test_ranks_with_the_same_error_are_not_named_again_among_those_with_another() -> None:
    ranks = [rank(0, **failed("x", time=END - 20)), rank(1, **failed("x", time=END - 19)), rank(2)]
    found = cause_of(trace(attempt(*ranks, rank(3, **failed("y", time=END - 9)))))
    assert "the same on rank 1" in found.facts
    assert not any("rank 1" in line for line in what_followed(found))
    assert any("rank 3" in line for line in what_followed(found))


def test_the_node_is_suspected_if_all_its_ranks_went_silent() -> None:
    silent = [rank(number, exit_code=None) for number in (2, 3)]
    found = cause_of(trace(attempt(echoing(0), echoing(1), *silent)))
    assert (found.cause_class, found.node, found.certainty) == (Cause.NODE, "node2", "likely")


def test_a_single_silent_rank_is_suspected() -> None:
    found = cause_of(trace(attempt(echoing(0), echoing(2), rank(3, exit_code=None))))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.KILLED, 3, "likely")


def test_echoes_alone_give_an_uncertain_finding() -> None:
    found = cause_of(trace(attempt(*(echoing(number) for number in range(4)))))
    assert (found.cause_class, found.certainty) == (Cause.NETWORK, "likely")


def test_silence_is_ignored_if_the_disk_was_full() -> None:
    silent = [rank(number, exit_code=None) for number in range(4)]
    found = cause_of(trace(attempt(*silent, disk_full=True, signal="LOST")))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.DISK, None, "likely")
    code = rank(1, **program_ended(1))
    assert cause_of(trace(attempt(code, disk_full=True))).cause_class is Cause.DISK
    written = [replace(one, last_words=HANDLED) for one in silent]
    assert cause_of(trace(attempt(*written, disk_full=True))).cause_class is Cause.DISK
    evidence = cause_of(trace(attempt(rank(1, **failed("no such layer")), disk_full=True)))
    assert (evidence.cause_class, evidence.rank) == (Cause.USER, 1)


def test_a_working_directory_that_cannot_be_created_is_the_cause() -> None:
    line = "clusterctl: cannot create /runs/x/work: cp: cannot stat '/runs/x/code/project': No such file or directory"
    gone = cause_of(trace(attempt(lines=line, no_work=True, exit_code=73)))
    assert (gone.cause_class, gone.certainty, gone.facts) == (Cause.LAUNCH, "certain", (line,))
    assert cause_of(trace(attempt(no_work=True, disk_full=True, exit_code=73))).cause_class is Cause.DISK


def test_a_setup_line_is_the_cause_if_it_ended_the_attempt_and_a_fact_otherwise() -> None:
    flaws = (SetupFlaw(1, 127), SetupFlaw(3, 1))
    lines = ("typo", "module load cuda", "conda activate x")
    record = replace(RECORD, cluster=replace(RECORD.cluster, setup=lines[:2]), job=replace(RECORD.job, setup=lines[2:]))

    def cause(**changes: Any) -> Finding:
        evidence = trace(attempt(setup=flaws, **changes))
        return cause_of(replace(evidence, status=replace(evidence.status, record=record)))

    ended = cause(setup_ended=3, exit_code=1, lines="slurm_script: line 9: no such environment: x")
    assert (ended.cause_class, ended.certainty) == (Cause.LAUNCH, "certain")
    assert ended.cause == "setup line 3: conda activate x (exit code 1)"
    assert ended.facts == (
        "also failed: setup line 1: typo (command not found)",
        "slurm_script: line 9: no such environment: x",
    )
    assert cause(setup_ended=0, exit_code=2).cause == "setup: not all of its lines ran, because of a syntax error"
    later = cause(exit_code=3)
    assert later.facts[-2:] == (
        "failed before it: setup line 1: typo (command not found)",
        "failed before it: setup line 3: conda activate x (exit code 1)",
    )


def test_a_failed_node_check_is_the_cause_and_names_all_nodes_that_failed_it() -> None:
    unfit = {"node2": "did not answer within 10 s", "node4": "its clock is off by +60 s"}
    found = cause_of(trace(attempt(unfit=unfit, exit_code=69)))
    assert (found.cause_class, found.certainty, found.node) == (Cause.NODE, "certain", "node2")
    assert found.cause == "failed the node check: did not answer within 10 s"
    assert found.facts == ("node4 also failed it: its clock is off by +60 s",)


def test_an_exception_while_the_job_is_being_terminated_is_not_the_cause() -> None:
    lines = f"*** JOB 12 ON node1 CANCELLED AT {stamp(END - 3)} DUE TO TIME LIMIT ***"
    evidence = rank(1, **failed("interrupted by SIGTERM", time=END - 2.5))
    found = cause_of(trace(attempt(evidence, signal="TERM", job_lines=(lines,)), state=State.TIMED_OUT))
    assert found.cause_class is Cause.TIME


def test_an_exception_long_before_the_termination_is_the_cause() -> None:
    lines = f"*** JOB 12 ON node1 CANCELLED AT {stamp(END - 1)} DUE TO TIME LIMIT ***"
    evidence = rank(1, **failed("no such layer", time=END - 40))
    found = cause_of(trace(attempt(evidence, signal="TERM", job_lines=(lines,)), state=State.TIMED_OUT))
    assert (found.cause_class, found.rank) == (Cause.USER, 1)


ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
REPORTED = "srun: error: node2: task 1: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("lines", "cause", "certainty"),
    [
        (ABORTED + REPORTED, Cause.TIME, "certain"),
        ("srun: forcing job termination\n" + ABORTED, Cause.TIME, "certain"),
        (REPORTED + ABORTED, Cause.USER, "certain"),
        ("", Cause.USER, "likely"),
    ],
)
def test_sruns_order_tells_what_came_first_if_nothing_says_when_the_job_was_ended(
    lines: str, cause: Cause, certainty: str
) -> None:
    failing = rank(1, **failed("KeyError: 'state'", "KeyError", END - 30))
    found = cause_of(trace(attempt(failing, lines=lines, signal="TERM", exit_code=143), state=State.TIMED_OUT))
    assert (found.cause_class, found.certainty) == (cause, certainty)


REQUEUED = "slurmstepd-node1: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-20T15:02:41 DUE TO JOB REQUEUE ***"
LATER = {
    "an exception": rank(1, **failed("no such layer")),
    "a kill": rank(1, **program_ended(137, 9)),
    "an exit code": rank(1, **program_ended(3)),
    "a silent end": rank(1, exit_code=None, ended=None),
}


@pytest.mark.parametrize("later", LATER)
def test_slurms_message_about_an_earlier_attempt_does_not_explain_a_later_one(later: str) -> None:
    sections = by_attempt(("=== 0 ===", REQUEUED, "=== 1 ===", "else"))
    assert sections == {0: (REQUEUED,), 1: ("else",)}
    first = attempt(exit_code=143, signal="TERM", job_id="12", job_lines=sections[0])
    second = attempt(LATER[later], number=1, start=END + 1, end=END + 2, job_id="12", job_lines=sections[1])
    diagnosis = judge(trace(first, second))
    assert diagnosis.headline.cause_class in (Cause.USER, Cause.KILLED)
    assert diagnosis.headline.rank == 1
    assert [past.cause_class for past in diagnosis.history] == [Cause.PREEMPTED]


@pytest.mark.parametrize(("job", "node"), [("11", "node1"), ("12", "node9")])
def test_late_messages_from_an_earlier_job_or_another_node_are_ignored(job: str, node: str) -> None:
    line = f"*** JOB {job} ON {node} CANCELLED AT {stamp(END - 1)} DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"
    found = cause_of(trace(attempt(rank(0, **failed("x")), job_id="12", job_lines=(line,))))
    assert found.cause_class is Cause.USER


def test_a_time_limit_reached_by_a_stuck_run_reports_how_long_it_was_stuck() -> None:
    still = replace(BEAT, step_time=START + 20, since=START + 10, time=END + 200)
    evidence = attempt(*(rank(number, beat=still) for number in range(4)), signal="TERM")
    found = cause_of(trace(evidence, state=State.TIMED_OUT))
    assert found.cause_class is Cause.TIME
    assert "no rank had completed a step for 280 s" in found.facts[0]


@pytest.mark.parametrize(
    ("type_", "message", "cause"),
    [
        ("ImportError", "cannot import name 'x' from 'y'", Cause.USER),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", Cause.GPU_MEMORY),
        ("MemoryError", "", Cause.HOST_MEMORY),
        ("OSError", "[Errno 28] No space left on device", Cause.DISK),
    ],
)
def test_the_exception_decides_the_cause_class(type_: str, message: str, cause: Cause) -> None:
    found = cause_of(trace(attempt(rank(2, **failed(message, type_)))))
    assert (found.cause_class, found.rank) == (cause, 2)


def test_our_own_errors_carry_their_cause_and_are_shown_without_their_type() -> None:
    evidence = raised("no data: /data/raw/reddit_data.npz: No such file", "TaskError", cause=Cause.DATA)
    found = cause_of(trace(attempt(rank(2, raised=evidence))))
    assert (found.cause_class, found.rank, found.cause, found.traceback) == (Cause.DATA, 2, evidence.message, "")


def test_a_broken_gpu_is_named_as_its_rank_has_found_it() -> None:
    evidence = raised(
        "GPU 2 of node1 cannot correct an error in its memory (ECC): it counts 3", "TaskError", cause=Cause.NODE
    )
    found = cause_of(trace(attempt(rank(2, raised=evidence))))
    assert (found.cause_class, found.certainty, found.cause) == (Cause.NODE, CERTAIN, evidence.message)


def test_a_known_error_quoted_in_our_own_message_takes_precedence() -> None:
    evidence = raised("cannot read /data as a data set: No space left on device", "TaskError", cause=Cause.DATA)
    assert cause_of(trace(attempt(rank(2, raised=evidence)))).cause_class is Cause.DISK


def test_a_network_failure_is_the_cause_only_if_there_is_no_other() -> None:
    lonely = raised("rank 0 published no address within 60 s", "TaskError", END - 9, cause=Cause.NETWORK)
    alone = cause_of(trace(attempt(rank(2, raised=lonely))))
    assert (alone.cause_class, alone.rank) == (Cause.NETWORK, 2)
    found = cause_of(trace(attempt(rank(2, raised=lonely), rank(0, **failed("no such layer")))))
    assert (found.cause_class, found.rank) == (Cause.USER, 0)


def test_the_last_lines_on_stderr_take_precedence_over_the_exit_code() -> None:
    words = (
        "warming up",
        "Traceback (most recent call last):",
        '  File "/code/train.py", line 7, in <module>',
        "    main()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
    )
    evidence = rank(1, **program_ended(1), last_words=words)
    diagnosis = judge(trace(attempt(evidence)))
    found = diagnosis.headline
    assert (found.cause_class, found.cause) == (Cause.GPU_MEMORY, words[-1])
    assert found.traceback == "\n".join(words[1:])
    assert "train.batch_size=" in diagnosis.commands[0]


def test_the_last_line_on_stderr_is_reported_if_a_program_leaves_no_traceback() -> None:
    words = ("usage: train.py [-h] [--lr LR]", "train.py: error: argument --lr: expected one argument")
    found = cause_of(trace(attempt(rank(1, **program_ended(2), last_words=words))))
    assert (found.cause_class, found.rank) == (Cause.USER, 1)
    assert found.cause == f"python train.py failed: {words[-1]}"
    slurms = (*words, "slurmstepd-node1: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-11-20T15:02:37 ***")
    assert cause_of(trace(attempt(rank(1, **program_ended(2), last_words=slurms)))).cause == found.cause
    cut_off = (*words, "Traceback (most recent ca")
    assert cause_of(trace(attempt(rank(1, **program_ended(2), last_words=cut_off)))).cause == found.cause
    aborted = ("terminate called after throwing an instance of 'std::logic_error'", "  what():  no such layer")
    crashed = cause_of(trace(attempt(rank(1, **program_ended(134, 6), last_words=aborted))))
    assert (crashed.cause_class, crashed.cause) == (Cause.KILLED, "python train.py failed: what():  no such layer")
    silent = rank(1, exit_code=2, last_words=words)  # it exits on its own, in one of our workloads
    assert cause_of(trace(attempt(silent))).cause == f"exited with 2: {words[-1]}"


@pytest.mark.parametrize(
    ("seconds", "cause", "words"),
    [
        (1200 - 120, Cause.TIME, "it received the warning before its time limit, saved a checkpoint and exited"),
        (
            300,
            Cause.PREEMPTED,
            (
                "it received the warning signal long before its time limit (a preemption, or manually), "
                "saved a checkpoint and exited"
            ),
        ),
    ],
)
def test_the_elapsed_time_separates_time_limit_and_preemption_warnings(
    seconds: float, cause: Cause, words: str
) -> None:
    warned = attempt(*(rank(number, exit_code=75) for number in range(4)), exit_code=75, asked=True, requeued=True)
    resources = replace(RECORD.job.resources, warning=120)
    evidence = trace(replace(warned, end=START + seconds), attempt(number=1), state=State.FINISHED)
    record = replace(RECORD, job=replace(RECORD.job, resources=resources))
    (past,) = judge(replace(evidence, status=replace(evidence.status, record=record))).history
    assert (past.cause_class, past.cause) == (cause, words)


def test_a_program_that_left_without_a_request_is_told_apart() -> None:
    left = attempt(*(rank(number, exit_code=75) for number in range(4)), exit_code=75, asked=True, unasked=True)
    again = trace(replace(left, requeued=True, unproven=True), attempt(number=1), state=State.FINISHED)
    (past,) = judge(again).history
    assert past.cause.endswith("and its program left (started again this once: nothing shows that it saved)")
    ended = cause_of(trace(replace(left, refused=Refusal.NO_PROGRESS), state=State.PREEMPTED))
    assert ended.cause.endswith("and its program left")
    assert "not restarted: this attempt made no progress: nothing shows that it saved" in ended.facts[0]


def test_a_warning_before_a_limit_that_was_shortened_by_hand_is_about_the_time_limit() -> None:
    warned = attempt(*(rank(number, exit_code=75) for number in range(4)), exit_code=75, asked=True, requeued=True)
    for limit, cause in ((None, Cause.PREEMPTED), (120, Cause.TIME), (7200, Cause.PREEMPTED)):
        (past,) = judge(trace(replace(warned, limit=limit), attempt(number=1), state=State.FINISHED)).history
        assert past.cause_class is cause


def test_a_program_that_exits_with_75_on_its_own_is_not_preempted() -> None:
    own = rank(1, **program_ended(75), last_words=("train.py: error: no licence is free",))
    found = cause_of(trace(attempt(own, exit_code=75)))
    assert (found.cause_class, found.rank) == (Cause.USER, 1)
    assert found.cause.endswith("train.py: error: no licence is free")
    bare = cause_of(trace(attempt(rank(1, exit_code=75, last_words=("x: error: busy",)), exit_code=75)))
    assert (bare.cause_class, bare.cause) == (Cause.USER, "exited with 75: x: error: busy")
    hung = cause_of(trace(attempt(rank(1, exit_code=70, last_words=("x: error: bad table",)), exit_code=70)))
    assert (hung.cause_class, hung.cause) == (Cause.USER, "exited with 70: x: error: bad table"), "no watchdog's alarm"


def test_a_restart_that_could_not_begin_is_the_cause_of_the_end() -> None:
    line = "clusterctl[launch]: cannot write to /runs/x/attempts: mkdir: cannot create '1': {}"
    for problem, cause in (("Permission denied", Cause.LAUNCH), ("No space left on device", Cause.DISK)):
        killed = captured("kill9", rank(2, exit_code=None), exit_code=137, requeued=True).attempts[0]
        stuck = replace(killed, job_lines=(REQUEUED, line.format(problem)))
        diagnosis = judge(trace(stuck))
        found = diagnosis.headline
        assert (found.cause_class, found.rank) == (cause, None)
        assert found.cause.startswith("it was started again, but could not begin: cannot write to /runs/x/attempts")
        assert [past.cause_class for past in diagnosis.history] == [Cause.KILLED]


def test_a_run_whose_script_cannot_requeue_it_is_not_explained_by_the_queue() -> None:
    held = attempt(rank(2, exit_code=None), requeuing=True, requeue_problem="scontrol: command not found")
    evidence = trace(held, state=State.TRAINING)
    diagnosis = judge(replace(evidence, status=replace(evidence.status, requeuing=True)))
    assert diagnosis.headline.cause_class is Cause.PENDING
    assert "holds its nodes meanwhile: scontrol: command not found" in diagnosis.headline.cause
    assert len(diagnosis.history) == 1


def test_a_preempted_run_that_slurm_did_not_requeue_says_why_nothing_restarts_it() -> None:
    line = f"*** JOB 12 ON node1 CANCELLED AT {stamp(END - 3)} DUE TO PREEMPTION ***"
    ended = trace(attempt(signal="TERM", exit_code=143, job_lines=(line,)), state=State.PREEMPTED)
    assert (
        "not restarted: Slurm cancels the jobs that it preempts there (PreemptMode=CANCEL)" in cause_of(ended).facts[-1]
    )
    job = replace(RECORD.job, resources=replace(RECORD.job.resources, requeue=False))
    unwanted = replace(ended, status=replace(ended.status, record=replace(RECORD, job=job)))
    assert cause_of(unwanted).facts[-1] == "not restarted: resources.requeue is false"
    assert cause_of(replace(ended, status=replace(ended.status, state=State.QUEUED))).facts == ()


def test_a_warm_run_is_not_restarted_because_of_its_allocation() -> None:
    for refusal in (Refusal.IN_ALLOCATION, Refusal.RESTART_LIMIT):
        evidence = trace(attempt(rank(2, exit_code=None), refused=refusal))
        warm = replace(evidence.status.record, allocation="12")
        found = cause_of(replace(evidence, status=replace(evidence.status, record=warm)))
        assert "not restarted: a requeue would end the allocation that it runs in" in found.facts


UNPACKING = """slurmstepd: error: pyxis: child 4145 terminated with signal {}
slurmstepd: error: pyxis: failed to create container filesystem"""


@pytest.mark.parametrize("lines", [UNPACKING.format(12), "srun: error: node1: task 0: Exited with exit code 1"])
def test_a_preemption_while_unpacking_is_not_reported_as_an_image_error(lines: str) -> None:
    ranks = [RankTrace(number) for number in range(4)]
    signal = "" if "12" in lines else "TERM"
    begun = attempt(*ranks, lines=f"{lines}\n{UNPACKING.format(15)}", signal=signal, requeued=True)
    queued = judge(trace(begun, state=State.QUEUED))
    assert [past.cause_class for past in queued.history] == [Cause.PREEMPTED]
    refused = cause_of(trace(attempt(*ranks, lines=UNPACKING.format(9), exit_code=1)))
    assert refused.cause_class is Cause.IMAGE


# Ranks that exited with 0

LEFT = {"exit_code": 0, "ended": END - 6}


def test_a_rank_that_exited_early_with_0_is_the_cause_of_network_errors() -> None:
    gone = rank(2, **LEFT)
    found = cause_of(trace(attempt(echoing(0), echoing(1), gone, echoing(3))))
    assert (found.cause_class, found.rank, found.node, found.certainty) == (Cause.USER, 2, "node2", "likely")
    assert found.cause == "exited with 0 after step 40 while the others continued"
    assert [consequence.rank for consequence in found.secondary] == [0, 1, 3]
    first = replace(rank(3, **LEFT), ended=END - 7)
    assert cause_of(trace(attempt(echoing(0), echoing(1), gone, first))).rank == 3


def test_ranks_stuck_in_a_collective_wait_for_the_rank_that_exited_with_0() -> None:
    alarm = Alarm(END, 1, "training", 33.0)
    gone = rank(2, **LEFT)
    found = cause_of(trace(alarmed(alarm, gone)))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.USER, 2, "likely")
    assert "33 s" in found.facts[0]
    computes = rank(3, exit_code=70, answered=END + 1, stacks=COMPUTES)
    assert cause_of(trace(alarmed(alarm, gone, computes))).rank == 3


def test_an_exception_may_be_caused_by_a_rank_that_exited_before_it() -> None:
    after = cause_of(trace(attempt(rank(0, **failed("lost its peer", "RuntimeError")), rank(2, **LEFT))))
    assert (after.cause_class, after.rank, after.certainty) == (Cause.USER, 0, "likely")
    assert "rank 2 had exited with 0 before" in after.facts
    earlier = failed("bad value", "RuntimeError", time=END - 9)
    before = cause_of(trace(attempt(rank(0, **earlier), rank(2, **LEFT))))
    assert (before.rank, before.certainty) == (0, "certain")


def test_a_bug_in_the_program_is_not_blamed_on_a_rank_that_exited() -> None:
    found = cause_of(trace(attempt(rank(0, **failed("bad value")), rank(2, **LEFT))))
    assert (found.rank, found.certainty) == (0, "certain")
    assert "had exited" not in " ".join(found.facts)


def test_a_rank_that_exited_with_0_did_not_run_out_of_memory_even_if_srun_lists_it() -> None:
    """srun reports this for each task that ends on a node where the kernel killed any process."""
    lines = "srun: error: node1: tasks 0-1: Out Of Memory"
    worker = "DataLoader worker (pid 7) is killed by signal: Killed."
    found = cause_of(trace(attempt(rank(0, **LEFT), rank(1, **failed(worker, "RuntimeError")), lines=lines)))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.HOST_MEMORY, 1, "likely")
    assert worker in found.cause
    alone = cause_of(trace(attempt(*(rank(number, **LEFT) for number in range(4)), lines=lines)))
    assert alone.rank is None


def test_an_exception_next_to_an_oom_kill_is_only_likely_an_out_of_memory_error() -> None:
    lines = "srun: error: node1: task 0: Out Of Memory"
    found = cause_of(trace(attempt(rank(0, **failed("no such layer")), lines=lines)))
    assert (found.rank, found.certainty) == (0, "likely")
    assert "no such layer" in found.cause


def test_a_wrong_node_clock_makes_the_first_failure_uncertain() -> None:
    hour = 3600
    early, late = rank(2, **failed("second", time=END - 5 - hour)), rank(0, **failed("first", time=END - 9))
    found = cause_of(trace(attempt(early, late)))
    assert (found.rank, found.certainty) == (0, "likely")


def test_a_segmentation_fault_is_named() -> None:
    lines = "srun: error: node1: task 1: Segmentation fault (core dumped)"
    found = cause_of(trace(attempt(rank(1, exit_code=None), lines=lines)))
    assert (found.cause_class, found.rank) == (Cause.KILLED, 1)
    assert "Segmentation fault" in found.cause


@pytest.mark.parametrize(
    "words", ["Aborting, io error and missing step on node 1", "Cannot communicate with node 1.  Aborting job."]
)
def test_a_lost_slurmstepd_is_the_cause_and_not_the_tasks_that_srun_killed_then(words: str) -> None:
    lines = f"srun: error: {words}\nsrun: error: node1: tasks 0-1: Killed"
    found = cause_of(trace(attempt(*(rank(number, **GONE) for number in range(4)), lines=lines)))
    assert (found.cause_class, found.node, found.certainty) == (Cause.KILLED, "node2", "likely")
    assert "slurmstepd on node2" in found.cause


def test_an_image_import_failure_is_found_in_the_batch_scripts_log() -> None:
    lines = "slurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis: printing log"
    diagnosis = judge(trace(attempt(lines=lines, ranks=())))
    found = diagnosis.headline
    assert (found.cause_class, found.rank) == (Cause.IMAGE, None)
    assert "--host" in diagnosis.commands[0]


def test_the_hint_of_a_task_that_cannot_enter_its_image_is_passed_on() -> None:
    died = "srun: error: node1: task 0: Exited with exit code 1"
    words = (
        "clusterctl[launch]: cannot make a user namespace: Operation not permitted",
        "hint: ask your administrator",
    )
    found = cause_of(trace(attempt(RankTrace(0, last_words=words), lines=died)))
    assert (found.cause, found.hint) == (words[0].removeprefix("clusterctl[launch]: "), "ask your administrator")
    theirs = ("cannot make a user namespace", "hint: a program's own")
    assert cause_of(trace(attempt(RankTrace(0, last_words=theirs), lines=died))).hint == ""


HERE = Path(__file__).parent
PYXIS = {
    "missing_image": (Cause.IMAGE, "No such file or directory: /images/x.sqsh"),
    "left_container": (Cause.IMAGE, "a container was left behind: /var/lib/enroot/pyxis_12.0"),
    "disk_full": (
        Cause.DISK,
        "no space to unpack the image on the node (see ENROOT_DATA_PATH): No space left on device",
    ),
    "no_image": (Cause.IMAGE, "FATAL ERROR: Can't find a valid SQUASHFS superblock on /images/x.sqsh"),
    "missing_mount": (Cause.LAUNCH, "mount source does not exist on the node: /data/reddit"),
    "denied_mount": (
        Cause.IMAGE,
        "enroot-mount: failed to mount: /data/reddit at /var/lib/enroot/pyxis_12.0/data: Permission denied",
    ),
    "architecture": (
        Cause.IMAGE,
        "the image was built for a different architecture than the node's (Exec format error)",
    ),
    "hook": (
        Cause.IMAGE,
        "Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container",
    ),
    "not_found": (
        Cause.IMAGE,
        "not in the registry (404): https://registry-1.docker.io/v2/library/python/manifests/3.99",
    ),
    "denied": (
        Cause.IMAGE,
        "the registry denied access, or has no such image (401): https://registry.example/jwt/auth",
    ),
    "denied_by_status": (Cause.IMAGE, "the registry denied access, or has no such image (401)"),
    "no_reason": (Cause.IMAGE, "pyxis: failed to import docker image"),
    "no_name": (Cause.NETWORK, "the node cannot resolve the registry: registry-1.docker.io"),
    "no_answer": (
        Cause.IMAGE,
        "curl: (28) Failed to connect to registry.example port 443 after 30001 ms: Timeout was reached",
    ),
    "no_plugin": (Cause.LAUNCH, "pyxis is not installed on the node: srun has no --container-image option"),
}


APPTAINER = {
    "missing_image": (
        Cause.IMAGE,
        "could not open image {0}: failed to retrieve path for {0}: lstat {0}: no such file or directory".format(
            "/images/nope.sif"
        ),
    ),
    "not_an_image": (
        Cause.IMAGE,
        "could not open image /images/bad.sif: image format not recognized",
    ),
    "unreadable": (
        Cause.IMAGE,
        "could not open image /images/u.sif: /images/u.sif is not readable by the current user, check permissions",
    ),
    "missing_mount": (Cause.LAUNCH, "mount source does not exist on the node: /nowhere"),
    "missing_folder": (Cause.IMAGE, "failed to set working directory: chdir /nowhere: no such file or directory"),
    "missing_program": (Cause.IMAGE, '"nosuchprog": executable file not found in $PATH'),
    "not_executable": (Cause.IMAGE, "permission denied"),
    "no_name": (
        Cause.NETWORK,
        "the node cannot reach the registry: lookup nowhere.invalid on 10.255.255.53:53: no such host",
    ),
    "no_answer": (Cause.NETWORK, "the node cannot reach the registry: 127.0.0.1:9: connect: connection refused"),
}
RECORDED = {"pyxis_0_20": PYXIS, "apptainer_1_4": APPTAINER}


@pytest.mark.parametrize("program", RECORDED)
def test_every_recorded_log_of_a_container_has_an_expected_reason(program: str) -> None:
    assert {path.stem for path in (HERE / program).iterdir()} == set(RECORDED[program])


@pytest.mark.parametrize(("program", "fault"), [(one, fault) for one in RECORDED for fault in RECORDED[one]])
def test_the_reason_is_found_in_the_output_of_a_container_wherever_it_was_written(program: str, fault: str) -> None:
    lines = (HERE / program / f"{fault}.log").read_text()
    died = "srun: error: node2: task 1: Exited with exit code 1"
    by_rank = attempt(ranks=(RankTrace(1, last_words=tuple(lines.splitlines())),), lines=died)
    by_srun = attempt(ranks=(), lines=f"{lines}{died}")  # where no rank has a log yet: a warm run's import
    for evidence in (by_rank, by_srun):
        found = cause_of(trace(evidence))
        assert (found.cause_class, found.cause, found.node) == (*RECORDED[program][fault], "node2")


def test_an_attempt_that_saved_after_a_warning_reports_why_it_was_not_restarted() -> None:
    left = [rank(number, exit_code=75) for number in range(4)]
    saved = attempt(*left, refused=Refusal.RESTART_LIMIT, exit_code=75, asked=True)
    found = cause_of(trace(saved, state=State.PREEMPTED))
    assert (found.cause_class, found.rank, found.secondary[0].cause) == (Cause.PREEMPTED, None, "ended with the others")
    assert found.facts == ("not restarted: restart limit (20) reached",)


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("node2", "a rank was killed 3 times in a row at step 5, without node2"),
        ("", "a rank was killed 3 times in a row at step 5, and no node is to blame"),
    ],
)
def test_a_rank_that_is_killed_at_one_step_again_and_again_is_the_reason(without: str, words: str) -> None:
    killed = attempt(rank(2, exit_code=None), refused=Refusal.KILLED_AGAIN, kills=Kills(5, 3, without))
    assert f"not restarted: {words}" in cause_of(trace(killed)).facts


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_to_restart_has_a_message(refusal: Refusal) -> None:
    (fact,) = cause_of(trace(attempt(refused=refusal, exit_code=75), state=State.PREEMPTED)).facts
    assert fact.startswith("not restarted: ")
    assert "{" not in fact


# Hangs

STACKS = """Thread MainThread:
  File "<frozen runpy>", line 88, in _run_code
    exec(code, run_globals)
  File "/code/lib/clusterctl/engine/training/loop.py", line 41, in fit
    loss, stop = flat.backward(objective.loss(batch, prepared), task.stop)
  File "{file}", line 9, in {function}
    wait()

Thread signals:
  File "/code/lib/clusterctl/shared/node/signals.py", line 54, in _watch
    for number in os.read(reader, 64):
"""
WAITS = STACKS.format(file="/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", function="all_reduce")
COMPUTES = STACKS.format(file="/code/lib/clusterctl/engine/graph/sampling.py", function="sample")


def alarmed(alarm: Alarm, *ranks: RankTrace) -> AttemptTrace:
    waiting = {number: rank(number, exit_code=70, answered=END + 1, stacks=WAITS) for number in range(4)}
    return attempt(*(waiting | {evidence.rank: evidence for evidence in ranks}).values(), alarm=alarm, exit_code=70)


def test_a_stopped_rank_is_named() -> None:
    alarm = Alarm(END, 2, "training", 33.0, (2,), "silent")
    found = cause_of(trace(alarmed(alarm, rank(2, exit_code=143))))
    assert (found.cause_class, found.rank, found.node, found.certainty) == (Cause.HANG, 2, "node2", "certain")
    assert (found.state, found.step) == ("training", 40)
    assert "33 s" in found.facts[0]


SILENT = Alarm(END, 2, "training", 33.0, (2, 3), "silent")
GONE = {"exit_code": None, "ended": None}


def test_a_node_lost_by_slurm_is_the_cause_even_if_the_watchdog_reported_first() -> None:
    lost = replace(
        alarmed(replace(SILENT, suspects=(2,)), rank(2, **GONE)), lines=("srun: error: Node failure on node2",)
    )
    found = cause_of(trace(lost))
    assert (found.cause_class, found.node, found.certainty) == (Cause.NODE, "node2", "certain")
    elsewhere = cause_of(trace(replace(lost, lines=("srun: error: Node failure on node1",))))
    assert (elsewhere.cause_class, elsewhere.rank) == (Cause.HANG, 2)


def test_a_node_whose_ranks_are_all_silent_is_named_before_slurm_notices() -> None:
    found = cause_of(trace(alarmed(SILENT, rank(2, **GONE), rank(3, **GONE))))
    assert (found.cause_class, found.rank, found.node, found.certainty) == (Cause.NODE, None, "node2", "likely")
    assert found.cause == "node2 stopped responding with all its ranks: lost, disconnected, or frozen"
    assert "33 s" in found.facts[0]
    woken = rank(3, answered=END + 6.3)  # terminated: a frozen process then continues for a moment
    assert cause_of(trace(alarmed(SILENT, rank(2, **GONE), woken))).cause_class is Cause.NODE


def test_silent_ranks_whose_launcher_responds_are_not_on_a_lost_node() -> None:
    """User programs that are stuck in native code: each rank has a second process, which responds."""
    found = cause_of(trace(alarmed(SILENT, rank(2, **GONE), rank(3, answered=END + 3.0))))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.HANG, 2, "likely")


def test_a_single_silent_rank_may_be_stopped_or_on_a_lost_node() -> None:
    evidence = attempt(alarm=Alarm(END, 1, "training", 33.0, (1,), "silent"), exit_code=70)
    ranks = tuple(rank(number, node=f"node{number}", answered=END + 1 if number != 1 else None) for number in range(4))
    found = cause_of(trace(replace(evidence, ranks=ranks)))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.HANG, 1, "likely")
    assert "stopped" in found.cause
    assert "or its node was lost" in found.cause


def test_ranks_stuck_in_a_collective_wait_for_the_node_that_slurm_lost() -> None:
    """The node lost its network but not the disk with the heartbeats, and its batch script is still running."""
    met = replace(alarmed(Alarm(END, 3, "training", 33.0, (), "unknown")), exit_code=None, end=None)
    diagnosis = judge(trace(met, attempt(number=1), state=State.FINISHED))
    assert [past.cause_class for past in diagnosis.history] == [Cause.NODE]
    apart = replace(met, ranks=(*met.ranks[:3], rank(3, exit_code=70, stacks=COMPUTES)))
    diagnosis = judge(trace(apart, attempt(number=1), state=State.FINISHED))
    assert [past.cause_class for past in diagnosis.history] == [Cause.HANG]


@pytest.mark.parametrize("met_the_next", [True, False])
def test_a_rank_on_the_lost_node_of_the_batch_script_is_not_called_stuck(met_the_next: bool) -> None:
    """No line of Slurm's names that node: who would write it was on it. It went on beside the next attempt, or not."""

    def history(suspect: int) -> Finding:
        alarm = Alarm(END, suspect, "training", 33.0, (suspect,), "behind")
        cut = (rank(number, superseded=met_the_next, **GONE) for number in (0, 1))
        met = replace(alarmed(alarm, *cut), exit_code=None, end=None)
        return judge(trace(met, attempt(number=1), state=State.FINISHED)).history[0]

    assert history(0).cause_class is Cause.NODE
    other = history(2)
    assert (other.cause_class, other.rank) == (Cause.HANG, 2)


def test_a_rank_is_stuck_if_the_lost_node_of_the_batch_script_is_another_one() -> None:
    """With spare nodes, the script's node may have none of the ranks."""
    alarm = Alarm(END, 0, "training", 33.0, (0,), "behind")
    met = replace(alarmed(alarm), exit_code=None, end=None, script_node="node9")
    found = judge(trace(met, attempt(number=1), state=State.FINISHED)).history[0]
    assert (found.cause_class, found.rank) == (Cause.HANG, 0)


def test_an_attempt_superseded_by_the_next_one_was_on_a_lost_node() -> None:
    met = attempt(*(rank(number, superseded=number < 2) for number in range(4)))
    diagnosis = judge(trace(met, attempt(number=1), state=State.FINISHED))
    assert diagnosis.history[0].cause_class is Cause.NODE


FROZEN = """Current thread 0x00007fe31ffff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007fe359bc3b80 (most recent call first):
  File "/code/project/train.py", line 31 in load
  File "/code/project/train.py", line 40 in <module>
"""


def test_a_stopped_rank_is_shown_with_its_stack_from_before_it_continued() -> None:
    woken = rank(2, stacks=COMPUTES, frozen=FROZEN)
    found = cause_of(trace(alarmed(Alarm(END, 2, "training", 33.0, (2,), "silent"), woken)))
    assert "stuck at /code/project/train.py:31 in load" in found.cause
    assert found.traceback.splitlines()[-1].endswith("line 31 in load")
    assert "_bootstrap" not in found.traceback
    unfrozen = cause_of(trace(alarmed(Alarm(END, 2, "training", 33.0, (2,), "silent"), replace(woken, frozen=""))))
    assert unfrozen.traceback == ""


def test_the_rank_outside_the_collective_is_named_with_its_location() -> None:
    alarm = Alarm(END, 0, "training", 33.0, (), "unknown")
    found = cause_of(trace(alarmed(alarm, rank(3, exit_code=70, stacks=COMPUTES))))
    assert (found.rank, found.certainty) == (3, "likely")
    assert "/code/lib/clusterctl/engine/graph/sampling.py:9 in sample" in found.cause
    assert "signals.py" not in found.traceback


def test_if_no_rank_stands_out_the_finding_is_uncertain() -> None:
    found = cause_of(trace(alarmed(Alarm(END, 1, "training", 33.0))))
    assert (found.rank, found.certainty) == (1, "unknown")


def test_if_all_ranks_were_idle_the_stack_of_the_first_is_shown() -> None:
    evidence = [rank(n, exit_code=70, stacks=f"process {n}: python train.py\n  main thread sleeping") for n in range(4)]
    found = cause_of(trace(alarmed(Alarm(END, 0, "training", 1805.0, (), "idle"), *evidence)))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.HANG, None, "likely")
    assert found.cause.startswith("the program logs no steps, and no rank printed anything")
    assert found.traceback == "rank 0:\nprocess 0: python train.py\n  main thread sleeping"
    assert "1805 s" in found.facts[0]


def test_a_run_ended_for_idle_gpus_gives_that_as_the_cause() -> None:
    found = cause_of(trace(alarmed(Alarm(END, 0, "training", 1812.0, (), "idle-gpus"), rank(0, exit_code=70))))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.IDLE_GPUS, None, "certain")
    assert found.cause == "all GPUs on all nodes were idle for 1812 s"
    assert "watchdog.idle_gpu" in found.facts[0]


def test_a_time_limit_after_a_watchdog_report_mentions_it() -> None:
    reported = Alarm(END - 60, 0, "training", 1805.0, (), "idle")
    evidence = captured("limit", state=State.TIMED_OUT, exit_code=143, signal="TERM", reported=reported)
    found = cause_of(evidence)
    assert found.cause_class is Cause.TIME
    assert "1805 s without progress" in found.facts[0]


def test_an_exception_before_the_alarm_is_its_cause() -> None:
    evidence = alarmed(
        Alarm(END, 0, "training", 33.0, (0,), "silent"), rank(1, **failed("no such layer", time=END - 30))
    )
    assert cause_of(trace(evidence)).cause_class is Cause.USER


# Ends without a failure, and without evidence


def test_a_finished_run_has_no_failure() -> None:
    assert cause_of(trace(attempt(exit_code=0), state=State.FINISHED)).cause_class is Cause.FINISHED


def test_a_queued_run_gives_slurms_reason_and_why_it_was_requeued() -> None:
    evidence = trace(attempt(rank(2, **failed("x"))), state=State.QUEUED)
    diagnosis = judge(replace(evidence, status=replace(evidence.status, reason="Resources")))
    found = diagnosis.headline
    assert (found.cause_class, found.cause) == (Cause.PENDING, "waiting in the queue: Resources")
    assert [past.cause_class for past in diagnosis.history] == [Cause.USER]


def test_a_run_without_an_attempt_is_explained_by_the_scripts_log() -> None:
    lines = ("clusterctl: cannot write to /runs/x/attempts",)
    assert cause_of(trace(slurm_lines=lines)).cause_class is Cause.LAUNCH
    assert cause_of(trace(state=State.LOST)).certainty == "unknown"
    cancelled = trace(state=State.CANCELLED, cancelled=Cancellation(1.0, "ada@login1"))
    assert cause_of(cancelled).cause_class is Cause.CANCELLED
    assert judge(cancelled).commands[0].startswith("clusterctl resume ")


def test_unreadable_files_are_reported_and_nothing_is_guessed() -> None:
    evidence = trace(attempt(ranks=(), exit_code=None), unknown=("attempts/0/host.log: Permission denied",), sure=False)
    diagnosis = judge(evidence)
    found = diagnosis.headline
    assert (found.cause_class, found.certainty) == (Cause.UNKNOWN, "unknown")
    assert diagnosis.unknown[0] == "attempts/0/host.log: Permission denied"
    assert any("Slurm" in what for what in diagnosis.unknown)


def test_the_json_has_all_fields_for_every_finding() -> None:
    evidence = trace(attempt(rank(2, **failed("no such layer")), echoing(0)))
    found = cause_of(evidence)
    record = json.loads(json.dumps(json_output.why(judge(evidence))))
    assert violations(record, schema("why")) == []
    assert record["class"] == "user-error"
    assert record["secondary"][0] == {"rank": 0, "node": "node1", "cause": f"RuntimeError: {CLOSED}"}
    empty = trace(state=State.LOST)
    assert violations(json.loads(json.dumps(json_output.why(judge(empty)))), schema("why")) == []
    assert str(found) == "rank 2 on node2: ValueError: no such layer"


def test_a_secret_in_the_submit_command_is_not_repeated() -> None:
    evidence = trace(attempt(rank(0, **failed("x"))))
    record = replace(evidence.status.record, argv=("submit", "cora", "--set", "env.TOKEN=***"))
    evidence = replace(evidence, status=replace(evidence.status, record=record))
    for argv in (record.argv, (), ("rerun", "cora"), ("submit", "--set", "env.TOKEN=***", "--", "python")):
        evidence = replace(evidence, status=replace(evidence.status, record=replace(record, argv=argv)))
        assert judge(evidence).commands[-1] == f"clusterctl rerun {record.run.id}"


def test_the_shortest_command_that_repeats_the_run_is_suggested() -> None:
    long = ("submit", "cora", *(word for n in range(9) for word in ("--set", f"train.a_long_key_{n}=3")))

    def last(argv: tuple[str, ...], run: str = "cora-20260102-030405-00a1", workload: str = "reddit") -> str:
        evidence = trace(attempt(rank(0, **failed("x"))))
        job = replace(evidence.status.record.job, workload=workload)
        directory = replace(evidence.status.record.run, path=evidence.status.record.run.path.with_name(run))
        record = replace(evidence.status.record, run=directory, job=job, argv=argv)
        return judge(replace(evidence, status=replace(evidence.status, record=record))).commands[-1]

    assert last(("submit", "cora")) == "clusterctl submit cora"
    assert last(long) == "clusterctl rerun cora-20260102-030405-00a1"
    assert last(long, workload="command") == shlex.join(["clusterctl", *long])  # with the corrected code
    assert last(("submit", "cora", "--sweep", "train.lr=1,2"), "cora-20260102-030405-00a1.1").endswith("-00a1.1")


@pytest.mark.parametrize("cause", ["no data: /x", "CUDA out of memory", "No space left on device", "x"])
def test_every_suggested_command_is_one_line_of_shell(cause: str) -> None:
    for command in judge(trace(attempt(rank(2, **failed(cause))))).commands:
        assert "\n" not in command
        assert shlex.split(command)


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


# Many ranks


def test_consequences_that_differ_only_in_numbers_share_a_line() -> None:
    evidence = [Consequence(rank, "", f"closed by [10.0.0.{rank}]:{2000 + rank}") for rank in range(1, 9)]
    evidence.append(Consequence(0, "", "ended with the others"))
    assert counted(evidence) == ["ranks 1-8: closed by [10.0.0.1]:2001", "rank 0: ended with the others"]


def test_consequences_take_a_few_lines_however_many_kinds_there_are() -> None:
    evidence = [Consequence(2 * number, "", f"message {'x' * number}") for number in range(20)]
    lines = counted(evidence)
    assert len(lines) == 9
    assert lines[-1] == "ranks 16, 18, 20, 22, 24 and 7 more: other messages"


class Passes(tuple[RankTrace, ...]):
    """Ranks that count how often they are iterated over."""

    count = 0

    def __iter__(self) -> Iterator[RankTrace]:
        type(self).count += 1
        return super().__iter__()


@pytest.mark.parametrize("of_rank", [failed(CLOSED), {"exit_code": None, "ended": None}, {"stacks": "Thread"}])
@pytest.mark.parametrize("alarm", [None, Alarm(END, 1, "training", 60.0, how="unknown")])
def test_the_number_of_passes_over_the_ranks_does_not_depend_on_their_number(
    of_rank: dict[str, Any], alarm: Alarm | None
) -> None:
    def passes(ranks: int) -> int:
        Passes.count = 0
        every = Passes([rank(0), *(rank(number, **of_rank) for number in range(1, ranks))])
        lines = tuple(f"srun: error: node{n // 2}: task {n}: Exited with exit code 1" for n in range(ranks))
        made = AttemptTrace(0, start=START, end=END, exit_code=1, tasks=ranks, lines=lines, alarm=alarm)
        judge(trace(replace(made, ranks=every)))
        return Passes.count

    assert passes(32) == passes(128)


# Where the evidence is: recorded facts, then the last words, then known phrases elsewhere

HANDLED = (
    "Traceback (most recent call last):",
    '  File "/code/train.py", line 7, in load',
    "OSError: [Errno 28] No space left on device",
)
BUG = ("Traceback (most recent call last):", '  File "/code/train.py", line 9, in <module>', "KeyError: 'age'")
OWN = "train.py: the validation set is empty"


@pytest.mark.parametrize(
    ("stderr", "end", "cause", "words"),
    [
        ((*HANDLED, "using no cache"), program_ended(137, 9), Cause.KILLED, "SIGKILL"),
        (HANDLED, program_ended(139, 11), Cause.KILLED, "python train.py failed"),
        ((*HANDLED, "using no cache", *BUG), program_ended(1), Cause.USER, "KeyError: 'age'"),
        ((*HANDLED, "using no cache", OWN), program_ended(3), Cause.USER, OWN),
        (("No space left on device: continuing without a cache", OWN), program_ended(3), Cause.USER, OWN),
        (("CUDA out of memory, taking a batch of 2048", OWN), program_ended(3), Cause.USER, OWN),
        (("Input/output error on shard 3, skipped", OWN), program_ended(1), Cause.USER, OWN),
        (("connection refused, retrying", OWN), program_ended(2), Cause.USER, OWN),
        (("connection refused, retrying",), program_ended(2), Cause.USER, "python train.py failed"),
        (("to please the OOM killer, oom_score_adj is 500",), program_ended(137, 9), Cause.KILLED, "SIGKILL"),
        (("KeyboardInterrupt handled: saving",), program_ended(3), Cause.USER, "python train.py failed"),
    ],
)
def test_what_a_program_survived_is_not_the_cause_of_its_end(
    stderr: tuple[str, ...], end: dict[str, Any], cause: Cause, words: str
) -> None:
    found = cause_of(trace(attempt(rank(1, **end, last_words=stderr))))
    assert (found.cause_class, found.rank) == (cause, 1)
    assert words in found.cause
    assert found.certainty == "certain" if cause is Cause.KILLED else True


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        (HANDLED, 3),  # Python exits with 1 after an exception
        (("ERROR:root:cannot save", *HANDLED), 1),
        (("Exception in thread Thread-1 (save):", *HANDLED), 1),
        ((*HANDLED, "using no cache"), 1),
        ((OWN, "RuntimeError: CUDA out of memory"), 1),
    ],
)
def test_an_error_that_may_have_been_survived_is_only_likely(stderr: tuple[str, ...], code: int) -> None:
    found = cause_of(trace(attempt(rank(1, **program_ended(code), last_words=stderr))))
    assert found.cause_class in (Cause.DISK, Cause.GPU_MEMORY)
    assert found.certainty == "likely"


def test_a_survived_error_is_mentioned_beside_the_last_words_and_makes_them_likely() -> None:
    found = cause_of(trace(attempt(rank(1, **program_ended(3), last_words=(*HANDLED, "going on", OWN)))))
    assert (found.cause, found.certainty) == (f"python train.py failed: {OWN}", "likely")
    assert found.facts == (f"earlier on its stderr: {HANDLED[-1]}", "earlier on its stderr: going on")[:1]
    alone = cause_of(trace(attempt(rank(1, **program_ended(3), last_words=("starting", OWN)))))
    assert (alone.cause, alone.certainty) == (f"python train.py failed: {OWN}", "certain")


def test_only_slurms_own_line_proves_that_the_kernel_killed_a_rank_for_its_memory() -> None:
    for line in (
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed",
        "slurmstepd-node1: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been killed",
        "slurmstepd: error: Exceeded job memory limit at some point.",
    ):
        found = cause_of(trace(attempt(rank(1, **program_ended(137, 9), last_words=(line,)))))
        assert (found.cause_class, found.certainty) == (Cause.HOST_MEMORY, "certain")
        quoted = cause_of(trace(attempt(rank(1, **program_ended(137, 9), last_words=(f"I read: {line}",)))))
        assert (quoted.cause_class, quoted.certainty) == (Cause.KILLED, "certain")
        assert "resources.memory=" in quoted.hint


def test_the_worker_of_a_launcher_is_named() -> None:
    hint = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    workers = [
        *(f"[rank5]: {line}" for line in BUG),
        *(f"[rank4]: {line}" for line in (*BUG[:2], f"RuntimeError: {CLOSED}")),
    ]
    for code, message, cause, words in (
        ("-9", "Signal 9 (SIGKILL) received by PID 7", Cause.KILLED, "the worker with rank 5 was killed by SIGKILL"),
        ("1", hint, Cause.USER, "KeyError: 'age'"),
    ):
        summary = (
            *BUG[:2],
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
            "=" * 60,
            "train.py FAILED",
            "-" * 60,
            "Failures:",
            "  <NO_OTHER_FAILURES>",
            "-" * 60,
            "Root Cause (first observed failure):",
            "[0]:",
            "  rank      : 5 (local_rank: 1)",
            f"  exitcode  : {code} (pid: 7)",
            f"  traceback : {message}",
            "=" * 60,
        )
        found = cause_of(trace(attempt(rank(2, **program_ended(1), last_words=(*workers, *summary)))))
        assert (found.cause_class, found.rank, found.certainty) == (cause, 2, "certain")
        assert found.cause.startswith(words)
        assert "that worker was process 7, with local rank 1" in found.facts


NCCL = (
    *BUG[:2],
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error, NCCL version 2.26",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    "Last error:",
)


@pytest.mark.parametrize(
    ("message", "cause", "words"),
    [
        ((*NCCL, "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000"), Cause.USER, "Duplicate GPU"),
        ((*NCCL, "Cuda failure 2 'out of memory'"), Cause.GPU_MEMORY, "out of memory"),
        (
            (*NCCL, "Error while creating shared memory segment /dev/shm/nccl-x (size 96)"),
            Cause.HOST_MEMORY,
            "/dev/shm",
        ),
        ((*NCCL, "socketStartConnect: Connect to 10.0.0.2<37> failed : Connection refused"), Cause.NETWORK, "10.0.0.2"),
        ((*NCCL, "Cuda failure 710 'device-side assert triggered'"), Cause.USER, "device-side assert"),
        (
            (
                *BUG[:2],
                "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms: (node1, 29400).",
                "The above exception was the direct cause of the following exception:",
                *BUG[:2],
                "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed.",
            ),
            Cause.NETWORK,
            "node1, 29400",
        ),
        (
            (*BUG[:2], "RuntimeError: Error(s) in loading state_dict for Net:", "\tMissing key(s): fc.bias."),
            Cause.USER,
            "RuntimeError: Error(s) in loading state_dict for Net: Missing key(s): fc.bias.",
        ),
        (
            (*BUG[:2], "KeyError: Caught KeyError in DataLoader worker process 0.", f"Original {BUG[0]}", *BUG[1:]),
            Cause.USER,
            "KeyError: Caught KeyError in DataLoader worker process 0: KeyError: 'age'",
        ),
        (
            (*BUG[:2], "OSError: [Errno 98] Address already in use"),
            Cause.NETWORK,
            "Address already in use",
        ),
        (
            (*BUG[:2], "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>"),
            Cause.NETWORK,
            "urlopen",
        ),
    ],
)
def test_the_most_specific_line_of_an_exception_is_shown_and_decides_its_class(
    message: tuple[str, ...], cause: Cause, words: str
) -> None:
    found = cause_of(trace(attempt(rank(1, **program_ended(1), last_words=message))))
    assert (found.cause_class, found.rank) == (cause, 1)
    assert words in found.cause
    assert found.traceback == "\n".join(line.rstrip() for line in message)


def test_software_that_does_not_fit_the_node_is_the_images_fault_only_if_there_is_one() -> None:
    words = (*BUG[:2], "RuntimeError: CUDA error: no kernel image is available for execution on the device")
    evidence = trace(attempt(rank(1, **program_ended(1), last_words=words)))
    assert cause_of(evidence).cause_class is Cause.LAUNCH
    job = replace(RECORD.job, container=replace(RECORD.job.container, image="torch.sqsh"))
    with_image = replace(evidence, status=replace(evidence.status, record=replace(RECORD, job=job)))
    assert cause_of(with_image).cause_class is Cause.IMAGE


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("srun: error: task 0 launch failed: Plugin initialization failed", "Plugin initialization failed"),
        ("srun: error: Task launch for StepId=12.0 failed on node node2: User not found on host", "the user does not"),
        ("srun: error: tasks 0-3 launch failed: User not found on host", "the user does not exist on the node"),
        (
            "srun: fatal: cpus-per-task set by two different environment variables SLURM_CPUS_PER_TASK=8 != x=cpu:4",
            "cpus-per-task set by two different environment variables",
        ),
        ("srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files", "mpi/pmix"),
        ("slurmstepd: error: mpi/pmix_v4: pmixp_usock_create_srv: Cannot bind() UNIX socket: Permission", "pmix"),
        ("slurmstepd: error: TaskProlog failed status=1", "TaskProlog"),
    ],
)
def test_srun_and_its_plugins_say_why_no_task_started(line: str, words: str) -> None:
    found = cause_of(trace(attempt(ranks=(), lines=line)))
    assert (found.cause_class, found.certainty) == (Cause.LAUNCH, "certain")
    assert words in found.cause
    survived = cause_of(trace(attempt(rank(1, **program_ended(3), last_words=(f"my log: {line}", OWN)))))
    assert (survived.cause_class, survived.cause) == (Cause.USER, f"python train.py failed: {OWN}")


def test_the_fatal_line_of_apptainer_is_the_reason_and_not_what_it_informs_about() -> None:
    lines = (
        "\x1b[34mINFO:   \x1b[0m Converting SIF file to temporary sandbox...",
        "\x1b[31mFATAL:  \x1b[0m while extracting /i.sif: root filesystem extraction failed: unsquashfs not found",
        "\x1b[34mINFO:   \x1b[0m Cleaning up image...",
    )
    unread = "FATAL:   could not open image /i.sif: failed to retrieve path for /i.sif: open /i.sif: permission denied"
    for stderr, words in ((lines, "while extracting /i.sif"), ((unread,), "could not open image /i.sif")):
        ranks = tuple(RankTrace(number, last_words=stderr) for number in range(4))
        died = "srun: error: node1: tasks 0-3: Exited with exit code 255"
        found = cause_of(trace(attempt(ranks=ranks, lines=died)))
        assert (found.cause_class, found.certainty) == (Cause.IMAGE, "certain")
        assert found.cause.startswith(words)


def test_what_a_node_writes_after_the_step_was_cancelled_follows_from_it() -> None:
    cancelled = "slurmstepd: error: *** STEP 12.0 ON node2 CANCELLED AT 2026-11-20T15:02:37 ***"
    late = RankTrace(2, node="node2", last_words=(cancelled, *UNPACKING.format(9).splitlines()))
    lines = "srun: error: node2: task 2: Exited with exit code 1\nsrun: error: node1: task 0: Exited with exit code 1"
    found = cause_of(trace(attempt(rank(0, **failed("no such layer")), late, lines=lines)))
    assert (found.cause_class, found.rank) == (Cause.USER, 0)


@pytest.mark.parametrize("ended", [program_ended(130, 2), failed("", "KeyboardInterrupt")])
def test_an_interrupt_is_not_an_error_of_the_program(ended: dict[str, Any]) -> None:
    words = (*BUG[:2], "KeyboardInterrupt")
    found = cause_of(trace(attempt(*(rank(number, **ended, last_words=words) for number in range(4)))))
    assert found.cause_class is Cause.KILLED
    assert "interrupted by SIGINT" in found.cause


def test_a_rank_that_got_term_before_the_others_is_named() -> None:
    lines = "srun: error: node1: task 1: Exited with exit code 143\nsrun: launch/slurm: _step_signal: Terminating"
    for others in ((), (echoing(0), echoing(2))):
        found = cause_of(trace(attempt(*others, lines=lines, exit_code=143)))
        assert (found.cause_class, found.rank, found.certainty) == (Cause.KILLED, 1, "likely")
        assert "SIGTERM" in found.cause
    everyone = "srun: error: node1: tasks 0-1: Exited with exit code 143\n" * 1
    everyone += "srun: error: node2: tasks 2-3: Exited with exit code 143"
    found = cause_of(trace(attempt(lines=everyone, exit_code=143)))
    assert (found.cause_class, found.rank) == (Cause.KILLED, None)


def test_one_of_two_ranks_that_exits_with_75_is_named() -> None:
    found = cause_of(trace(attempt(rank(1, exit_code=75), exit_code=1)))
    assert (found.cause_class, found.rank, found.cause) == (Cause.USER, 1, "exited with 75")


def test_an_alarm_after_the_end_of_an_attempt_is_not_its_cause() -> None:
    alarm = Alarm(END + 60, 2, "training", 33.0, (2,), "silent")
    found = cause_of(trace(attempt(rank(1, **program_ended(3)), alarm=alarm)))
    assert (found.cause_class, found.rank) == (Cause.USER, 1)
    quiet = cause_of(trace(attempt(rank(2, exit_code=None, ended=None), alarm=alarm)))
    assert quiet.cause_class is not Cause.HANG


def test_of_several_processes_with_one_stderr_the_one_that_failed_on_its_own_is_shown() -> None:
    lost = (*BUG[:2], f"RuntimeError: {CLOSED}")
    pairs = zip(BUG, lost, strict=True)
    words = tuple(line for one, other in pairs for line in (f"1: [rank1]: {one}", f"0: [rank0]: {other}"))
    found = cause_of(trace(attempt(rank(1, **program_ended(1), last_words=words))))
    assert (found.cause_class, found.cause, found.certainty) == (Cause.USER, "KeyError: 'age'", "certain")


def test_an_exception_that_names_only_what_failed_is_explained_by_a_line_before_it() -> None:
    lost = (*BUG[:2], "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly")
    killed = cause_of(trace(attempt(rank(1, **program_ended(1), last_words=lost))))
    assert (killed.cause_class, killed.certainty) == (Cause.KILLED, "likely")
    reason = "ERROR: Unexpected bus error encountered in worker, perhaps by insufficient shared memory (shm)."
    full = cause_of(trace(attempt(rank(1, **program_ended(1), last_words=(reason, *lost)))))
    assert (full.cause_class, full.certainty) == (Cause.HOST_MEMORY, "likely")
    assert "/dev/shm" in full.cause


def test_the_words_of_slurm_about_each_node_are_alike() -> None:
    ranks = tuple(
        RankTrace(
            number, node=f"node{number}", last_words=(f"slurmstepd-node{number}: error: TaskProlog failed status=1",)
        )
        for number in range(2)
    )
    lines = "srun: error: node0: task 0: Exited with exit code 1\nsrun: error: node1: task 1: Exited with exit code 1"
    found = cause_of(trace(attempt(ranks=ranks, lines=lines)))
    assert (found.cause_class, found.cause, found.certainty) == (Cause.LAUNCH, "TaskProlog failed status=1", "certain")


def test_the_accounting_knows_of_memory_that_slurmstepd_did_not_report() -> None:
    evidence = trace(attempt(rank(1, **program_ended(137, 9)), rank(2, **failed("no such layer", time=END - 1))))
    found = cause_of(evidence)
    assert (found.cause_class, accounting_may_help(found)) == (Cause.KILLED, True)
    known = cause_of(replace(evidence, accounted=(Accounted("12", "OUT_OF_MEMORY", "", 0, 0, "node1"),)))
    assert (known.cause_class, known.rank) == (Cause.HOST_MEMORY, 1)
    other = cause_of(
        trace(
            attempt(rank(2, **failed("no such layer"))),
            accounted=(Accounted("12", "OUT_OF_MEMORY", "", 0, 0, "node1"),),
        )
    )
    assert other.cause_class is Cause.USER


def test_the_last_traceback_of_a_rank_that_recorded_no_end_is_not_its_cause() -> None:
    silent = rank(3, exit_code=None, ended=None, last_words=HANDLED)
    found = cause_of(trace(attempt(silent)))
    assert (found.cause_class, found.rank, found.certainty) == (Cause.KILLED, 3, "likely")


# Any mixture of problems that a program survived, before it ended in any way

SURVIVED = (
    HANDLED,
    ("ERROR:root:batch failed", *HANDLED[:2], "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
    ("2026-11-26 01:02:03,456 WARNING loader: Input/output error on shard 3",),
    ("connection refused by tracker:5000; will report later",),
    ("note to myself: the OOM killer ended the last run, slurmstepd said oom-kill event",),
    ("run.sh: line 3: nvidia-smi: command not found",),
    ("read-only file system: cache is off",),
    ("[rank1]:[W1126 12:00:00.1 ProcessGroupNCCL.cpp:99] Warning: barrier() guesses the device",),
    ("/venv/torch/cuda/__init__.py:235: UserWarning: CUDA capability sm_90 is not compatible", "  warnings.warn("),
    ("Exception in thread Thread-1:", *HANDLED[:2], "ConnectionResetError: [Errno 104] Connection reset by peer"),
    ("host1:7:9 [0] NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory",),
    ("FATAL: no colours", "epoch 3/9 loss 0.5"),
)
ENDS: tuple[tuple[dict[str, Any], tuple[str, ...], Cause], ...] = (
    (program_ended(137, 9), (), Cause.KILLED),
    (program_ended(139, 11), ("Fatal Python error: Segmentation fault",), Cause.KILLED),
    (program_ended(130, 2), (*BUG[:2], "KeyboardInterrupt"), Cause.KILLED),
    (program_ended(3), (OWN,), Cause.USER),
    (program_ended(1), ("2026-11-26 01:03:00,000 CRITICAL train: 3 classes were expected, 4 found",), Cause.USER),
    (program_ended(1), BUG, Cause.USER),
    (program_ended(1), (*BUG, "wandb: Find logs at: ./wandb"), Cause.USER),
    (program_ended(1), (*BUG[:2], "torch.OutOfMemoryError: CUDA out of memory"), Cause.GPU_MEMORY),
    (program_ended(1), HANDLED, Cause.DISK),
    (program_ended(134, 6), ("terminate called after throwing an instance of 'E'", "  what():  no node"), Cause.KILLED),
)


@given(st.lists(st.sampled_from(SURVIVED), max_size=4), st.sampled_from(ENDS))
def test_whatever_a_program_survived_its_end_is_named(
    survived: list[tuple[str, ...]], end: tuple[dict[str, Any], tuple[str, ...], Cause]
) -> None:
    ended, last, cause = end
    words = (*(line for block in survived for line in (*block, "epoch 4/9 loss 0.4")), *last)
    found = cause_of(trace(attempt(rank(1, **ended, last_words=words))))
    assert (found.cause_class, found.rank) == (cause, 1)
    assert found.certainty == "certain" or survived


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("KeyError: 'No space left on device'", Cause.USER),
        ("AssertionError: expected 'Connection refused' in the log", Cause.USER),
        ("ValueError: the column 'input/output error' is missing", Cause.USER),
        ("RuntimeError: the last run ended with 'out of memory': lower the batch", Cause.HOST_MEMORY),
        ("ConfigError: cannot tell what 'no space left on device' means", Cause.DISK),
        ("ProcessExitedException: process 1 terminated with signal SIGKILL", Cause.KILLED),
        ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", Cause.NODE),
        ("RuntimeError: No CUDA GPUs are available", Cause.USER),
        (
            "RuntimeError: [enforce fail at inline_container.cc:595] . PytorchStreamWriter failed writing file",
            Cause.DISK,
        ),
    ],
)
def test_an_exception_that_only_quotes_or_suspects_a_cause_is_not_certain(message: str, cause: Cause) -> None:
    found = cause_of(trace(attempt(rank(1, **program_ended(1), last_words=(*BUG[:2], message)))))
    assert (found.cause_class, found.certainty, found.cause) == (cause, "likely", message)


@pytest.mark.parametrize(
    ("stdout", "cause", "words", "certainty"),
    [
        (("epoch 3/9 loss 0.5",), Cause.USER, "python train.py failed", "certain"),
        (("epoch 3/9 loss 0.5", "error: no such layer"), Cause.USER, "error: no such layer", "likely"),
        (("epoch 3/9 loss 0.5", "CUDA out of memory. Tried to allocate 2 GiB"), Cause.GPU_MEMORY, "2 GiB", "likely"),
        (HANDLED, Cause.DISK, "No space left", "likely"),
        ((*HANDLED, "epoch 3/9 loss 0.5"), Cause.USER, "python train.py failed", "certain"),
    ],
)
def test_an_error_at_the_end_of_stdout_is_likely_if_stderr_gives_no_reason(
    stdout: tuple[str, ...], cause: Cause, words: str, certainty: str
) -> None:
    found = cause_of(trace(attempt(rank(1, **program_ended(1), printed=stdout))))
    assert (found.cause_class, found.rank, found.certainty) == (cause, 1, certainty)
    assert words in found.cause
    named = cause_of(trace(attempt(rank(1, **program_ended(1), last_words=BUG, printed=stdout))))
    assert (named.cause, named.certainty) == (BUG[-1], "certain")


def test_the_last_words_of_a_rank_that_lost_a_peer_are_not_the_cause_of_that_peers_end() -> None:
    lost = (*BUG[:2], f"RuntimeError: {CLOSED}", "train.py: lost the others, giving up")
    silent = rank(2, exit_code=None, ended=None)
    for lines, certainty in (("srun: error: node2: task 2: Killed", "certain"), ("", "likely")):
        found = cause_of(trace(attempt(silent, rank(0, **program_ended(5), last_words=lost), lines=lines)))
        assert (found.cause_class, found.rank, found.certainty) == (Cause.KILLED, 2, certainty)
    quiet = cause_of(trace(attempt(silent, rank(0, **program_ended(5), last_words=("train.py: giving up on rank 2",)))))
    assert quiet.certainty == "likely"


# After a resume


KILLED_SCRIPT = (Accounted("12", "FAILED", "", 0, 9, "node[1-2]"), Accounted("12.batch", "FAILED", "", 0, 9, "node1"))
SCANCELLED = (Accounted("12", "CANCELLED", "0", 0, 0, ""),)
VANISHED: dict[str, Any] = {"exit_code": None, "end": None}
TERMINATED: dict[str, Any] = {"exit_code": 143, "signal": "TERM"}
ENDS: tuple[tuple[State, dict[str, Any], dict[str, Any]], ...] = (
    (State.FAILED, VANISHED, {"accounted": KILLED_SCRIPT}),
    (State.LOST, VANISHED, {}),
    (State.TIMED_OUT, TERMINATED, {}),
    (State.PREEMPTED, TERMINATED, {}),
    (State.CANCELLED, TERMINATED, {"cancelled": Cancellation(END, "ada@n1")}),
    (State.CANCELLED, VANISHED, {"accounted": SCANCELLED}),
)


@pytest.mark.parametrize(("state", "host", "known"), ENDS)
@pytest.mark.parametrize("after", ["queued", "running", "failed", "cancelled before it started", "cancelled"])
def test_a_resume_does_not_change_why_an_attempt_ended(
    state: State, host: dict[str, Any], known: dict[str, Any], after: str
) -> None:
    first = attempt(**host)
    found = judge(trace(first, state=state, **known)).headline
    begun = (attempt(rank(1, **failed("no such layer")), number=1),) if after in ("failed", "cancelled") else ()
    begun = (attempt(number=1, **VANISHED),) if after == "running" else begun
    now = {"queued": State.QUEUED, "running": State.TRAINING, "failed": State.FAILED}.get(after, State.CANCELLED)
    record = replace(RECORD, resumed=END + 20, past_attempts=1, past_jobs=frozenset({"12"}))
    cancelled = Cancellation(END + 30, "eve@n1") if now is State.CANCELLED else None
    resumed = trace(first, *begun, state=now, cancelled=cancelled, past_jobs=(JobTrace(0, state, **known),))
    resumed = replace(resumed, status=replace(resumed.status, record=record, job_id="13"))
    (past, *_) = judge(resumed).history
    assert past == found
    if not begun and now is State.CANCELLED:
        assert judge(resumed).headline.cause.startswith("cancelled by eve@n1 ")


# A node that no longer answers the others


def test_a_node_that_the_others_missed_is_the_cause() -> None:
    gone = rank(2, exit_code=None, ended=None)
    found = cause_of(trace(attempt(echoing(0), gone, exit_code=137, lost=("node2", "node4"))))
    assert (found.cause_class, found.node, found.certainty) == (Cause.NODE, "node2", "certain")
    assert "neither did node4" in found.facts


def test_a_rank_that_failed_on_its_own_is_the_cause_even_if_a_node_was_lost_then() -> None:
    found = cause_of(trace(attempt(rank(0, **failed("no such label")), exit_code=137, lost=("node2",))))
    assert (found.cause_class, found.rank) == (Cause.USER, 0)


def test_lost_connections_alone_name_no_node() -> None:
    gone = rank(2, exit_code=None, ended=None)
    assert cause_of(trace(attempt(echoing(0), gone, exit_code=137))).certainty != "certain"


@pytest.mark.parametrize(
    ("script_node", "words"), [("node1", "starts the ranks again"), ("node2", "others end the job")]
)
def test_while_it_is_being_replaced_the_lost_node_is_named(script_node: str, words: str) -> None:
    seen = attempt(rank(0), rank(2), exit_code=None, end=None, lost=("node2",), script_node=script_node)
    found = cause_of(trace(seen, state=State.TRAINING))
    assert (found.cause_class, found.node) == (Cause.NODE, "node2")
    assert words in found.facts[0]

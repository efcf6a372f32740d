"""Reading a run directory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterctl.launcher.observe.attempt import AttemptEvidence, RunEvidence, read_evidence
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.slurm_log import EndedBy
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]


def read(run: RunDir) -> RunEvidence:
    return read_evidence(read_record(run))


def test_a_run_that_was_just_submitted_has_a_job_and_no_attempts(fabricate: Fabricate) -> None:
    evidence = read(fabricate(files={"submission.json": {"job_id": "12", "time": 5}}))
    assert (evidence.job_id, evidence.attempts, evidence.cancelled_at, evidence.finished_at) == ("12", (), None, None)
    assert evidence.answer is None


def test_an_attempt_has_its_nodes_state_and_newest_metrics(fabricate: Fabricate) -> None:
    events = [
        {"time": 1, "event": "stage", "stage": "loading"},
        {"time": 2, "event": "stage", "stage": "training", "epoch": 1},
        {"time": 3, "event": "exception", "type": "ValueError"},
    ]
    metrics = [
        {"time": 1, "epoch": 1, "val_accuracy": 0.5, "note": "text", "good": True},
        {"time": 2, "epoch": 2, "loss": 0.25},
    ]
    host = {"attempt": 0, "job_id": "12", "restart_count": 1, "nodes": "node[1-2]", "start": 100}
    run = fabricate(
        files={
            "attempts/0/host.json": host,
            "attempts/0/events/rank_00000.jsonl": events,
            "attempts/0/metrics.jsonl": metrics,
        }
    )
    evidence = read(run)
    expected = AttemptEvidence(
        number=0,
        job_id="12",
        restart_count=1,
        nodes="node[1-2]",
        start=100,
        state=State.TRAINING,
        metrics={"epoch": 2, "val_accuracy": 0.5, "loss": 0.25},
    )
    assert evidence.attempts == (expected,)
    assert evidence.job_id == "12"


def test_folders_that_no_batch_script_began_are_not_attempts(fabricate: Fabricate) -> None:
    ended = {"attempt": 0, "job_id": "12", "end": 1.0, "exit_code": 0}
    run = fabricate(
        files={
            "attempts/0/host.json": ended,
            "attempts/2/host.json": ended,  # a copy, made by hand
            "finished.json": {"attempt": 0, "time": 1.0},
        }
    )
    run.attempt(1).path.mkdir()
    evidence = read(run)
    assert [one.number for one in evidence.attempts] == [0]
    assert evidence.finished_at == 1.0


LOG = """=== 0 ===
slurmstepd-node1: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-20T15:02:41 DUE TO JOB REQUEUE ***
=== 1 ===
slurmstepd-node9: error: *** JOB 11 ON node9 CANCELLED AT 2026-11-20T15:02:42 ***
{}
"""
JOB = "slurmstepd-node1: error: *** JOB 12 ON node1 CANCELLED AT 2026-11-20T15:02:43"


@pytest.mark.parametrize(
    ("line", "ended_by"),
    [
        ("", None),
        (f"{JOB} ***", EndedBy.CANCELLATION),
        (f"{JOB} DUE TO TIME LIMIT ***", EndedBy.TIME_LIMIT),
        (f"{JOB} DUE TO PREEMPTION ***", EndedBy.PREEMPTION),
        (f"{JOB} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", EndedBy.NODE_FAILURE),
        (f"{JOB} DUE TO SOMETHING NEW ***", EndedBy.OTHER),
        (JOB.replace("JOB 12", "STEP 12.0") + " ***", None),
    ],
)
def test_slurms_log_records_why_slurm_ended_the_last_attempt(
    fabricate: Fabricate, line: str, ended_by: EndedBy | None
) -> None:
    host = {"job_id": "12", "end": 1.0, "exit_code": 143, "signal": "TERM"}
    run = fabricate(files={f"attempts/{number}/host.json": {"attempt": number, **host} for number in (0, 1)})
    (run.path / "slurm.log").write_text(LOG.format(line))
    assert read(run).attempts[-1].ended_by is ended_by


def test_slurms_log_records_a_start_that_could_not_begin(fabricate: Fabricate) -> None:
    host = {"attempt": 0, "job_id": "12", "end": 1.0, "exit_code": 137, "signal": "", "requeued": True}
    run = fabricate(files={"attempts/0/host.json": host})
    line = "clusterctl[launch]: cannot write to /runs/x/attempts: mkdir: Permission denied"
    (run.path / "slurm.log").write_text(f"=== 0 ===\n{JOB} DUE TO JOB REQUEUE ***\n{line}\n")
    last = read(run).attempts[-1]
    assert (last.ended_by, last.in_vain) == (EndedBy.REQUEUE, line)


def test_attempts_are_ordered_by_number(fabricate: Fabricate) -> None:
    run = fabricate(files={f"attempts/{number}/host.json": {"start": number} for number in (10, 9, 2)})
    assert [attempt.number for attempt in read(run).attempts] == [2, 9, 10]


def test_an_ended_attempt_has_an_exit_code_and_whether_it_was_terminated(fabricate: Fabricate) -> None:
    host = {"start": 1, "end": 9, "exit_code": 143, "signal": "TERM"}
    (attempt,) = read(fabricate(files={"attempts/0/host.json": host})).attempts
    assert (attempt.end, attempt.exit_code, attempt.signal) == (9, 143, "TERM")


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"time": "soon"}'])
def test_an_unreadable_marker_still_counts(fabricate: Fabricate, content: str) -> None:
    assert read(fabricate(files={"finished.json": content})).finished_at == 0.0


def test_failed_node_checks_are_read_only_if_they_ended_the_attempt(fabricate: Fabricate) -> None:
    check = {"failed": {"node2": "did not answer"}}
    for exit_code, unfit in ((69, {"node2": "did not answer"}), (1, {})):
        files = {"attempts/0/host.json": {"exit_code": exit_code}, "attempts/0/check.json": check}
        (attempt,) = read(fabricate(files=files)).attempts
        assert attempt.unfit == unfit


def test_a_malformed_host_record_is_ignored(fabricate: Fabricate) -> None:
    (attempt,) = read(fabricate(files={"attempts/0/host.json": {"start": "x", "exit_code": None, "nodes": 3}})).attempts
    assert attempt == AttemptEvidence(number=0)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"created": 1, "job": {}, "cluster": {}}', '"text"'])
def test_a_damaged_record_is_reported_with_its_path(fabricate: Fabricate, content: str) -> None:
    run = fabricate(files={"run.json": content})
    with pytest.raises(ConfigError, match="cannot read") as caught:
        read_record(run)
    assert str(run.run_json) in caught.value.message

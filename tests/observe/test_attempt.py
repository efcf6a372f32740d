"""Reading a run directory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterctl.errors import ConfigError
from clusterctl.observe.attempt import AttemptEvidence, RunEvidence, read_evidence
from clusterctl.observe.run_record import read_record
from clusterctl.runs.layout import RunDir
from clusterctl.runs.stages import Stage

Fabricate = Callable[..., RunDir]


def read(run: RunDir) -> RunEvidence:
    return read_evidence(read_record(run))


def test_a_run_that_was_just_submitted_has_a_job_and_no_attempts(fabricate: Fabricate) -> None:
    evidence = read(fabricate(files={"submission.json": {"job_id": "12", "time": 5}}))
    assert (evidence.job_id, evidence.attempts, evidence.cancelled_at, evidence.finished_at) == ("12", (), None, None)
    assert evidence.answer is None


def test_an_attempt_has_its_nodes_stage_and_newest_metrics(fabricate: Fabricate) -> None:
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
        stage=Stage.TRAINING,
        metrics={"epoch": 2, "val_accuracy": 0.5, "loss": 0.25},
    )
    assert evidence.attempts == (expected,)
    assert evidence.job_id == "12"


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

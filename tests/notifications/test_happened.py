"""The notifiable events of a run, from its attempts and its state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launcher.notifications.notifier import happened
from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.state import NEVER_STARTS, Status
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job

RECORD = RunRecord(
    RunDir(Path("/runs/x-20260102-030405-00a1")), 0.0, Job(name="x", workload="command"), Cluster(name="c")
)
RUNNING = AttemptEvidence(number=0, job_id="12", start=1.0)
REQUEUED = replace(RUNNING, end=2.0, exit_code=75, requeued=True)
FAILED = replace(RUNNING, end=2.0, exit_code=1)


def status(state: State, *attempts: AttemptEvidence, past: int = 0, sure: bool = True, reason: str = "") -> Status:
    numbered = tuple(replace(attempt, number=number) for number, attempt in enumerate(attempts))
    record = replace(RECORD, past_attempts=past)
    return Status(record, state, sure, "12", numbered, False, reason, 1.0, None)


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (status(State.QUEUED), []),
        (status(State.TRAINING, RUNNING), []),
        (status(State.FINISHED, FAILED), ["finished-0"]),
        (status(State.FAILED, FAILED), ["failed-0"]),
        (status(State.TIMED_OUT, FAILED), ["failed-0"]),
        (status(State.PREEMPTED, FAILED), ["failed-0"]),
        (status(State.LOST, RUNNING), ["failed-0"]),
        (status(State.LOST, RUNNING, sure=False), []),
        (status(State.LOST), ["failed-0"]),
        (status(State.CANCELLED, FAILED), []),
        (status(State.CANCELLED, reason=NEVER_STARTS), ["failed-0"]),
        (status(State.QUEUED, REQUEUED), ["restarted-0"]),
        (status(State.TRAINING, replace(REQUEUED, requeued=False, restarting=True)), ["restarted-0"]),
        (status(State.TRAINING, REQUEUED, RUNNING), ["restarted-0"]),
        (status(State.TRAINING, RUNNING, RUNNING), ["restarted-0"]),  # by Slurm, after the loss of a node
        (status(State.FAILED, REQUEUED, FAILED), ["restarted-0", "failed-1"]),
        (
            status(State.TRAINING, FAILED, replace(RUNNING, job_id="13"), past=1),
            [],
        ),  # resumed: its failure was reported before
        (status(State.FAILED, FAILED, replace(FAILED, job_id="13"), past=1), ["failed-1"]),
        (status(State.LOST, FAILED, past=1), ["failed-1"]),  # resumed, and never started again
    ],
)
def test_events_follow_from_the_attempts_and_the_stage(seen: Status, names: list[str]) -> None:
    assert [one.name for one in happened(seen, ())] == names


def test_an_alarm_belongs_to_its_attempt() -> None:
    seen = status(State.FAILED, REQUEUED, FAILED)
    assert [one.name for one in happened(seen, {0, 1})] == ["stalled-0", "restarted-0", "stalled-1", "failed-1"]

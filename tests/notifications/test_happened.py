"""The notifiable events of a run, from its attempts and its stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launcher.notifications.notifier import happened
from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.stage import NEVER_STARTS, Status
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.stages import Stage
from clusterctl.shared.spec import Cluster, Job

RECORD = RunRecord(
    RunDir(Path("/runs/x-20260102-030405-00a1")), 0.0, Job(name="x", workload="command"), Cluster(name="c")
)
RUNNING = AttemptEvidence(number=0, job_id="12", start=1.0)
REQUEUED = replace(RUNNING, end=2.0, exit_code=75, requeued=True)
FAILED = replace(RUNNING, end=2.0, exit_code=1)


def status(stage: Stage, *attempts: AttemptEvidence, past: int = 0, sure: bool = True, reason: str = "") -> Status:
    numbered = tuple(replace(attempt, number=number) for number, attempt in enumerate(attempts))
    record = replace(RECORD, past_attempts=past)
    return Status(record, stage, sure, "12", numbered, False, reason, 1.0, None)


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (status(Stage.QUEUED), []),
        (status(Stage.TRAINING, RUNNING), []),
        (status(Stage.FINISHED, FAILED), ["finished-0"]),
        (status(Stage.FAILED, FAILED), ["failed-0"]),
        (status(Stage.TIMED_OUT, FAILED), ["failed-0"]),
        (status(Stage.PREEMPTED, FAILED), ["failed-0"]),
        (status(Stage.LOST, RUNNING), ["failed-0"]),
        (status(Stage.LOST, RUNNING, sure=False), []),
        (status(Stage.LOST), ["failed-0"]),
        (status(Stage.CANCELLED, FAILED), []),
        (status(Stage.CANCELLED, reason=NEVER_STARTS), ["failed-0"]),
        (status(Stage.QUEUED, REQUEUED), ["restarted-0"]),
        (status(Stage.TRAINING, REQUEUED, RUNNING), ["restarted-0"]),
        (status(Stage.TRAINING, RUNNING, RUNNING), ["restarted-0"]),  # by Slurm, after the loss of a node
        (status(Stage.FAILED, REQUEUED, FAILED), ["restarted-0", "failed-1"]),
        (
            status(Stage.TRAINING, FAILED, replace(RUNNING, job_id="13"), past=1),
            [],
        ),  # resumed: its failure was reported before
        (status(Stage.FAILED, FAILED, replace(FAILED, job_id="13"), past=1), ["failed-1"]),
        (status(Stage.LOST, FAILED, past=1), ["failed-1"]),  # resumed, and never started again
    ],
)
def test_events_follow_from_the_attempts_and_the_stage(seen: Status, names: list[str]) -> None:
    assert [one.name for one in happened(seen, ())] == names


def test_an_alarm_belongs_to_its_attempt() -> None:
    seen = status(Stage.FAILED, REQUEUED, FAILED)
    assert [one.name for one in happened(seen, {0, 1})] == ["stalled-0", "restarted-0", "stalled-1", "failed-1"]

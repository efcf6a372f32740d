"""The status of many runs: their files first, then Slurm, once for all, and only if the files leave something open."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ConfigError, SlurmError
from clusterctl.launch.adopt import adopt
from clusterctl.observe.evidence import Answer, read_evidence
from clusterctl.observe.record import read_record
from clusterctl.observe.stage import judge, settled
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.observe.evidence import Evidence, Number
    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import RunDir
    from clusterctl.slurm import Snapshot
    from clusterctl.spec import Cluster

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Report:
    """Runs as they are at `as_of`, and what stood in the way of knowing: silent clusters, damaged runs."""

    as_of: float
    statuses: tuple[Status, ...]
    problems: tuple[ConfigError | SlurmError, ...]


def report(
    runs: Iterable[RunDir], slurm_of: Callable[[Cluster], Slurm] = Slurm.of, clock: Callable[[], float] = time.time
) -> Report:
    """The status of `runs`, in their order. Neither a damaged run nor a silent Slurm hides the others."""
    problems: list[ConfigError | SlurmError] = []
    found: list[Evidence] = []
    for run in runs:
        try:
            found.append(read_evidence(read_record(run)))
        except ConfigError as error:
            problems.append(error)
    snapshots: dict[tuple[str, str | None], Snapshot | None] = {}  # runs in one folder may be on several clusters
    for index, evidence in enumerate(found):
        if settled(evidence):
            continue
        controller = evidence.record.controller
        if controller not in snapshots:
            try:
                snapshots[controller] = slurm_of(evidence.record.cluster).snapshot()
            except SlurmError as error:
                snapshots[controller] = None
                problems.append(error)
        snapshot = snapshots[controller]
        if snapshot is not None:
            found[index] = answered(evidence, snapshot)
    now = clock()
    return Report(now, tuple(judge(evidence, now) for evidence in found), tuple(problems))


def answered(evidence: Evidence, snapshot: Snapshot) -> Evidence:
    """`evidence` with Slurm's answer. A job found by its folder is noted in the run: its submitter died, or is slow."""
    run = evidence.record.run
    job = snapshot.jobs.get(evidence.job_id) if evidence.job_id else snapshot.in_folder(run.path)
    if job is None:  # it may have begun and ended between the look at its files and the question
        evidence = read_evidence(evidence.record)
    job_id = evidence.job_id or (job.job_id if job else None)
    if job_id:
        adopt(run, job_id)
    return replace(evidence, job_id=job_id, answer=Answer(job))


def to_json(report: Report) -> dict[str, Any]:
    """What `status -o json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "as_of": report.as_of,
        "runs": [_run_record(status) for status in report.statuses],
    }


def _run_record(status: Status) -> dict[str, Any]:
    record, metrics = status.record, {name: _finite(value) for name, value in status.metrics.items()}
    known = ("epoch", "epochs", "step", "steps", "loss", "val_accuracy", "test_accuracy", "val_auc", "test_auc")
    return {
        "id": record.run.id,
        "job": record.job.name,
        "stage": status.stage.value,
        "sure": status.sure,
        "job_id": status.job_id,
        "attempt": status.attempt.number if status.attempt else None,
        **{name: metrics.get(name) for name in known},
        "metrics": metrics,
        "nodes": record.job.resources.nodes,
        "tasks_per_node": record.tasks_per_node,
        "created": record.created,
        "started": status.started,
        "ended": status.ended,
        "exit_code": status.exit_code,
        "directory": str(record.run.path),
    }


def _finite(value: Number) -> Number | None:
    """JSON knows no nan and no infinity."""
    return value if math.isfinite(value) else None

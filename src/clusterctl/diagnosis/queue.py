"""Gathers why a run waits: squeue for the one job, sinfo once, then `sbatch --test-only` for a few changes in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.config import Resolved
from clusterctl.errors import ClusterctlError, SlurmError
from clusterctl.launch.plan import make_plan
from clusterctl.launch.sbatch import SlurmRefused, estimate_start
from clusterctl.slurm.queue import WaitingJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.launch.plan import Plan
    from clusterctl.launch.sbatch import Estimate
    from clusterctl.observe.run_record import RunRecord
    from clusterctl.observe.stage import Status
    from clusterctl.slurm import Inventory, Slurm
    from clusterctl.spec import Resources

    Ask = Callable[[Plan], Estimate | None]


@dataclass(frozen=True)
class Change:
    """Other resources for the same job, what differs in words, and what to type for it."""

    words: str
    resources: Resources
    settings: tuple[tuple[str, str], ...]  # names below [resources] and their new values; none: edit the job file


@dataclass(frozen=True)
class Trial:
    """A change, and when Slurm would start it (`sbatch --test-only`); None where it would not take it."""

    change: Change
    start: float | None


@dataclass(frozen=True)
class QueueEvidence:
    """All that is known of a run that waits. Times are seconds since the epoch.

    `control` is Slurm's estimate for the very same job sent once more: what it says beyond the run's own estimate is
    the run's own weight in it.
    """

    run: str
    job: WaitingJob
    resources: Resources
    typed: tuple[str, ...]  # the submission's own words
    now: float
    inventory: Inventory | None = None
    control: float | None = None
    trials: tuple[Trial, ...] = ()
    unknown: tuple[str, ...] = ()  # what could not be read


def gather_pending(status: Status, slurm: Slurm, clock: Callable[[], float] = time.time) -> QueueEvidence:
    """Ask why the queued run of `status` waits, and what is free. What is not answered is named, and is no error."""
    record, unknown = status.record, []
    job = WaitingJob(status.job_id or "", status.reason, record.job.resources.partition or "", None, "")
    try:
        job = (slurm.waiting(status.job_id) if status.job_id else None) or job
    except SlurmError as error:
        unknown.append(f"the job's place in the queue: {error.message}")
    inventory = None
    try:
        inventory = slurm.nodes()
    except SlurmError as error:
        unknown.append(f"what is free: {error.message}")
    resources = record.job.resources
    return QueueEvidence(record.run.id, job, resources, _typed(record), clock(), inventory, unknown=tuple(unknown))


def try_changes(
    evidence: QueueEvidence,
    record: RunRecord,
    changes: Sequence[Change],
    enough: Callable[[QueueEvidence], bool],
    ask: Ask,
) -> QueueEvidence:
    """`evidence` with Slurm's word on one change after the other, until it is enough, or Slurm falls silent.

    `ask` is `sbatch --test-only`; it is asked once more than there are changes at most.
    """
    try:
        evidence = replace(evidence, control=_start(record, evidence.resources, ask) if changes else None)
        for change in changes:
            trial = Trial(change, _start(record, change.resources, ask))
            evidence = replace(evidence, trials=(*evidence.trials, trial))
            if enough(evidence):
                break
    except ClusterctlError as error:
        silence = f"what else would start now: {error.message}"
        evidence = replace(evidence, unknown=(*evidence.unknown, silence))
    return evidence


def asking(slurm: Slurm) -> Ask:
    """`sbatch --test-only` of a cluster."""
    return lambda plan: estimate_start(plan, slurm.path_of("sbatch"), slurm.environment)


def _start(record: RunRecord, resources: Resources, ask: Ask) -> float | None:
    """When Slurm would start the run's job with these resources; None where it refuses them."""
    resolved = Resolved(replace(record.job, resources=resources), record.cluster, {}, Path("job.toml"))
    plan = make_plan(resolved, record.run, record.run.code, clusterctl.__version__)
    try:
        estimate = ask(plan)
    except SlurmRefused:
        return None
    return float(estimate.start) if estimate else None


def _typed(record: RunRecord) -> tuple[str, ...]:
    """What was typed to submit the run, without what only watched it."""
    if record.argv[:1] != ("submit",):
        return ("submit", record.job.name, "--cluster", record.cluster.name)
    return tuple(word for word in record.argv if word not in ("--follow", "--wait", "--hold"))

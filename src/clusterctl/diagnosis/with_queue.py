"""Why a run waits, asked and explained: what `why` says of a run in the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis.queue import asking, gather_pending, try_changes
from clusterctl.diagnosis.waiting import changes, explain, smallest_change
from clusterctl.errors import Cause, SlurmError
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from clusterctl.diagnosis.findings import Findings
    from clusterctl.diagnosis.queue import Evidence
    from clusterctl.diagnosis.traces import Trace
    from clusterctl.diagnosis.waiting import Waiting
    from clusterctl.observe.stage import Status


def explain_waiting(status: Status) -> Waiting:
    """Why the queued run of `status` waits, when it may start, and what would start it now: nine questions at most."""
    slurm = Slurm.of(status.record.cluster)
    evidence = gather_pending(status, slurm)
    return explain(try_changes(evidence, status.record, changes(evidence), _found_one, asking(slurm)))


def with_the_queue(trace: Trace, findings: Findings) -> Findings:
    """`findings` on a run that waits, with what Slurm says of it; a silent Slurm is told as not known."""
    if findings.cause_class is not Cause.PENDING or trace.status.job_id is None:
        return findings
    try:
        waiting = explain_waiting(trace.status)
    except SlurmError as error:
        return replace(findings, unknown=(*findings.unknown, f"why it waits: {error.message}"))
    return replace(
        findings,
        cause=waiting.cause,
        facts=waiting.facts,
        hint=waiting.hint,
        commands=waiting.commands,
        unknown=(*findings.unknown, *waiting.unknown),
    )


def _found_one(evidence: Evidence) -> bool:
    return smallest_change(evidence)[0] is not None

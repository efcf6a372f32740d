"""Why a run waits, asked and explained: what `why` says of a run in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.insight.pending import changes, explain, smallest_change
from clusterctl.observe.pending import asking, gather_pending, try_changes
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from clusterctl.insight.pending import Waiting
    from clusterctl.observe.pending import Evidence
    from clusterctl.observe.stage import Status


def explain_waiting(status: Status) -> Waiting:
    """Why the queued run of `status` waits, when it may start, and what would start it now: nine questions at most."""
    slurm = Slurm.of(status.record.cluster)
    evidence = gather_pending(status, slurm)
    return explain(try_changes(evidence, status.record, changes(evidence), _found_one, asking(slurm)))


def _found_one(evidence: Evidence) -> bool:
    return smallest_change(evidence)[0] is not None

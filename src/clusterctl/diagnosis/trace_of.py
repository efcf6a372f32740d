"""From the run that was named to its trace: the status first, which decides what has to be gathered."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis.traces import gather
from clusterctl.observe.attempt import read_evidence
from clusterctl.observe.run_record import read_record
from clusterctl.observe.stage import judge
from clusterctl.observe.status import report
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.diagnosis.traces import Trace
    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import RunDir
    from clusterctl.spec import Cluster


def status_of(run: RunDir) -> Status:
    """How `run` stands by its files alone."""
    return judge(read_evidence(read_record(run)), time.time())


def trace_of(run: RunDir, slurm_of: Callable[[Cluster], Slurm] = Slurm.of) -> Trace:
    """The trace of `run`; raises ConfigError where run.json is damaged. A silent Slurm is no error: it is told."""
    found = report([run], slurm_of)
    if not found.statuses:
        raise found.problems[0]
    trace = gather(found.statuses[0])
    problems = tuple(f"Slurm's queue: {problem.message}" for problem in found.problems)
    return replace(trace, unknown=(*trace.unknown, *problems))

"""Why a run waits, failed or is slow, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.diagnosis.diagnose import explain, headline, needs_accounting
from clusterctl.diagnosis.findings import to_json
from clusterctl.diagnosis.trace_of import trace_of
from clusterctl.diagnosis.traces import with_accounting
from clusterctl.diagnosis.with_queue import with_the_queue
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.diagnosis.findings import Findings
    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import RunDir
    from clusterctl.spec import Cluster

__all__ = ["Diagnosis", "diagnose", "to_json"]


@dataclass(frozen=True)
class Diagnosis:
    """`findings`: one line each, the most important first."""

    status: Status
    details: Findings

    @property
    def findings(self) -> tuple[str, ...]:
        return (headline(self.details), *self.details.facts)

    @property
    def commands(self) -> tuple[str, ...]:
        """What to type next."""
        return self.details.commands


def diagnose(run: RunDir, slurm_of: Callable[[Cluster], Slurm] = Slurm.of) -> Diagnosis:
    """Raises ConfigError where run.json is damaged; what Slurm does not answer is among the unknown."""
    trace = trace_of(run, slurm_of)
    findings = explain(trace)
    if needs_accounting(findings):
        trace = with_accounting(trace, slurm_of)
        findings = explain(trace)
    return Diagnosis(trace.status, with_the_queue(trace, findings))

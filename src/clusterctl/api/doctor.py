"""What is verified of this machine and a cluster."""

from __future__ import annotations

from clusterctl.checks.environment import Finding, Verdict, examine
from clusterctl.checks.machine import gather
from clusterctl.config import load_cluster

__all__ = ["Finding", "Verdict", "doctor"]


def doctor(cluster: str | None = None) -> tuple[str, list[Finding]]:
    """The name of the cluster that was meant, and everything that was looked at."""
    target = load_cluster(cluster)
    return target.name, list(examine(gather(target)))

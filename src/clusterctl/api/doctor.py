"""What is verified of this machine and a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.checks.verify import check_cluster
from clusterctl.config import load_cluster

if TYPE_CHECKING:
    from clusterctl.checks.check import Check


def doctor(cluster: str | None = None) -> tuple[str, tuple[Check, ...]]:
    """The name of the cluster that was meant, and everything that was verified."""
    target = load_cluster(cluster)
    return target.name, check_cluster(target)

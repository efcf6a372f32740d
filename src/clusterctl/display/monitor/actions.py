"""What the monitor does besides looking, called from threads: nothing here prints or reads a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.api.nodes import nodes
from clusterctl.api.run import Run
from clusterctl.diagnosis.diagnose import diagnose_status
from clusterctl.display.capacity import node_lines
from clusterctl.display.explanation import explanation

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.observe.stage import Status
    from clusterctl.spec import Cluster


def _cancel(status: Status) -> None:
    Run(status.record.run.path).cancel()


def _resume(status: Status) -> None:
    Run(status.record.run.path).resume()


def _explain(status: Status) -> list[str]:
    return explanation(diagnose_status(status))


def _show_nodes(cluster: Cluster) -> list[str]:
    return node_lines(nodes(cluster.name))


@dataclass(frozen=True)
class Actions:
    """Each may raise ClusterctlError. `explain` and `nodes` return lines: the diagnosis of a run, a cluster's nodes."""

    cancel: Callable[[Status], object] = _cancel
    resume: Callable[[Status], object] = _resume
    explain: Callable[[Status], list[str]] = _explain
    nodes: Callable[[Cluster], list[str]] = _show_nodes

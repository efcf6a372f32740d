"""What the monitor can do besides looking. Each is handed in; what is None is not offered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.observe.stage import Status
    from clusterctl.spec import Cluster


@dataclass(frozen=True)
class Actions:
    """All of them may raise ClusterctlError, and are called from a thread: none may take the screen."""

    cancel: Callable[[Status], object] | None = None
    resume: Callable[[Status], object] | None = None
    explain: Callable[[Status], list[str]] | None = None  # the findings of `why`, line by line
    nodes: Callable[[Cluster], list[str]] | None = None  # the cluster's nodes, in a few lines

"""Send notifications from the login node that the runs themselves could not send."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.api.find import query
from clusterctl.errors import ClusterctlError, ConfigError, reason
from clusterctl.notifications.notifier import Notifier
from clusterctl.notifications.notifier import Try as Try
from clusterctl.notifications.send import Outcome as Outcome
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.api.find import Query

_NEWS_SECONDS = 7 * 86400.0  # runs that ended earlier are ignored


@dataclass(frozen=True)
class Notified:
    """The attempted messages, and problems with reading runs."""

    tries: tuple[Try, ...]
    problems: tuple[ClusterctlError, ...]


def notify(names: Iterable[str] = (), cluster: str | None = None) -> Notified:
    """Send the due messages for the runs called `names`, or for all: lost runs, and those whose script could not.

    Slurm is asked once for all runs. A message that may have arrived is not sent again. Raises what `find` raises.
    """
    return notify_about(query(names, cluster=cluster))


def notify_about(wanted: Query) -> Notified:
    """Like `notify`; for repeated calls keep `wanted`, which caches ended runs."""
    found = wanted.look()
    notifier = Notifier(dict(os.environ), Slurm.of)
    tries: list[Try] = []
    problems: list[ClusterctlError] = [*found.problems]
    for status in found.statuses:
        if status.ended is not None and found.as_of - status.ended > _NEWS_SECONDS:
            continue
        try:
            tries += notifier.send_pending(status)
        except (ClusterctlError, OSError) as error:  # must not affect the other runs
            run = status.record.run
            problems.append(ConfigError(f"cannot notify about {run.id}: {reason(error)}", f"see: ls -l {run.notified}"))
    return Notified(tuple(tries), tuple(problems))

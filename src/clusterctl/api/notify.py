"""Tell others what happened to runs, from the login node: what the runs themselves could not tell."""

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

_NEWS_SECONDS = 7 * 86400.0  # what ended before that is no news any more


@dataclass(frozen=True)
class Notified:
    """What was tried, and what stood in the way of knowing more."""

    told: tuple[Try, ...]
    problems: tuple[ClusterctlError, ...]


def notify(names: Iterable[str] = (), cluster: str | None = None) -> Notified:
    """Send the messages that are due for the runs called `names`, else for all: a lost run, a script that could not.

    Slurm is asked once for all of them. A message that may have arrived is not sent again. Raises what `find` raises.
    """
    return notify_about(query(names, cluster=cluster))


def notify_about(wanted: Query) -> Notified:
    """As `notify`; who asks again and again keeps `wanted`, which knows the runs that have ended."""
    found = wanted.look()
    notifier = Notifier(dict(os.environ), Slurm.of)
    told: list[Try] = []
    problems: list[ClusterctlError] = [*found.problems]
    for status in found.statuses:
        if status.ended is not None and found.as_of - status.ended > _NEWS_SECONDS:
            continue
        try:
            told += notifier.send_pending(status)
        except (ClusterctlError, OSError) as error:  # of one run; the others have news, too
            run = status.record.run
            problems.append(ConfigError(f"cannot tell of {run.id}: {reason(error)}", f"see: ls -l {run.notified}"))
    return Notified(tuple(told), tuple(problems))

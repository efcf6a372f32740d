"""On a node: sends the run's pending notifications, from its files alone, in a few seconds. Logs to host.log."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from clusterctl.launcher.notifications.notifier import Notifier
from clusterctl.launcher.notifications.send import Outcome
from clusterctl.launcher.observe.status import no_slurm, statuses_of
from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 8.0  # the batch script kills this process after 9


def main(folder: Path) -> None:
    """Send the pending messages about the run in `folder`; the rest is left to `clusterctl notify`."""
    notifier = Notifier(dict(os.environ), no_slurm, time.monotonic() + SECONDS)
    try:
        for status in statuses_of([RunDir(folder)], no_slurm).statuses:
            for one in notifier.send_pending(status):
                if one.delivery.outcome is not Outcome.SENT:
                    print(f"clusterctl[notify]: {one.what.event}: {one.channel}: {one.delivery}", file=sys.stderr)
    except (ClusterctlError, OSError) as error:
        print(f"clusterctl[notify]: {error}", file=sys.stderr)

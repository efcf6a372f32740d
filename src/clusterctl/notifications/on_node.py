"""On a node: tells what has happened to the run, by its files alone, in a few seconds. It writes into host.log."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError
from clusterctl.notifications.send import Outcome
from clusterctl.notifications.tell import Teller
from clusterctl.observe.status import no_slurm, report
from clusterctl.runs.layout import RunDir

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 8.0  # the batch script ends this process after 9


def main(folder: Path) -> None:
    """Tell what can be told of the run in `folder`; what cannot is left to `clusterctl notify`."""
    teller = Teller(dict(os.environ), no_slurm, time.monotonic() + SECONDS)
    try:
        for status in report([RunDir(folder)], no_slurm).statuses:
            for told in teller.tell(status):
                if told.delivery.outcome is not Outcome.SENT:
                    print(f"clusterctl[notify]: {told.what.event}: {told.channel}: {told.delivery}", file=sys.stderr)
    except (ClusterctlError, OSError) as error:
        print(f"clusterctl[notify]: {error}", file=sys.stderr)

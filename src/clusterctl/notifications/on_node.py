"""On a node: tells what has happened to the run, by its files alone, in a few seconds. It writes into host.log."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError, SlurmError
from clusterctl.notifications.send import Outcome
from clusterctl.notifications.tell import Teller
from clusterctl.observe.status import report
from clusterctl.runs.layout import RunDir

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.slurm import Slurm
    from clusterctl.spec import Cluster

SECONDS = 8.0  # the batch script ends this process after 9


def _no_slurm(_: Cluster) -> Slurm:
    """Thousands of jobs that end are not to ask the controller, each on its own."""
    raise SlurmError("Slurm is not asked from a node")


def main(folder: Path) -> None:
    """Tell what can be told of the run in `folder`; what cannot is left to `clusterctl notify`."""
    teller = Teller(dict(os.environ), _no_slurm, time.monotonic() + SECONDS)
    try:
        for status in report([RunDir(folder)], _no_slurm).statuses:
            for told in teller.tell(status):
                if told.delivery.outcome is not Outcome.SENT:
                    print(f"clusterctl[notify]: {told.what.event}: {told.channel}: {told.delivery}", file=sys.stderr)
    except (ClusterctlError, OSError) as error:
        print(f"clusterctl[notify]: {error}", file=sys.stderr)

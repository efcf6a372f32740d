"""On the first node of a run: copies new metrics to its trackers while the ranks run. Logs to host.log.

The batch script closes this process's stdin at the end of the attempt, and the rest is then copied within seconds. An
unreachable tracker is retried less and less often, and the missing points are left to `clusterctl track`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.status import no_slurm, statuses_of
from clusterctl.launcher.trackers.mirror import mirrors, update_all
from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.once import LeaseTaken

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.trackers.mirror import Mirror

LOOK_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0  # between two updates while trackers are unreachable
LAST_SECONDS = 8  # for the rest at the end; the batch script kills this process after 10


def main(folder: Path) -> None:
    """Track the run in `folder` until stdin is closed."""
    os.nice(10)  # the ranks come first
    run = RunDir(folder)
    try:
        record = read_record(run)
        while True:
            try:
                with mirrors(record) as opened:
                    return _follow(run, opened)
            except LeaseTaken:  # `clusterctl track --follow`, or an attempt on a node that was lost
                if _over(LOOK_SECONDS):
                    return None
    except (ClusterctlError, OSError) as error:
        _log(error)


def _follow(run: RunDir, opened: list[Mirror]) -> None:
    seconds, reported = LOOK_SECONDS, ""

    def update(status: Status | None = None) -> bool:
        nonlocal reported
        words = "; ".join(map(str, update_all(opened, status)[1]))
        if words not in ("", reported):
            _log(words)
            reported = words
        return not words

    while True:  # the first update imports the libraries, for which there is no time at the end
        seconds = LOOK_SECONDS if update() else min(2 * seconds, LONGEST_PAUSE_SECONDS)
        if _over(seconds):
            break
    statuses = statuses_of([run], no_slurm).statuses  # none for a damaged run
    update(statuses[0] if statuses else None)


def _over(seconds: float) -> bool:
    """Wait; returns whether the attempt has ended. From then on, an alarm limits the remaining time."""
    over = bool(select.select([sys.stdin], [], [], seconds)[0])
    if over:
        signal.alarm(LAST_SECONDS)
    return over


def _log(what: object) -> None:
    print(f"clusterctl[track]: {what}", file=sys.stderr)

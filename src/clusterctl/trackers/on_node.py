"""On the first node of a run: copies what is new to its trackers while the ranks run. It writes into host.log.

The batch script ends this process's standard input when the attempt has ended; what is left is then copied within
seconds. A tracker that is away is tried ever more rarely, and what it lacks is left to `clusterctl track`.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError
from clusterctl.observe.run_record import read_record
from clusterctl.observe.status import no_slurm, report
from clusterctl.runs.layout import RunDir
from clusterctl.runs.once import LeaseTaken
from clusterctl.trackers.mirror import mirrors, update_all

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.trackers.mirror import Mirror

LOOK_SECONDS = 10.0
RARELY_SECONDS = 300.0  # between two looks, when the trackers could not be reached for long
LAST_SECONDS = 8  # for what is left at the end; the batch script ends this process after 10


def main(folder: Path) -> None:
    """Track the run in `folder` until the end of standard input."""
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
        _say(error)


def _follow(run: RunDir, opened: list[Mirror]) -> None:
    seconds, reported = LOOK_SECONDS, ""
    while not _over(seconds):
        _, problems = update_all(opened)
        seconds = min(2 * seconds, RARELY_SECONDS) if problems else LOOK_SECONDS
        words = "; ".join(map(str, problems))
        if words not in ("", reported):
            _say(words)
            reported = words
    statuses = report([run], no_slurm).statuses  # none for a damaged run
    _, problems = update_all(opened, statuses[0] if statuses else None)
    for problem in problems:
        _say(problem)


def _over(seconds: float) -> bool:
    """Wait; whether the attempt has ended meanwhile. What remains to be done then ends in time, or is left."""
    over = bool(select.select([sys.stdin], [], [], seconds)[0])
    if over:
        signal.alarm(LAST_SECONDS)
    return over


def _say(what: object) -> None:
    print(f"clusterctl[track]: {what}", file=sys.stderr)

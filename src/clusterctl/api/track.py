"""Mirror a run into the trackers that its `[track]` names."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from clusterctl.api.find import as_run
from clusterctl.errors import UsageError
from clusterctl.observe.run_record import read_record
from clusterctl.runs.once import LeaseTaken
from clusterctl.trackers.mirror import mirrors, update_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.api.run import Run
    from clusterctl.errors import ClusterctlError
    from clusterctl.trackers.mirror import Mirror

_NODE_SECONDS = 15.0  # for what a run's node copies after the run has ended


class Tracking:
    """One run and its trackers; `update` copies what is new."""

    def __init__(self, run: Run, mirrors: list[Mirror]) -> None:
        self.run, self._mirrors = run, mirrors
        self.ended = False
        self.problems: list[ClusterctlError] = []  # of the last update

    def update(self) -> dict[str, int]:
        """Tracker -> the points that it got now. One that cannot be reached keeps nothing from the others."""
        status = self.run.status()
        self.ended = status.stage.ended and status.sure
        counts, self.problems = update_all(self._mirrors, status)
        return counts


@contextmanager
def tracking(name: Run | str, cluster: str | None = None) -> Iterator[Tracking]:
    """Mirror a run for as long as the block lasts. Raises UsageError where nothing is to be, or somebody else does."""
    run = as_run(name, cluster)
    record = read_record(run.directory)
    record.require_ours()
    if not record.job.track.names:
        hint = "add to the job file, or to your config.toml: [track] with tensorboard, wandb or mlflow"
        raise UsageError(f"{run.id} names no tracker", hint)
    deadline = time.monotonic() + _NODE_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                opened = stack.enter_context(mirrors(record))
                break
            except LeaseTaken as error:
                if time.monotonic() > deadline or not run.status().stage.ended:
                    raise UsageError(f"{run.id} is being tracked already", "it goes on by itself") from error
        yield Tracking(run, opened)


def track(run: Run | str, cluster: str | None = None) -> dict[str, int]:
    """Copy what is new in `run` to its trackers: tracker -> the number of points. What they have stays as it is.

    Raises UsageError where it names no tracker, ConfigError where one of them is not installed or cannot be reached.
    """
    with tracking(run, cluster) as mirrored:
        counts = mirrored.update()
        if mirrored.problems:
            raise mirrored.problems[0]
        return counts

"""What is verified before a run is submitted or resumed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterctl.checks.request import Obstacle, obstacles, refuse
from clusterctl.checks.surroundings import look_around
from clusterctl.errors import ConfigError
from clusterctl.runs.files import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterctl.config import Resolved
    from clusterctl.containers.listener import ProgressListener
    from clusterctl.launch.plan import Plan
    from clusterctl.slurm import Slurm


def verify(plan: Plan, resolved: Resolved, slurm: Slurm, progress: ProgressListener) -> tuple[Obstacle, ...]:
    """What may go wrong. Raises one error for everything that will; brings the image that the run needs."""
    refuse(_obstacles(resolved, plan.run.path.parent))
    if plan.view is None:
        return ()
    from clusterctl.checks.image import check_container, fetch_image

    if plan.view.image != resolved.job.container.image:
        fetch_image(plan, resolved, progress)
    return tuple(Obstacle(one.message, one.hint) for one in check_container(plan, resolved, slurm))


def _obstacles(resolved: Resolved, runs: Path) -> Iterator[Obstacle]:
    """What can be seen from here that would make the run fail; the folder of runs is made on the way."""
    try:
        _check_writable(runs)
    except ConfigError as error:
        yield Obstacle(error.message, error.hint)
    yield from obstacles(look_around(resolved))


def _check_writable(runs: Path) -> None:
    """Make `runs` and the folder of snapshots in it, private; what tasks run must not come from someone else."""
    hint = "set CLUSTERCTL_RUNS, or `runs` in the cluster file"
    try:
        code = make_private(make_private(runs) / ".code")
    except OSError as error:
        raise ConfigError(f"cannot make the folder of runs: {error.filename}: {error.strerror}", hint) from error
    if not os.access(runs, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to the folder of runs: {runs}", hint)
    if code.stat().st_uid != os.geteuid():
        raise ConfigError(f"belongs to someone else: {code}", hint)

"""Hold nodes for warm runs, wait for them, give them back."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.api.settings import settings
from clusterctl.config import load_cluster, resolve, runs_folder, shipped_folder
from clusterctl.errors import NotFoundError, SlurmError
from clusterctl.launch.warm import CLOSE_SIGNAL, hold, let_go
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from clusterctl.api.settings import Overrides
    from clusterctl.slurm.queue import Allocation

_FIRST_PAUSE_SECONDS = 0.2


def allocate(job: str | None = None, cluster: str | None = None, *, overrides: Overrides = ()) -> str:
    """Request the nodes that `job` would, or one node changed by `overrides`; returns the Slurm job ID.

    Raises what `load` raises, and SlurmError.
    """
    target, changes = load_cluster(cluster), settings(overrides)
    if job:
        resolved = resolve(job, target, changes)
    else:
        example = str(shipped_folder() / "jobs" / "command.toml")
        plain = ["resources.nodes=1", "resources.time=1h", f"resources.tasks_per_node={int(target.gpus_per_node) or 1}"]
        resolved = resolve(example, target, [*plain, *changes])
        resolved = replace(resolved, job=replace(resolved.job, name="alloc"))
    slurm = Slurm.of(resolved.cluster)
    return hold(resolved, slurm.path_of("sbatch"), slurm.environment)


def wait_for_nodes(job_id: str, cluster: str | None = None) -> Allocation:
    """Wait until the nodes are allocated, polling at intervals that grow to the cluster's polling floor."""
    target = load_cluster(cluster)
    slurm, floor, pause = Slurm.of(target), float(target.polling_floor), _FIRST_PAUSE_SECONDS
    while True:
        found = slurm.allocation(job_id)
        if found and found.is_held:
            return found
        if found is None or found.state not in ("PENDING", "CONFIGURING"):
            state = found.state if found else "gone"
            raise SlurmError(f"allocation {job_id} ended before it started: {state}", "squeue --me")
        time.sleep(pause)
        pause = min(2 * pause, max(floor, _FIRST_PAUSE_SECONDS))


def give_back(job_id: str, cluster: str | None = None) -> None:
    """Release the nodes of `job_id` and remove imported images from them. Raises NotFoundError and SlurmError."""
    target = load_cluster(cluster)
    slurm = Slurm.of(target)
    found = slurm.allocation(job_id) if job_id.isascii() and job_id.isdigit() else None
    if found is None:
        raise NotFoundError(f"you have no job with this ID: {job_id}", "list your jobs: squeue --me")
    if found.is_held and let_go(runs_folder(target), job_id):
        slurm.signal(CLOSE_SIGNAL, [job_id], batch=True)
    else:
        slurm.cancel([job_id])

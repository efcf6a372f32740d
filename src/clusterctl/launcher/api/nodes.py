"""Free resources of a cluster, where and when a job would fit, nodes held for warm runs, and a shell beside a rank."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.api.settings import settings
from clusterctl.launcher.config import load_cluster, resolve, runs_folder, shipped_folder
from clusterctl.launcher.observe.rank_events import beginnings
from clusterctl.launcher.slurm import Inventory, Slurm
from clusterctl.launcher.slurm.fits import Room, asked_of, room_for
from clusterctl.launcher.submission.script import part
from clusterctl.launcher.submission.warm import CLOSE_SIGNAL, hold, let_go
from clusterctl.shared.errors import NotFoundError, SlurmError, UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.slurm.queue import Allocation
    from clusterctl.launcher.submission.sbatch import Estimate, SlurmRefused


def nodes(cluster: str | None = None) -> Inventory:
    """The partitions and nodes of a cluster, no older than its polling floor. Raises SlurmError."""
    return Slurm.of(load_cluster(cluster)).nodes()


@dataclass(frozen=True)
class Fit:
    """Where a job fits according to sinfo, and Slurm's answer: the expected start, or why it would refuse."""

    resolved: Resolved
    rooms: tuple[Room, ...]
    answer: Estimate | SlurmRefused | None  # None: no estimate


def fit(job: str | os.PathLike[str], cluster: str | None = None, *, overrides: Overrides = ()) -> Fit:
    """Where and when `job` would fit, without submitting it. Raises what `plan` raises, and SlurmError."""
    from clusterctl.launcher.api.submitting.submit import plan
    from clusterctl.launcher.checks.verify import explained
    from clusterctl.launcher.submission.sbatch import SlurmRefused, estimate_start

    planned = plan(job, cluster, overrides=overrides)
    slurm = Slurm.of(planned.resolved.cluster)
    inventory = slurm.nodes()
    asked = asked_of(planned.resolved.job.resources)
    rooms = tuple(room_for(asked, partition, inventory) for partition in inventory.partitions.values())
    answer: Estimate | SlurmRefused | None
    try:
        answer = estimate_start(planned.plan, slurm.path_of("sbatch"), slurm.environment)
    except SlurmRefused as error:
        answer = explained(error, planned.resolved, slurm)
    return Fit(planned.resolved, rooms, answer)


# Hold nodes for warm runs, wait for them, give them back.


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


# Run a shell or a command beside a rank: a separate step on the rank's node that joins the rank's namespaces.


def beside(
    run: Run, rank: int = 0, command: Sequence[str] | Callable[[int], Sequence[str]] = (), *, terminal: bool = False
) -> tuple[list[str], Mapping[str, str]]:
    """The command line and environment of an srun for `command`, or a shell, in the container of `rank`.

    `command` may be a function of the PID of the rank's process, whose program is a Python. The run is not
    interrupted. Raises UsageError if the run is not running or has no such rank; NotFoundError if the rank has not
    started yet.
    """
    status = run.status()
    status.record.require_ours()
    if status.state.ended or status.attempt is None or status.job_id is None:
        raise UsageError(f"{run.id} is not running: {status.state}", f"clusterctl status {run.id}")
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    if rank >= tasks:
        raise UsageError(f"no such rank: {rank}", f"choose one of 0 to {tasks - 1}")
    began = beginnings(run.directory.attempt(status.attempt.number)).get(rank)
    if not began or not began.node or began.pid is None:
        raise NotFoundError(f"rank {rank} has not started yet", f"clusterctl status {run.id}")
    slurm = Slurm.of(status.record.cluster)
    flags = [
        f"--jobid={status.attempt.job_id or status.job_id}",
        f"--nodelist={began.node}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--mem=0",
    ]
    flags += ["--mpi=none", "--job-name=attach", "--pty" if terminal else "--unbuffered"]
    command = command(began.pid) if callable(command) else command
    words = ["bash", "-c", part("attach.sh"), "attach", str(began.pid), *command]
    return [slurm.path_of("srun"), *flags, *words], slurm.environment

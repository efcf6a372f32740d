"""`clusterctl alloc`: hold nodes for warm runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import warn
from clusterctl.config import load_cluster, resolve, runs_folder, shipped_folder
from clusterctl.errors import NotFoundError, SlurmError, UsageError
from clusterctl.launch.hold import CLOSE_SIGNAL, hold, let_go
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from clusterctl.config import Resolved
    from clusterctl.slurm.allocation import Allocation
    from clusterctl.spec import Cluster

_SHORTCUTS = ("nodes", "gpus_per_node", "tasks_per_node", "time", "partition", "account", "qos")
_FIRST_PAUSE_SECONDS = 0.2


@click.command(short_help="Hold nodes, to start runs on them in seconds")
@click.argument("job", required=False)
@click.option("--cluster", metavar="NAME", help="Where; default: as in submit.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change any value, as in submit.")
@click.option("--nodes", metavar="N", help="How many nodes.")
@click.option("--gpus-per-node", metavar="N", help="GPUs on each of them; default: the cluster's.")
@click.option("--tasks-per-node", metavar="N", help="The most tasks that a run will have on one of them.")
@click.option("--time", metavar="TIME", help="For how long: 90 (minutes), 4h, 1-00:00:00.")
@click.option("--partition", metavar="NAME", help="Slurm's partition.")
@click.option("--account", metavar="NAME", help="Slurm's account.")
@click.option("--qos", metavar="NAME", help="Slurm's quality of service.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the nodes are there.")
@click.option("--end", metavar="JOBID", help="Give the nodes of JOBID back, and take imported images off them.")
def alloc(
    job: str | None,
    cluster: str | None,
    settings: tuple[str, ...],
    no_wait: bool,
    end: str | None,
    **shortcuts: str | None,
) -> None:
    """Hold nodes, as many and as large as JOB asks for, or as the options say; print the allocation's number.

    Runs start on them without queueing: clusterctl submit JOB --in-allocation NUMBER. They are held until the time is
    over, or until --end.

    \b
    Examples:
      clusterctl alloc cora --time 2h
      clusterctl alloc --nodes 2 --gpus-per-node 8 --time 4h
      clusterctl alloc --end 12345
    """
    target = load_cluster(cluster)
    typed = [f"resources.{name}={shortcuts[name]}" for name in _SHORTCUTS if shortcuts[name] is not None]
    if end:
        if job or typed or settings:
            raise UsageError("--end holds no nodes: it gives some back", f"clusterctl alloc --end {end}")
        _end(target, end)
        return
    resolved = _wanted(job, target, [*settings, *typed])
    slurm = Slurm.of(target)
    number = hold(resolved, slurm.path_of("sbatch"), slurm.environment)
    click.echo(number)
    if no_wait:
        click.echo(f"asked for; see: squeue --me -j {number}", err=True)
        return
    held = _wait(slurm, number, float(target.polling_floor))
    name = job or "JOB"
    flag = f" --cluster {cluster}" if cluster else ""
    click.echo(
        f"{held.nodes} nodes held: {held.node_list}\n"
        f"next: clusterctl submit {name}{flag} --in-allocation {number} --follow\n"
        f"      clusterctl alloc{flag} --end {number}",
        err=True,
    )


def _wanted(job: str | None, cluster: Cluster, settings: list[str]) -> Resolved:
    """What is to be held: a job's resources, or those of the example among the jobs, on one node unless told more."""
    if job:
        return resolve(job, cluster, settings)
    example = str(shipped_folder() / "jobs" / "command.toml")
    plain = ["resources.nodes=1", "resources.time=1h", f"resources.tasks_per_node={cluster.gpus_per_node or 1}"]
    resolved = resolve(example, cluster, [*plain, *settings])
    return replace(resolved, job=replace(resolved.job, name="alloc"))


def _wait(slurm: Slurm, job_id: str, floor: float) -> Allocation:
    """Until the nodes are there, asking ever more rarely, at last at the cluster's polling floor."""
    pause = _FIRST_PAUSE_SECONDS
    try:
        while True:
            found = slurm.allocation(job_id)
            if found and found.is_held:
                return found
            if found is None or found.state not in ("PENDING", "CONFIGURING"):
                state = found.state if found else "gone"
                raise SlurmError(f"allocation {job_id} ended before it began: {state}", "squeue --me")
            time.sleep(pause)
            pause = min(2 * pause, max(floor, _FIRST_PAUSE_SECONDS))
    except KeyboardInterrupt:
        warn(f"allocation {job_id} stays in the queue", f"give it up with: clusterctl alloc --end {job_id}")
        raise


def _end(cluster: Cluster, job_id: str) -> None:
    slurm = Slurm.of(cluster)
    found = slurm.allocation(job_id) if job_id.isascii() and job_id.isdigit() else None
    if found is None:
        raise NotFoundError(f"you have no job with this number: {job_id}", "see your jobs by hand: squeue --me")
    if found.is_held and let_go(runs_folder(cluster), job_id):
        slurm.signal(CLOSE_SIGNAL, [job_id], batch=True)
    else:
        slurm.cancel([job_id])
    click.echo(f"gave back {job_id}", err=True)

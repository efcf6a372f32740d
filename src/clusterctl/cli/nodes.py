"""`clusterctl nodes`: show partitions and nodes, and where a job would fit."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from clusterctl.config import load_cluster, resolve
from clusterctl.display.plain import when
from clusterctl.errors import SlurmError, UsageError
from clusterctl.slurm import Slurm
from clusterctl.slurm.fits import asked_of, gpus_by_type, largest_now, room_for

if TYPE_CHECKING:
    from clusterctl.config import Resolved
    from clusterctl.launch.sbatch import Estimate, SlurmRefused
    from clusterctl.slurm import Inventory, Node, Partition
    from clusterctl.slurm.fits import Room
    from clusterctl.spec import Cluster

SCHEMA_VERSION = 1


@click.command(short_help="Show what is free, and where a job would fit")
@click.option("--cluster", metavar="NAME", help="The cluster to ask; default: as in submit.")
@click.option("--for", "job", metavar="JOB", help="Say where and when JOB would fit; it is not submitted.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="With --for: change a value, as in submit.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="What stdout gets.")
def nodes(cluster: str | None, job: str | None, settings: tuple[str, ...], output: str) -> None:
    """Show the partitions and nodes of a cluster: what is free now, what is drained and why.

    Free is where there is room. Whether you may have it, Slurm alone knows: --for asks it.

    \b
    Examples:
      clusterctl nodes
      clusterctl nodes --for reddit --set resources.nodes=4
    """
    if settings and not job:
        raise UsageError("--set changes a job, and none is named", "clusterctl nodes --for JOB --set KEY=VALUE")
    target = load_cluster(cluster)
    if job:
        _show_where(resolve(job, target, settings), output)
    else:
        _show_all(target, output)


def _show_all(cluster: Cluster, output: str) -> None:
    inventory = Slurm.of(cluster).nodes()
    if output == "json":
        click.echo(json.dumps(to_json(cluster, inventory), indent=1))
        return
    from clusterctl.display import nodes as tables
    from clusterctl.display import terminal

    console = terminal.data()
    tables.show_partitions(console, inventory)
    console.print()
    tables.show_nodes(console, inventory.nodes.values())


def _show_where(resolved: Resolved, output: str) -> None:
    """Where there is room by sinfo, and Slurm's own word for the job as it stands: one question each."""
    from clusterctl.api.submit import planned
    from clusterctl.launch.sbatch import SlurmRefused, estimate_start

    slurm = Slurm.of(resolved.cluster)
    inventory = slurm.nodes()
    asked = asked_of(resolved.job.resources)
    rooms = [room_for(asked, partition, inventory) for partition in inventory.partitions.values()]
    answer: Estimate | SlurmRefused | None
    try:
        answer = estimate_start(planned(resolved), slurm.path_of("sbatch"), slurm.environment)
    except SlurmRefused as error:
        answer = error
    if output == "json":
        click.echo(json.dumps(_where_json(resolved, rooms, answer), indent=1))
        return
    from clusterctl.display import nodes as tables
    from clusterctl.display import terminal
    from clusterctl.display.plain import plain_lines

    console = terminal.data()
    tables.show_room(console, rooms)
    console.print()
    click.echo(plain_lines(_verdict(answer)))


def _verdict(answer: Estimate | SlurmRefused | None) -> str:
    if answer is None:
        return "Slurm gave no time (sbatch --test-only)"
    if isinstance(answer, SlurmError):
        return f"Slurm would not take it: {answer.words}\nhint: {answer.hint}"
    return f"Slurm would start it {when(answer.start, time.time())}, in partition {answer.partition}"


def _where_json(resolved: Resolved, rooms: list[Room], answer: Estimate | SlurmRefused | None) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "job": resolved.job.name,
        "cluster": resolved.cluster.name,
        "asked": asdict(asked_of(resolved.job.resources)),
        "partitions": [{**asdict(room), "fits_now": room.fits_now} for room in rooms],
        "estimate": None if answer is None or isinstance(answer, SlurmError) else asdict(answer),
        "refused": answer.message if isinstance(answer, SlurmError) else None,
    }


def to_json(cluster: Cluster, inventory: Inventory) -> dict[str, Any]:
    """What `nodes -o json` prints. Memory is in MiB."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": cluster.name,
        "as_of": inventory.taken_at,
        "partitions": [_partition_json(partition, inventory) for partition in inventory.partitions.values()],
        "nodes": [_node_json(node) for node in inventory.nodes.values()],
    }


def _partition_json(partition: Partition, inventory: Inventory) -> dict[str, Any]:
    largest, gpus = largest_now(partition, inventory), gpus_by_type(inventory.nodes_of(partition))
    return {
        "name": partition.name,
        "default": partition.default,
        "up": partition.up,
        "longest_seconds": partition.longest,
        "most_nodes": partition.most_nodes,
        "nodes": list(partition.nodes),
        "gpus": {kind or "gpu": {"free": free, "total": total} for kind, (free, total) in gpus.items()},
        "largest_now": asdict(largest) if largest else None,
    }


def _node_json(node: Node) -> dict[str, Any]:
    return {
        "name": node.name,
        "partitions": list(node.partitions),
        "state": node.state,
        "flags": sorted(node.flags),
        "can_start": node.can_start,
        "reason": node.reason,
        "cpus": {"free": node.cpus_free, "total": node.cpus},
        "memory": {"free": node.memory_unallocated, "total": node.memory},
        "gpus": [{"type": kind.type, "total": kind.total, "used": kind.used} for kind in node.gpus],
        "features": sorted(node.features),
    }

"""Free resources of a cluster, and where and when a job would fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.config import load_cluster
from clusterctl.errors import SlurmError
from clusterctl.slurm import Inventory, Slurm
from clusterctl.slurm.fits import Room, asked_of, gpus_by_type, largest_now, room_for

if TYPE_CHECKING:
    import os

    from clusterctl.api.settings import Overrides
    from clusterctl.config import Resolved
    from clusterctl.launch.sbatch import Estimate, SlurmRefused
    from clusterctl.slurm import Node, Partition

SCHEMA_VERSION = 1


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
    from clusterctl.api.submit import plan
    from clusterctl.checks.verify import explained
    from clusterctl.launch.sbatch import SlurmRefused, estimate_start

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


def fit_record(found: Fit) -> dict[str, Any]:
    """The output of `nodes --for JOB -o json`."""
    resolved, answer = found.resolved, found.answer
    return {
        "schema_version": SCHEMA_VERSION,
        "job": resolved.job.name,
        "cluster": resolved.cluster.name,
        "asked": asdict(asked_of(resolved.job.resources)),
        "partitions": [{**asdict(room), "fits_now": room.fits_now} for room in found.rooms],
        "estimate": None if answer is None or isinstance(answer, SlurmError) else asdict(answer),
        "refused": answer.message if isinstance(answer, SlurmError) else None,
    }


def nodes_record(inventory: Inventory, cluster: str | None = None) -> dict[str, Any]:
    """The output of `nodes -o json`. Memory is in MiB."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cluster": load_cluster(cluster).name,
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

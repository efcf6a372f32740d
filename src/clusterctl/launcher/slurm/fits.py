"""What is free on a cluster, and which jobs fit: pure functions of sinfo's output.

Considers only free resources: limits of users and accounts, and jobs ahead in the queue, are left to Slurm.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.shared.spec.values import GpuCount, mebibytes, plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.slurm import Inventory, Node, Partition
    from clusterctl.shared.spec import Resources

NO_LIMIT_SECONDS = 366 * 86400  # of a job without a time limit
_PLAIN_FEATURE = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Asked:
    """A job's request for each of its `nodes`. Memory is in MiB; None: the site's default."""

    nodes: int
    cpus: int
    gpus: int
    seconds: int
    memory: int | None = None
    gpu_type: str = ""
    constraint: str = ""
    exclusive: bool = False


@dataclass(frozen=True)
class Largest:
    """The largest job that fits now, measured in GPUs, or in CPUs without GPUs."""

    nodes: int
    cpus_per_node: int
    gpus_per_node: int


@dataclass(frozen=True)
class Room:
    """Whether a partition fits a job: the number of nodes with room for it now, and the obstacles."""

    partition: str
    nodes_with_room: int
    objections: tuple[str, ...]  # empty: it fits now

    @property
    def fits_now(self) -> bool:
        return not self.objections


def asked_of(resources: Resources) -> Asked:
    """The request per node of `resources`."""
    cpus = (resources.tasks_per_node or 1) * resources.cpus_per_task
    per_node = GpuCount(resources.gpus_per_node or 0)
    gpus, gpu_type = int(per_node), per_node.type
    for word in (resources.gres or "").split(","):
        kind, *rest = word.split(":")
        if kind == "gpu":
            gpu_type = rest[0] if rest and not rest[0].isdigit() else ""
            gpus = max(gpus, int(rest[-1]) if rest and rest[-1].isdigit() else 1)
    memory = None  # the site's default
    if resources.memory:
        memory = mebibytes(resources.memory)
    elif resources.mem_per_cpu:
        memory = mebibytes(resources.mem_per_cpu) * cpus
    elif resources.mem_per_gpu:
        memory = mebibytes(resources.mem_per_gpu) * gpus
    return Asked(
        nodes=resources.held_nodes,
        cpus=cpus,
        gpus=gpus,
        seconds=resources.time,
        memory=memory,
        gpu_type=gpu_type,
        constraint=resources.constraint or "",
        exclusive=resources.exclusive,
    )


def has_room(node: Node, asked: Asked) -> bool:
    """Whether `node` could run its share of the job now."""
    if asked.exclusive and node.state != "idle":
        return False
    return (
        node.can_start
        and node.cpus_free >= asked.cpus
        and gpus_free(node, asked) >= asked.gpus
        and node.memory_unallocated >= (asked.memory or 0)
        and has_features(node, asked.constraint)
    )


def gpus_free(node: Node, asked: Asked) -> int:
    """The free GPUs on `node` of the type that the job requests, or of any type if it names none."""
    fitting = sum(kind.free for kind in node.gpus if asked.gpu_type in ("", kind.type))
    return fitting if node.can_start else 0


def room_for(asked: Asked, partition: Partition, inventory: Inventory) -> Room:
    """Whether `partition` has room for the job now, and if not, why."""
    nodes = inventory.nodes_of(partition)
    with_room = sum(has_room(node, asked) for node in nodes)
    objections = []
    if not partition.up:
        objections.append("the partition is not accepting jobs")
    if partition.longest is not None and asked.seconds > partition.longest:
        objections.append(f"the time limit is {partition.longest // 60} min")
    if partition.most_nodes is not None and asked.nodes > partition.most_nodes:
        objections.append(f"jobs are limited to {plural(partition.most_nodes, 'node')}")
    if not objections and with_room < asked.nodes:
        objections.append(_shortage(asked, nodes, with_room))
    return Room(partition.name, with_room, tuple(objections))


def largest_now(partition: Partition, inventory: Inventory) -> Largest | None:
    """The largest job with nodes of equal size that fits into `partition`; None if nothing is free."""
    nodes = [node for node in inventory.nodes_of(partition) if node.cpus_free] if partition.up else []
    most = partition.most_nodes or len(nodes)
    if gpus := [node.gpus_free for node in nodes if node.gpus_free]:
        size, count = _largest_share(gpus, most)
        cpus = sorted((node.cpus_free for node in nodes if node.gpus_free >= size), reverse=True)
        return Largest(count, cpus[count - 1], size)
    if nodes:
        size, count = _largest_share([node.cpus_free for node in nodes], most)
        return Largest(count, size, 0)
    return None


def _largest_share(free: list[int], most: int) -> tuple[int, int]:
    """The share per node and the number of nodes, at most `most`, that give the largest total."""
    shares = [(size, min(most, sum(other >= size for other in free))) for size in set(free)]
    return max(shares, key=lambda share: (share[0] * share[1], share[0]))


def gpus_by_type(nodes: Iterable[Node]) -> dict[str, tuple[int, int]]:
    """Type -> (free, total) over `nodes`; GPUs of nodes that accept no jobs are not free."""
    free: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for node in nodes:
        for kind in node.gpus:
            total[kind.type] += kind.total
            free[kind.type] += kind.free if node.can_start else 0
    return {kind: (free[kind], total[kind]) for kind in total}


def has_features(node: Node, constraint: str) -> bool:
    """Evaluates only features joined by '&'; any other constraint is left to Slurm and counts as met."""
    words = constraint.split("&") if constraint else []
    return not all(map(_PLAIN_FEATURE.fullmatch, words)) or node.features >= set(words)


def _shortage(asked: Asked, nodes: list[Node], with_room: int) -> str:
    """The obstacle, naming the scarce resource if there is only one."""
    if asked.exclusive:
        return f"{with_room} of {asked.nodes} nodes are completely free"
    starting = [node for node in nodes if node.can_start]
    wants = [
        (asked.cpus, "CPU", [node.cpus_free for node in starting]),
        (asked.gpus, f"{asked.gpu_type} GPU".strip(), [gpus_free(node, asked) for node in starting]),
        (asked.memory or 0, "MiB of memory", [node.memory_unallocated for node in starting]),
    ]
    short = [
        plural(wanted, name) if name.endswith("PU") else f"{wanted} {name}"
        for wanted, name, free in wants
        if wanted and sum(size >= wanted for size in free) < asked.nodes
    ]
    what = " and ".join(short)
    return f"{with_room} of {asked.nodes} nodes have " + (f"{what} free" if what else "the requested resources")

"""What is free on a cluster, and what fits into it: pure functions over what sinfo said.

Where there is room: limits of a user or an account, and jobs that wait ahead, are Slurm's to weigh.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.spec.values import GpuCount, mebibytes, plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.slurm import Inventory, Node, Partition
    from clusterctl.spec import Resources

_PLAIN_FEATURE = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Asked:
    """What a job asks of each of its `nodes`. Memory is in MiB; None: what the site gives a job that asks for none."""

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
    """The largest job that there is room for now, by GPUs, or by CPUs where there are none."""

    nodes: int
    cpus_per_node: int
    gpus_per_node: int


@dataclass(frozen=True)
class Room:
    """How a partition stands to a job: the nodes with room for it now, and what there is against it."""

    partition: str
    nodes_with_room: int
    objections: tuple[str, ...]  # none: it fits now

    @property
    def fits_now(self) -> bool:
        return not self.objections


def asked_of(resources: Resources) -> Asked:
    """What `resources` ask of each node."""
    cpus = (resources.tasks_per_node or 1) * resources.cpus_per_task
    per_node = GpuCount(resources.gpus_per_node or 0)
    gpus, gpu_type = int(per_node), per_node.type
    for word in (resources.gres or "").split(","):
        kind, *rest = word.split(":")
        if kind == "gpu":
            gpu_type = rest[0] if rest and not rest[0].isdigit() else ""
            gpus = max(gpus, int(rest[-1]) if rest and rest[-1].isdigit() else 1)
    return Asked(
        nodes=resources.nodes,
        cpus=cpus,
        gpus=gpus,
        seconds=resources.time,
        memory=_memory(resources, cpus, gpus),
        gpu_type=gpu_type,
        constraint=resources.constraint or "",
        exclusive=resources.exclusive,
    )


def has_room(node: Node, asked: Asked) -> bool:
    """Whether `node` could take its share of the job now."""
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
    """The GPUs of the type that the job asks for, or of any if it names none, that could be had now on `node`."""
    fitting = sum(kind.free for kind in node.gpus if asked.gpu_type in ("", kind.type))
    return fitting if node.can_start else 0


def room_for(asked: Asked, partition: Partition, inventory: Inventory) -> Room:
    """Whether `partition` has room for the job now, and if not, what is against it."""
    nodes = inventory.nodes_of(partition)
    with_room = sum(has_room(node, asked) for node in nodes)
    objections = []
    if not partition.up:
        objections.append("the partition starts no jobs")
    if partition.longest is not None and asked.seconds > partition.longest:
        objections.append(f"runs may last {partition.longest // 60} min here")
    if partition.most_nodes is not None and asked.nodes > partition.most_nodes:
        objections.append(f"a run may have at most {partition.most_nodes} of its nodes")
    if not objections and with_room < asked.nodes:
        objections.append(_shortage(asked, nodes, with_room))
    return Room(partition.name, with_room, tuple(objections))


def largest_now(partition: Partition, inventory: Inventory) -> Largest | None:
    """The largest job, in nodes of equal size, that there is room for in `partition`; None where nothing is free."""
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
    """What each of how many nodes can give, at most `most` nodes, so that the sum is largest."""
    shares = [(size, min(most, sum(other >= size for other in free))) for size in set(free)]
    return max(shares, key=lambda share: (share[0] * share[1], share[0]))


def gpus_by_type(nodes: Iterable[Node]) -> dict[str, tuple[int, int]]:
    """Type -> (free, total) over `nodes`; a GPU of a node that starts no jobs is not free."""
    free: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for node in nodes:
        for kind in node.gpus:
            total[kind.type] += kind.total
            free[kind.type] += kind.free if node.can_start else 0
    return {kind: (free[kind], total[kind]) for kind in total}


def _memory(resources: Resources, cpus: int, gpus: int) -> int | None:
    if resources.memory:
        return mebibytes(resources.memory)
    if resources.mem_per_cpu:
        return mebibytes(resources.mem_per_cpu) * cpus
    return mebibytes(resources.mem_per_gpu) * gpus if resources.mem_per_gpu else None


def has_features(node: Node, constraint: str) -> bool:
    """Judged only where the constraint is features joined by '&': the rest of its grammar is Slurm's to read."""
    words = constraint.split("&") if constraint else []
    return not all(map(_PLAIN_FEATURE.fullmatch, words)) or node.features >= set(words)


def _shortage(asked: Asked, nodes: list[Node], with_room: int) -> str:
    """Which of the things asked for is short, if it is one alone."""
    if asked.exclusive:
        return f"{with_room} of {asked.nodes} nodes are wholly free"
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
    return f"{with_room} of {asked.nodes} nodes have " + (f"{what} free" if what else "what it asks for")

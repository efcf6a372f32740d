"""Nodes and partitions from sinfo, what is free on them, and which jobs fit: one request, then pure functions.

Tested with output of Slurm 22.05; additions of 23.11, 24.11 and 25.05 (states, GPU types) are from sinfo(1) and
scontrol(1) of those versions. Unlike AllocTRES, `GresUsed` is available even if the site does not account for GPUs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.slurm.queue import SEPARATOR, columns, count_gpus, parse_number
from clusterctl.shared.spec.values import GpuCount, mebibytes, parse_limit, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.shared.spec import Resources

FIELDS = (
    # one name per line with -N; NodeHost would be the same for all nodes of a sandbox without namespaces
    *("NodeList", "Partition", "Available", "Time", "Size", "StateComplete", "CPUsState", "Memory", "AllocMem"),
    *("FreeMem", "Gres", "GresUsed", "Features", "Reason"),
)
SINFO = ("sinfo", "-h", "-N", "-O", columns(FIELDS))

_STARTS_JOBS = frozenset({"idle", "mixed"})
# Flags of nodes that start no ordinary jobs. Planned nodes still accept short jobs.
_KEEPS_FROM_STARTING = frozenset(
    {
        *("down", "drain", "drained", "draining", "fail", "failing", "inval", "invalid_reg"),
        *("no_respond", "not_responding", "blocked", "maint", "maintenance", "reserved", "resv"),
        *("power_down", "powering_down", "reboot", "reboot_issued", "reboot_requested"),
    }
)


@dataclass(frozen=True)
class Gpus:
    """The GPUs of one type on a node. `type` is empty if the site does not name types."""

    type: str
    total: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)


@dataclass(frozen=True)
class Node:
    """One node. Memory is in MiB; `memory_free` is as reported by its operating system, or None."""

    name: str
    partitions: tuple[str, ...]
    state: str  # idle, mixed, allocated, down ...
    flags: frozenset[str]  # drain, planned, not_responding ...
    reason: str  # the administrator's reason for draining it or taking it down
    cpus: int
    cpus_allocated: int
    memory: int
    memory_allocated: int
    memory_free: int | None
    gpus: tuple[Gpus, ...]
    features: frozenset[str]

    @property
    def can_start(self) -> bool:
        """Whether this node accepts ordinary jobs if it has room."""
        return self.state in _STARTS_JOBS and not self.flags & _KEEPS_FROM_STARTING

    @property
    def cpus_free(self) -> int:
        return max(0, self.cpus - self.cpus_allocated) if self.can_start else 0

    @property
    def memory_unallocated(self) -> int:
        return max(0, self.memory - self.memory_allocated) if self.can_start else 0

    @property
    def gpus_free(self) -> int:
        return sum(kind.free for kind in self.gpus) if self.can_start else 0


@dataclass(frozen=True)
class Partition:
    """One partition: whether it accepts jobs, and its limits on time and size; None is unlimited."""

    name: str
    default: bool
    up: bool
    longest: int | None  # seconds
    most_nodes: int | None
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Inventory(Shown):
    """A snapshot of nodes and partitions by name: the default partition first, nodes in sinfo's order."""

    nodes: Mapping[str, Node]
    partitions: Mapping[str, Partition]
    taken_at: float
    skipped: int = 0  # foreign lines in the output

    def nodes_of(self, partition: Partition) -> list[Node]:
        return [self.nodes[name] for name in partition.nodes]

    def partition_for(self, name: str | None) -> Partition | None:
        """The partition called `name`, or the default one if None; None if it does not exist.

        Of several, `a,b`, Slurm uses the one that starts the job first: they are taken together as far as they exist.
        """
        if name is not None and "," in name:
            several = [self.partitions[one] for one in name.split(",") if one in self.partitions]
            return _together(name, several) if several else None
        if name is not None:
            return self.partitions.get(name)
        return next((partition for partition in self.partitions.values() if partition.default), None)


def _together(name: str, several: Sequence[Partition]) -> Partition:
    """What a job may get in one of several partitions."""

    def most(limits: Iterable[int | None]) -> int | None:
        known = [*limits]
        return None if None in known else max(filter(None, known), default=None)

    return Partition(
        name,
        default=False,
        up=any(one.up for one in several),
        longest=most(one.longest for one in several),
        most_nodes=most(one.most_nodes for one in several),
        nodes=tuple(dict.fromkeys(node for one in several for node in one.nodes)),
    )


def parse_nodes(text: str, taken_at: float) -> Inventory:
    """Parse the output of `SINFO`; never raises: foreign lines are skipped and counted."""
    nodes: dict[str, Node] = {}
    partitions: dict[str, Partition] = {}
    of_node: defaultdict[str, dict[str, None]] = defaultdict(dict)  # an ordered set
    of_partition: defaultdict[str, dict[str, None]] = defaultdict(dict)
    skipped = 0
    for line in text.split("\n"):
        values = line.split(SEPARATOR)
        if len(values) <= len(FIELDS) or not values[0] or not values[1].strip("*"):
            skipped += bool(line.strip())
            continue
        title, available, longest, size = values[1:5]
        partition = Partition(
            name=title.removesuffix("*"),
            default=title.endswith("*"),
            up=available == "up",
            longest=parse_limit(longest),
            most_nodes=parse_number(size.rpartition("-")[2]),
            nodes=(),
        )
        partitions.setdefault(partition.name, partition)
        if values[0] not in nodes:
            nodes[values[0]] = _parse_node(values)
        of_node[values[0]][partition.name] = None
        of_partition[partition.name][values[0]] = None
    return Inventory(
        {name: replace(node, partitions=tuple(of_node[name])) for name, node in nodes.items()},
        {
            partition.name: replace(partition, nodes=tuple(of_partition[partition.name]))
            for partition in sorted(partitions.values(), key=lambda each: (not each.default, each.name))
        },
        taken_at,
        skipped,
    )


_PARTITION = re.compile(r"^PartitionName=(\S+)$(.*?)(?=^PartitionName=|\Z)", re.MULTILINE | re.DOTALL)
_TOTAL_NODES = re.compile(r"\bTotalNodes=([0-9]+)\b")


def configured_nodes(partitions: str, name: str | None) -> int | None:
    """The nodes of a partition (None: the default one) from `scontrol show partition`; None if it is not there.

    Unlike sinfo, it counts nodes of a cloud that are powered off (`PrivateData` in slurm.conf(5)).
    """
    for found, values in _PARTITION.findall(partitions):
        wanted = " Default=YES" in values if name is None else found == name
        if wanted and (total := _TOTAL_NODES.search(values)):
            return int(total[1])
    return None


def parse_gpus(gres: str, used: str) -> tuple[Gpus, ...]:
    """`gpu:a100:4(S:0-1),nvme:1` and `gpu:a100:3(IDX:0-2)` -> four a100, three of them in use."""
    totals, in_use = count_gpus(gres), count_gpus(used)
    return tuple(Gpus(kind, total, in_use[kind]) for kind, total in totals.items())


def _parse_node(values: list[str]) -> Node:
    name, _, _, _, _, state, cpus, memory, allocated, free, gres, used, features = values[:13]
    base, *flags = state.lower().split("+")
    allocated_cpus, _, _, all_cpus = (*cpus.split("/"), "", "", "")[:4]
    return Node(
        name=name,
        partitions=(),
        state=base,
        flags=frozenset(flags) | ({base} & _KEEPS_FROM_STARTING),
        reason=_given(SEPARATOR.join(values[13:-1])),
        cpus=parse_number(all_cpus) or 0,
        cpus_allocated=parse_number(allocated_cpus) or 0,
        memory=parse_number(memory) or 0,
        memory_allocated=parse_number(allocated) or 0,
        memory_free=parse_number(free),
        gpus=parse_gpus(gres, used),
        features=frozenset(filter(None, _given(features).split(","))),
    )


def _given(text: str) -> str:
    return "" if text in ("(null)", "none", "N/A") else text


# What is free, and which jobs fit. Only free resources count: limits of users and accounts, and earlier jobs, are left
# to Slurm.

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

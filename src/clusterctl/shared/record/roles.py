"""The roles of a job: which ranks are whose, where they run, and what their placeholders stand for.

All nodes of a job have the same number of ranks, as Slurm starts them: rank = node * tasks_per_node + slot. Roles that
share nodes have slots side by side, in the order of the file. A slot that no role needs on its node is idle: its rank
runs nothing until the job ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clusterctl.shared.record.plain_text import stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clusterctl.shared.record.fields import Fields

MOST_RANKS = 100_000
IDLE = "idle"  # label of a rank without a role
OF_THE_RANK = ("port", "host", "rank", "ranks", "node", "nodes", "local_rank")
OF_A_ROLE = ("addresses", "hosts", "host", "port")
_PLACEHOLDER = re.compile(
    r"\{\{(?P<literal>[A-Za-z_][\w.-]*)\}\}|(?P<brace>\{\{)|\{(?P<name>[A-Za-z_][\w-]*(?:\.[A-Za-z_]\w*)?)\}"
)


class Shape(Protocol):
    """What decides where a role runs."""

    @property
    def nodes(self) -> int: ...
    @property
    def share(self) -> bool: ...
    @property
    def tasks_per_node(self) -> int | None: ...
    @property
    def cpus_per_task(self) -> int: ...
    @property
    def gpus_per_node(self) -> int: ...


class StoredShape(NamedTuple):
    """A shape as a run has recorded it."""

    nodes: int
    share: bool
    tasks_per_node: int | None
    cpus_per_task: int
    gpus_per_node: int

    @classmethod
    def of(cls, table: Fields) -> StoredShape:
        numbers = (table.whole(name) for name in ("nodes", "tasks_per_node", "cpus_per_task", "gpus_per_node"))
        nodes, tasks, cpus, gpus = numbers
        return cls(nodes or 1, table.flag("share"), tasks, cpus or 1, gpus or 0)


class Seat(NamedTuple):
    """The place of a rank within its role. CPUs and GPUs are counted within those of the job on its node."""

    role: str
    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    node: int
    nodes: int
    first_node: int  # of the role, within the job
    cpus: range
    gpus: range

    def __str__(self) -> str:
        return f"{self.role} r{self.rank:02}"


@dataclass(frozen=True)
class Seating:
    """All seats by rank, and what the job needs of each node for them."""

    seats: Mapping[int, Seat]
    nodes: int
    tasks_per_node: int
    cpus_per_node: int
    gpus_per_node: int
    gpus_on: tuple[int, ...]  # those used on each node

    @property
    def cpus_per_task(self) -> int:
        """What each of the node's equal tasks asks for, so that together they have enough."""
        return -(-self.cpus_per_node // self.tasks_per_node)

    def ranks_of(self, role: str) -> list[int]:
        """Its ranks in the job, in the order of their ranks in the role."""
        return [rank for rank, seat in self.seats.items() if seat.role == role]

    def member(self, rank: int) -> tuple[str, int]:
        """The role of a rank of the job, and its rank in the role."""
        seat = self.seats.get(rank)
        return (seat.role, seat.rank) if seat else (IDLE, rank)

    def label(self, rank: int) -> str:
        """Such as `trainer r03`."""
        return labels([self.member(rank)])


def seating(roles: Mapping[str, Shape]) -> Seating:
    """Where the ranks of `roles` run. A role that shares needs one before it with at least as many nodes."""
    on_node: dict[int, list[str]] = {}
    first: dict[str, int] = {}
    base = taken = 0
    for name, role in roles.items():
        if not role.share:
            base, taken = taken, taken + role.nodes
        first[name] = base
        for node in range(base, base + role.nodes):
            on_node.setdefault(node, []).append(name)
    nodes = max(on_node, default=-1) + 1
    slots = [sum(roles[name].tasks_per_node or 1 for name in on_node.get(node, ())) for node in range(nodes)]
    per_node, seats = max(slots, default=1), dict[int, Seat]()
    used: list[tuple[int, int]] = []
    for node in range(nodes):
        slot = cpu = gpu = 0
        for name in on_node.get(node, ()):
            role = roles[name]
            tasks, own = role.tasks_per_node or 1, node - first[name]
            for local in range(tasks):
                cpus = range(cpu, cpu + role.cpus_per_task)
                gpus = range(gpu, gpu + role.gpus_per_node)
                seats[node * per_node + slot] = Seat(
                    name,
                    own * tasks + local,
                    role.nodes * tasks,
                    local,
                    tasks,
                    own,
                    role.nodes,
                    first[name],
                    cpus,
                    gpus,
                )
                slot, cpu = slot + 1, cpu + role.cpus_per_task
            gpu += role.gpus_per_node
        used.append((cpu, gpu))
    cpus_per_node, gpus_per_node = (max(column, default=0) for column in zip(*used, strict=True)) if used else (0, 0)
    return Seating(seats, nodes, per_node, cpus_per_node, gpus_per_node, tuple(gpus for _, gpus in used))


def labels(members: Iterable[tuple[str, int]]) -> str:
    """Roles and ranks in them, such as `features r00-01, trainer r03`."""
    found: dict[str, list[int]] = {}
    for role, rank in members:
        found.setdefault(role, []).append(rank)
    parts = []
    for role, numbers in found.items():
        runs = (f"{low:02}" if low == high else f"{low:02}-{high:02}" for low, high in stretches(sorted(numbers)))
        parts.append(f"{role} r{','.join(runs)}")
    return ", ".join(parts)


def placeholders(text: str) -> Iterator[str]:
    """The names in braces: `port`, `features.addresses`. JSON has none, and `{{` is a brace."""
    yield from (match["name"] for match in _PLACEHOLDER.finditer(text) if match["name"])


def known_names(roles: Iterable[str]) -> set[str]:
    """The placeholders that a job with these roles can use."""
    return {*OF_THE_RANK, *(f"{role}.{what}" for role in roles for what in OF_A_ROLE)}


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with the values of its placeholders; one without a value stays as it is."""

    def value(match: re.Match[str]) -> str:
        if match["brace"]:
            return "{"
        return f"{{{match['literal']}}}" if match["literal"] else values.get(match["name"], match[0])

    return _PLACEHOLDER.sub(value, text)


class Address(NamedTuple):
    """Where a rank's program can be reached, and the port where the ranks of its role meet if it is the first one."""

    host: str
    port: int
    meeting: int


def values_of(seat: Seat, own: Address, addresses: Mapping[str, Sequence[Address]]) -> dict[str, str]:
    """The values of all placeholders for the rank at `seat`; `addresses` are those of each role, by rank."""
    values = dict(
        zip(
            OF_THE_RANK,
            map(str, (own.port, own.host, seat.rank, seat.ranks, seat.node, seat.nodes, seat.local_rank)),
            strict=True,
        )
    )
    for role, of_role in addresses.items():
        if of_role:
            values |= {
                f"{role}.addresses": ",".join(f"{one.host}:{one.port}" for one in of_role),
                f"{role}.hosts": ",".join(one.host for one in of_role),
                f"{role}.host": of_role[0].host,
                f"{role}.port": str(of_role[0].port),
            }
    return values


def variable(role: str, what: str) -> str:
    """The environment variable with a placeholder's value: CLUSTERCTL_ROLE_FEATURES_ADDRESSES."""
    return f"CLUSTERCTL_ROLE_{role.upper().replace('-', '_')}_{what.upper()}"

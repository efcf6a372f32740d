"""Who is where: the roll of all ranks, and one process group per node."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torch import distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store  # torch.distributed shows it to programs, not to type checkers

    from clusterctl.runs.place import Place

_PATIENCE = timedelta(hours=6)  # a node's ranks wait in their group while one of them prepares a large data set


@dataclass(frozen=True)
class Member:
    """What a rank tells the others: its node, and the GPU it would use (its UUID; none on the CPU)."""

    node_rank: int
    gpu: str = ""


def call_roll(store: Store, place: Place, gpu: str = "") -> list[Member]:
    """The members by rank. Goes through the store, since wrong devices must be found before NCCL sees them."""
    store.set(f"roll/{place.rank}", json.dumps(asdict(Member(place.node_rank, gpu))))
    answers = store.multi_get([f"roll/{rank}" for rank in range(place.world_size)])
    return [Member(**json.loads(answer)) for answer in answers]


def ranks_by_node(members: list[Member]) -> list[list[int]]:
    """The ranks of each node, nodes in order; nodes may hold different numbers of ranks."""
    nodes = sorted({member.node_rank for member in members})
    return [[rank for rank, member in enumerate(members) if member.node_rank == node] for node in nodes]


def node_group(members: list[Member], rank: int) -> dist.ProcessGroup:
    """The group of the ranks on the node of `rank`.

    Every rank builds the groups of all nodes in the same order, as torch.distributed.new_group demands. They speak
    gloo: what a node shares lies in its memory, not on its GPUs.
    """
    for ranks in ranks_by_node(members):
        group: dist.ProcessGroup = dist.new_group(ranks, _PATIENCE, backend="gloo")
        if rank in ranks:
            own = group
    return own

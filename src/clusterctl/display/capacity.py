"""Tables of partitions and nodes: free resources, unavailable nodes with the reason, where a job would fit."""

from __future__ import annotations

import time
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console

from clusterctl.display.columns import show_columns
from clusterctl.display.plain import ranges, when
from clusterctl.errors import SlurmError
from clusterctl.slurm.fits import gpus_by_type, largest_now
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.display.columns import Row
    from clusterctl.launch.sbatch import Estimate, SlurmRefused
    from clusterctl.slurm import Inventory, Node, Partition
    from clusterctl.slurm.fits import Largest, Room

_PANE_WIDTH = 100  # the pane truncates longer lines
_LONGEST_NAME = 256  # of a host; int() rejects numbers of thousands of digits


def show_partitions(console: Console, inventory: Inventory) -> None:
    """One line per partition: free resources, and the largest job that would fit."""
    rows = [_partition_row(partition, inventory) for partition in inventory.partitions.values()]
    show_columns(console, ("PARTITION", "NODES", "GPUS FREE", "CPUS FREE", "LARGEST JOB NOW"), rows)


def show_nodes(console: Console, nodes: Iterable[Node]) -> None:
    """One line for all nodes in the same state, named in Slurm's notation."""
    alike: dict[Row, list[str]] = {}
    for node in nodes:
        alike.setdefault(_node_row(node), []).append(node.name)
    rows = [(node_set(names), *row) for row, names in alike.items()]
    show_columns(console, ("NODES", "STATE", "GPUS FREE", "CPUS FREE", "MEMORY FREE", "REASON"), rows)


def node_lines(inventory: Inventory) -> list[str]:
    """Both tables as plain lines, for the monitor's pane."""
    console = Console(file=StringIO(), width=_PANE_WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        show_partitions(console, inventory)
        console.print()
        show_nodes(console, inventory.nodes.values())
    return captured.get().splitlines()


def show_room(console: Console, rooms: Sequence[Room]) -> None:
    """One line per partition: whether a job would fit now."""
    rows = [
        (room.partition, "yes" if room.fits_now else "no", str(room.nodes_with_room), "; ".join(room.objections))
        for room in rooms
    ]
    show_columns(console, ("PARTITION", "FITS NOW", "NODES WITH ROOM", "REASON"), rows)


def largest_in_words(largest: Largest | None) -> str:
    """3 nodes x 4 GPUs."""
    if largest is None:
        return "nothing"
    size, what = (largest.gpus_per_node, "GPU") if largest.gpus_per_node else (largest.cpus_per_node, "CPU")
    return f"{plural(largest.nodes, 'node')} x {plural(size, what)}"


def node_set(names: Sequence[str]) -> str:
    """The names in Slurm's notation: node[1-3,7],login."""
    parted = []
    for name in names:
        prefix = name.rstrip("0123456789") if len(name) < _LONGEST_NAME else name
        parted.append((prefix, len(name) - len(prefix), name[len(prefix) :]))
    found = []
    for (prefix, width), group in groupby(sorted(parted), key=lambda part: part[:2]):
        numbers = [int(digits) for *_, digits in group if digits]
        together = ",".join(ranges(numbers, width))
        found.append(prefix + (f"[{together}]" if len(numbers) > 1 else together))
    return ",".join(found)


def _partition_row(partition: Partition, inventory: Inventory) -> Row:
    nodes = inventory.nodes_of(partition)
    starting = sum(node.can_start for node in nodes)
    return (
        partition.name + "*" * partition.default + (" (down)" if not partition.up else ""),
        str(len(nodes)) if starting == len(nodes) else f"{starting} of {len(nodes)}",
        _gpus(nodes),
        f"{sum(node.cpus_free for node in nodes)}/{sum(node.cpus for node in nodes)}",
        largest_in_words(largest_now(partition, inventory)),
    )


def _node_row(node: Node) -> Row:
    return (
        "+".join([node.state, *sorted(node.flags - {node.state})]),
        _gpus([node]),
        f"{node.cpus_free}/{node.cpus}",
        f"{node.memory_unallocated / 1024:.0f}/{node.memory / 1024:.0f} GiB",
        node.reason,
    )


def _gpus(nodes: Iterable[Node]) -> str:
    """2/8 a100, 0/4 h100."""
    return ", ".join(f"{free}/{total} {kind}".rstrip() for kind, (free, total) in gpus_by_type(nodes).items())


def verdict(answer: Estimate | SlurmRefused | None) -> str:
    """Slurm's answer in words."""
    if answer is None:
        return "no start estimate from Slurm (sbatch --test-only)"
    if isinstance(answer, SlurmError):
        return f"Slurm would reject it: {answer.words}\nhint: {answer.hint}"
    start = when(answer.start, time.time())
    return f"estimated start: {start}, in partition {answer.partition}"

"""The virtual cluster: its size, the names of its nodes, and which of them are down."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.record.plain_text import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Machine(NamedTuple):
    """Nodes are numbered from 1; node 3 is called node3."""

    root: Path  # all files of the emulator: jobs/, down/, bin-*/
    bin: Path  # the stand-ins
    nodes: int
    cpus_per_node: int
    gpus_per_node: int
    kill_wait: float  # seconds between TERM and KILL
    gpu_type: str = ""

    @classmethod
    def load(cls, folder: Path) -> Machine:
        """The virtual cluster whose stand-ins are in `folder`."""
        settings = json.loads((folder / "settings.json").read_text())
        return cls(**{**settings, "root": Path(settings["root"]), "bin": folder})

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    def down_marker(self, node: int) -> Path:
        """A file that exists, and holds the reason, while the node is down."""
        return self.root / "down" / node_name(node)

    def gpu_indices(self, node: int) -> range:
        """A node's share of this machine's GPUs, assigned in order, so that no two nodes share one."""
        return range((node - 1) * self.gpus_per_node, node * self.gpus_per_node)


def gres(gpus: int, gpu_type: str) -> str:
    """GPUs in Slurm's notation: gpu:4, gpu:a100:4."""
    return f"gpu:{gpu_type}:{gpus}" if gpu_type else f"gpu:{gpus}"


def node_name(node: int) -> str:
    return f"node{node}"


def node_list(nodes: Sequence[int]) -> str:
    """A set of nodes in Slurm's notation: node3, node[1-2], node[1,3-4]."""
    if len(nodes) == 1:
        return node_name(nodes[0])
    return f"node[{ranges(nodes)}]" if nodes else ""


def node_names(nodes: str) -> list[str]:
    """node1,node[3-5,7] -> node1, node3, node4, node5, node7"""
    found = []
    for prefix, numbers, plain in re.findall(r"([^,\[\]]+)\[([\d,-]+)\]|([^,\[\]]+)", nodes):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            found += [f"{prefix}{number}" for number in range(int(first), int(last or first) + 1)]
        found += [plain] * bool(plain)
    return found


def per_node(counts: Iterable[int]) -> str:
    """One count per node in Slurm's notation: 2(x3),1."""
    lengths = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in lengths)

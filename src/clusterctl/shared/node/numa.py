"""Keeps a rank to the CPUs of one NUMA node (`resources.numa`).

The ranks of a machine are spread over its NUMA nodes in order: of eight ranks on two, the first four are on the first.
Linux then gives a rank memory of its own NUMA node as long as there is some (numa(7)), so no policy is set for memory.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from clusterctl.shared.record.plain_text import stretches

_NODES = Path("/sys/devices/system/node")


def bind(local_rank: int, local_ranks: int, nodes: Path = _NODES) -> str:
    """Bind this process and what it starts; returns what was done, in words.

    Only CPUs that it may use now count: where Slurm has bound each rank to one NUMA node, that stays. Raises OSError
    where the kernel shows no NUMA nodes.
    """
    allowed = os.sched_getaffinity(0)
    found = {}
    for path in nodes.glob("node[0-9]*"):
        ranges = re.findall(r"(\d+)(?:-(\d+))?", (path / "cpulist").read_text())  # such as 0-3,8-11
        own = {cpu for first, last in ranges for cpu in range(int(first), int(last or first) + 1)}
        found[int(path.name[4:])] = allowed & own
    usable = sorted(number for number, cpus in found.items() if cpus)
    if not usable:
        raise FileNotFoundError(f"no NUMA nodes with CPUs in {nodes}")
    number = usable[local_rank * len(usable) // local_ranks]
    os.sched_setaffinity(0, found[number])
    cpus = ",".join(f"{low}-{high}" if low < high else str(low) for low, high in stretches(sorted(found[number])))
    return f"NUMA node {number} of {len(usable)}: CPUs {cpus}"

"""The cost of looking at a run by its number of ranks: files opened, folders listed, CPU seconds, memory.

The runs are generated, with eight ranks per node: one is training, one failed with a traceback on every rank, one hung.

python benchmarks/scale_looking.py [--ranks 4 64 256 1024 4096]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from command_cost import cost_of
from side_by_side import arguments
from support.made_runs import Case, write_many_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZES = (4, 64, 256, 1024, 4096)
COMMANDS = (
    ("status",),
    ("status", "-o", "json"),
    ("why",),
    ("monitor", "--once"),
    ("report", "--output", "-"),
    ("logs",),
    ("logs", "--errors"),
)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    sizes = parser.parse_args().ranks
    table: dict[str, list[tuple[int, ...]]] = {}
    for ranks in sizes:
        for case in Case:
            with tempfile.TemporaryDirectory(prefix="looking-") as name:
                run = write_many_ranks(Path(name), ranks, case, time.time())
                for command, *options in COMMANDS:
                    cost = cost_of([command, run.id, *options], Path(name))
                    numbers = (cost.opens, cost.listings, round(1000 * cost.cpu_seconds), round(cost.memory / 1e6))
                    row = f"{case}: {' '.join((command, *options))}".removesuffix(" --output -")
                    table.setdefault(row, []).append(numbers)
    for number, title in enumerate(("files opened", "folders listed", "CPU, ms", "peak memory, MB")):
        show(title, sizes, {row: [cost[number] for cost in found] for row, found in table.items()})


def show(title: str, sizes: Iterable[int], rows: dict[str, list[int]]) -> None:
    width = max(map(len, rows))
    print(f"\n{title:<{width}}" + "".join(f"{size:>9,}" for size in sizes))
    for row, values in rows.items():
        print(f"{row:<{width}}" + "".join(f"{value:>9,}" for value in values))


if __name__ == "__main__":
    main()

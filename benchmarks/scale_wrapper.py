"""The cost of the wrapper process beside a user's program, per rank: private memory, CPU time, wake-ups.

python benchmarks/scale_wrapper.py [--ranks 8] [--seconds 10]

The ranks are tasks of workload "command" on one node, started as the batch script does, whose program sleeps. All but
the first are measured, which also samples the node. CPU time is measured until the program runs, and over the next
`--seconds`.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from process_memory import memory
from scale_running import ENTRY, claimed, environment
from side_by_side import arguments

_TICKS = os.sysconf("SC_CLK_TCK")


def private(pid: int) -> float:
    """MB."""
    return memory("smaps_rollup", "Private", pid=pid) / 1e6


def cpu_seconds(pid: int) -> float:
    used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(used[11]) + int(used[12])) / _TICKS


def wake_ups(pid: int) -> int:
    return sum(
        int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", path.read_text(), re.MULTILINE)[0])
        for path in Path(f"/proc/{pid}/task").glob("*/status")
    )


def has_program(pid: int) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(Path(f"/proc/{child}/comm").read_text() == "sleep\n" for child in children)


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--ranks", type=int, default=8)
    words.add_argument("--seconds", type=float, default=10.0)
    options = words.parse_args()
    with TemporaryDirectory() as name:
        run = claimed(Path(name))
        own = [environment(run, rank, options.ranks, options.ranks) for rank in range(options.ranks)]
        with Path(name, "log").open("wb") as log:
            argv = [sys.executable, *ENTRY, str(run.path)]
            tasks = [subprocess.Popen(argv, env=variables, stdout=log, stderr=log) for variables in own]
        try:
            measured = [task.pid for task in tasks[1:]]
            while not all(map(has_program, measured)):
                time.sleep(0.2)
            begun = [cpu_seconds(pid) for pid in measured], [wake_ups(pid) for pid in measured]
            time.sleep(options.seconds)
            ended = [cpu_seconds(pid) for pid in measured], [wake_ups(pid) for pid in measured]
            memory = statistics.median(map(private, measured))
        finally:
            for task in tasks:
                task.kill()
                task.wait()
        starting = statistics.median(begun[0])
        running, waking = (
            statistics.median(after - before for before, after in zip(*pair, strict=True)) / options.seconds
            for pair in zip(begun, ended, strict=True)
        )
    print(
        f"private memory {memory:.1f} MB, to start {starting:.2f} CPU s, then {running * 1000:.1f} ms of CPU per second"
    )
    print(f"and {waking:.0f} wake-ups per second")


if __name__ == "__main__":
    main()

"""Starting and stopping a real Slurm on this machine: ten times with four nodes, then with many. Needs root.

There is no rival. The aims are 5 s for `up` and 3 s for `down` with four nodes, and 10 s and 3 MB of private memory per
node with 200 nodes. Whole commands are timed.

python benchmarks/sandbox.py [--nodes 200]
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from process_memory import memory
from side_by_side import arguments, timed

from clusterctl.launcher.sandbox.marked_processes import find

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
ROUNDS = 10


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=200, help="of the large one")
    many = parser.parse_args().nodes
    with tempfile.TemporaryDirectory(prefix="sandbox-", dir="/tmp") as name:
        environment = {**os.environ, "XDG_STATE_HOME": name}

        def call(*words: str) -> None:
            subprocess.run([CLUSTERCTL, "sandbox", *words], env=environment, capture_output=True, check=True)

        up, down = timed(lambda: call("up", "--nodes", "4")), timed(lambda: call("down"))
        rounds = [(up(), down()) for _ in range(ROUNDS)]
        seconds = timed(lambda: call("up", "--nodes", str(many)))()
        megabytes, cpu = used_by_nodes(Path(name, "clusterctl", "sandbox"))
        call("down")
    print(f"Sandbox of four nodes   ({platform.machine()}, {os.cpu_count()} cores, {ROUNDS} rounds)")
    for title, column, aim in (("clusterctl sandbox up --nodes 4", 0, 5), ("clusterctl sandbox down", 1, 3)):
        times = [pair[column] for pair in rounds]
        verdict = "reached" if max(times) <= aim else "NOT reached"
        spread = f"({min(times):.2f} .. {max(times):.2f})"
        print(f"  {title:<34} {statistics.median(times):6.2f} s   {spread}   aim: at most {aim} s, {verdict}")
    print(f"  clusterctl sandbox up --nodes {many:<5} {seconds:6.2f} s, {megabytes / many:.2f} MB per node", end="")
    print(f", {cpu:.1f} CPU s of slurmd   aim for 200: at most 10 s, 3 MB")


def used_by_nodes(folder: Path) -> tuple[float, float]:
    """The private memory of the nodes' processes in megabytes, and their CPU seconds."""
    megabytes = cpu = 0.0
    for process in find(folder):
        if process.part.startswith("node"):
            megabytes += memory("smaps_rollup", "Private", pid=process.pid) / 1e6
            ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:15]
            cpu += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return megabytes, cpu


if __name__ == "__main__":
    main()

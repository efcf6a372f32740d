"""A real Slurm on this machine, ten times in a row: four nodes up and down again. Root, Slurm's packages.

There is no rival to compare with; the aims are 5 s for `up` and 3 s for `down`, measured around the whole command.

python benchmarks/sandbox.py
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import timed

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
ROUNDS = 10


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sandbox-", dir="/tmp") as name:
        environment = {**os.environ, "XDG_STATE_HOME": name}

        def call(*words: str) -> None:
            subprocess.run([CLUSTERCTL, "sandbox", *words], env=environment, capture_output=True, check=True)

        up, down = timed(lambda: call("up", "--nodes", "4")), timed(lambda: call("down"))
        rounds = [(up(), down()) for _ in range(ROUNDS)]
    print(f"Sandbox of four nodes   ({platform.machine()}, {os.cpu_count()} cores, {ROUNDS} rounds)")
    for title, column, aim in (("clusterctl sandbox up --nodes 4", 0, 5), ("clusterctl sandbox down", 1, 3)):
        times = [pair[column] for pair in rounds]
        verdict = "reached" if max(times) <= aim else "NOT reached"
        spread = f"({min(times):.2f} .. {max(times):.2f})"
        print(f"  {title:<34} {statistics.median(times):6.2f} s   {spread}   aim: at most {aim} s, {verdict}")


if __name__ == "__main__":
    main()

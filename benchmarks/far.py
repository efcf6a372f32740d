"""The cost of a command over ssh on a slow link: `status` of a remote cluster compared with `ssh HOST squeue`.

Both use the same ControlMaster, through a relay that delays each byte by 100 ms in each direction. The remote squeue is
a shell script that prints one line; a real one takes longer, which would favour us. The start of Python here, and its
start and the query of the runs there, are measured separately: the ratio is also printed without them.

python benchmarks/far.py [--delay-ms 100] [--runs 15]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from side_by_side import arguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.far import Far, made
from support.scenario import CLUSTERCTL


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--delay-ms", type=float, default=100)
    parser.add_argument("--runs", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as shared, made(Path(shared), through_relay=True) as far:
        measure(far, asked.delay_ms / 1000, asked.runs)


def measure(far: Far, delay: float, runs: int) -> None:
    far.write_cluster(f'kind = "emulator"\nruns = "{far.folder}/runs"\n')
    (far.bin / "squeue").write_text("#!/bin/sh\necho '1 PENDING'\n")
    (far.bin / "squeue").chmod(0o755)
    environment = far.environment
    ours = [CLUSTERCTL, "status", "--cluster", "far"]
    subprocess.run(ours, env=environment, check=True, capture_output=True)  # uploads clusterctl
    (far.link / "delay").write_text(str(delay))
    (socket,) = (path for path in (far.folder / "here" / "run").glob("*/*") if path.is_socket())
    ssh = [str(far.folder / "here" / "bin" / "ssh"), "-S", str(socket), "far"]
    start = next(far.installed.glob("*/start"))
    program = 'from clusterctl.launcher import cli; cli.run(["status"])'
    imports = start.read_text().replace("from clusterctl.launcher.cli.served import main; main()", program)
    programs = {
        "clusterctl status --cluster far": ours,
        "ssh far squeue": [*ssh, "squeue"],
        "clusterctl's start here": [CLUSTERCTL, "--version"],
        "clusterctl status, run there": ["sh", "-c", imports],
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(runs + 1):
        for name, words in programs.items():
            began = perf_counter()
            subprocess.run(words, env=environment, check=True, capture_output=True)
            times[name].append(perf_counter() - began)
    for name, found in times.items():
        found.pop(0)
        print(f"  {name:<34}{median(found) * 1000:9.0f} ms   ({min(found) * 1000:.0f} .. {max(found) * 1000:.0f})")
    status, squeue, here, there = times.values()
    plain = median(a / b for a, b in zip(status, squeue, strict=True))
    without = median((a - b - c) / d for a, b, c, d in zip(status, here, there, squeue, strict=True))
    print(f"  ratio {plain:.2f}; without Python's start-up here and there {without:.2f}   aim: at most 1.5")


if __name__ == "__main__":
    main()

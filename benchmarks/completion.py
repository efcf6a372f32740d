"""The cost of pressing Tab: commands, options, keys of --set and their values, jobs, and the names of many runs.

The aim is 80 ms. CPU time is printed too, as it hardly depends on the load of the machine.

python benchmarks/completion.py [--runs 1000]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from side_by_side import arguments

PRESSES = 21
TYPED = {
    "a command": "clusterctl su",
    "an option": "clusterctl submit --sw",
    "a job": "clusterctl submit co",
    "a key": "clusterctl submit cora --set train.",
    "a value": "clusterctl submit cora --set train.precision=",
    "a run": "clusterctl why job-2026",
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        for number in range(runs):
            path = Path(name, "runs", f"job-20260102-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-00a1")
            path.mkdir(parents=True)
            (path / "run.json").touch()
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"CLUSTERCTL_RUNS": f"{name}/runs", "CLUSTERCTL_CLUSTER": "local", "XDG_CONFIG_HOME": name}
        print(
            f"one press of Tab, {runs:,} runs, {PRESSES} presses: median (range) of wall time, and of CPU time, in ms"
        )
        for what, line in TYPED.items():
            pressed = [press(line, environment) for _ in range(PRESSES + 1)][1:]
            walls, cpus = zip(*pressed, strict=True)
            print(f"  {what:<12} {spread(walls)}   {spread(cpus)}   {line}")


def press(line: str, environment: dict[str, str]) -> tuple[float, float]:
    """The wall and CPU milliseconds of a completion, as requested by bash."""
    clusterctl = str(Path(sys.executable).with_name("clusterctl"))
    asked = {"COMP_LINE": line, "COMP_WORD": line.rpartition(" ")[2], "_CLUSTERCTL_COMPLETE": "bash"}
    began, before = perf_counter(), cpu_seconds()
    done = subprocess.run([clusterctl], env=environment | asked, capture_output=True, check=True)
    wall, cpu = perf_counter() - began, cpu_seconds() - before
    assert done.stdout, line
    return wall * 1000, cpu * 1000


def cpu_seconds() -> float:
    """The CPU seconds of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spread(milliseconds: tuple[float, ...]) -> str:
    low, middle, high = min(milliseconds), statistics.median(milliseconds), max(milliseconds)
    return f"{middle:5.0f} ({low:.0f} to {high:.0f})"


if __name__ == "__main__":
    main()

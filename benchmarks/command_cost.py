"""File operations, CPU time and memory of one command, run in a separate process.

Operations are counted below the folder of runs and do not depend on the load of the machine. A fake Slurm answers for
the generated runs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # shared: generated runs and counter
from process_memory import memory
from support.counted import counted

if TYPE_CHECKING:
    from collections.abc import Sequence


class Cost(NamedTuple):
    """What one command cost; `read` in bytes, `memory` its peak in bytes."""

    opens: int
    listings: int
    stats: int
    read: int
    cpu_seconds: float
    memory: int

    def __str__(self) -> str:
        operations = f"{self.opens:>9}{self.listings:>10}{self.stats:>8}{self.read / 1e6:>8.1f} MB"
        return f"{operations}{self.cpu_seconds:>7.2f} s{self.memory / 1e6:>7.0f} MB"


HEAD = f"{'opens':>9}{'listings':>10}{'stats':>8}{'read':>11}{'CPU':>9}{'memory':>10}"


def environment_of(runs: Path) -> dict[str, str]:
    """The environment for commands on the runs in `runs`, with a fake Slurm and a terminal of the usual size."""
    from support.made_runs import JOB_ID  # not in the measured process

    from clusterctl.launcher.slurm.queue import SEPARATOR

    aside = runs / ".aside"
    squeue = aside / "bin" / "squeue"
    job = SEPARATOR.join((JOB_ID, "RUNNING", "None", "node0", "N/A", "N/A", "0", "/", ""))
    squeue.parent.mkdir(parents=True, exist_ok=True)
    squeue.write_text(f"#!/bin/sh\ncase \"$*\" in *WorkDir*) printf '%s' '{job}' ;; esac\n")
    squeue.chmod(0o755)
    folders = {f"XDG_{kind}_HOME": str(aside / kind.lower()) for kind in ("STATE", "CACHE", "CONFIG")}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {"CLUSTERCTL_RUNS": str(runs), "CLUSTERCTL_CLUSTER": "local", "COLUMNS": "80", "LINES": "24"}
    return inherited | folders | own | {"PATH": f"{squeue.parent}:{os.environ['PATH']}"}


def cost_of(argv: Sequence[str], runs: Path) -> Cost:
    """The cost of `clusterctl ARGV`, including the start of its interpreter; its output is discarded."""
    words = [sys.executable, __file__, str(runs), *argv]
    done = subprocess.run(words, env=environment_of(runs), capture_output=True, text=True, check=False)
    try:
        return Cost(**json.loads(done.stderr.splitlines()[-1]))
    except (IndexError, ValueError):
        raise SystemExit(f"{argv}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}") from None


def measure() -> None:
    from clusterctl.launcher.cli import run

    with counted(Path(sys.argv[1])) as count:
        code = run(sys.argv[2:])
    sys.stdout.flush()
    used, io = resource.getrusage(resource.RUSAGE_SELF), Path("/proc/self/io").read_text()
    read = int(io.split("rchar: ")[1].split()[0])
    peak = memory("status", "VmHWM:")  # getrusage's peak includes the process before exec
    cost = Cost(count.opens, count.listings, count.stats, read, used.ru_utime + used.ru_stime, peak)
    print(f"\n{json.dumps(cost._asdict())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["--help"]):
        print(__doc__)
    else:
        measure()

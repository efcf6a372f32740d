"""What it costs to look at a run, as its ranks grow: files opened, folders listed, CPU seconds, memory of each command.

Each command is a process of its own. Opens and listings are those below the run directory, and do not depend on how
busy the machine is; memory is the peak of the process. The runs are made up, eight ranks a node: one that trains, one
that failed with a traceback on every rank, one that hung. A fake Slurm answers for the job.

python benchmarks/scale_looking.py [RANKS]...      default: 4 64 256 1024 4096
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the made-up runs and the count are the tests' too
from support.counted import counted
from support.many_ranks import JOB_ID, Course, write_many_ranks

from clusterctl.slurm.queue import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.runs.layout import RunDir

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
_JOB = SEPARATOR.join((JOB_ID, "RUNNING", "None", "node0", "N/A", "N/A", "0", "/", ""))
SQUEUE = f"""#!/bin/sh
case "$*" in *WorkDir*) printf '%s' '{_JOB}' ;; esac
"""


class Cost(NamedTuple):
    """What one command did and used. `milliseconds` of the processor, `megabytes` at its peak."""

    opens: int
    listings: int
    milliseconds: int
    megabytes: int


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    with tempfile.TemporaryDirectory(prefix="looking-") as name:
        folder = Path(name)
        squeue = folder / "bin" / "squeue"
        squeue.parent.mkdir()
        squeue.write_text(SQUEUE)
        squeue.chmod(0o755)
        environment = os.environ | {"XDG_STATE_HOME": f"{name}/state", "XDG_RUNTIME_DIR": name, "COLUMNS": "80"}
        environment |= {"PATH": f"{squeue.parent}:{os.environ['PATH']}", "LINES": "24"}
        costs: dict[str, list[Cost]] = {}
        for ranks in sizes:
            for course in Course:
                runs = folder / f"{ranks}-{course}"
                runs.mkdir()
                run = write_many_ranks(runs, ranks, course, time.time())
                for words in COMMANDS:
                    row = f"{course}: {' '.join(words)}".removesuffix(" --output -")
                    environment["CLUSTERCTL_RUNS"] = str(runs)
                    costs.setdefault(row, []).append(measure(run, words, environment))
        for number, title in enumerate(("files opened", "folders listed", "CPU, ms", "peak memory, MB")):
            show(title, sizes, {row: [cost[number] for cost in found] for row, found in costs.items()})


def measure(run: RunDir, words: Iterable[str], environment: dict[str, str]) -> Cost:
    command, *options = words
    argv = [sys.executable, __file__, "--one", str(run.path), command, run.id, *options]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    try:
        return Cost(*map(int, done.stderr.splitlines()[-1].split()))
    except (IndexError, ValueError):
        raise SystemExit(f"{argv}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}") from None


def one(folder: Path, words: list[str]) -> None:
    """Run one command in this process, and write what it cost as the last line of stderr."""
    from clusterctl.__main__ import main as clusterctl

    sys.argv = ["clusterctl", *words]
    code = None
    with counted(folder) as count:
        try:
            clusterctl()
        except SystemExit as left:
            code = left.code
    sys.stdout.flush()
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(fields["VmHWM"].split()[0]) // 1000  # ru_maxrss would be the parent's, where that was larger
    print(f"\n{count.opens} {count.listings} {round(1000 * time.process_time())} {peak}", file=sys.stderr)
    raise SystemExit(code)


def show(title: str, sizes: Iterable[int], rows: dict[str, list[int]]) -> None:
    width = max(map(len, rows))
    print(f"\n{title:<{width}}" + "".join(f"{size:>9,}" for size in sizes))
    for row, values in rows.items():
        print(f"{row:<{width}}" + "".join(f"{value:>9,}" for value in values))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(Path(sys.argv[2]), sys.argv[3:])
    main()

"""The cost of `clusterctl logs` by the number of ranks: file operations, CPU time and memory.

Idle: `logs -f` on a run that is silent for a minute of simulated time, after the first poll.
Failed: every rank printed some lines and a traceback. Large: the first line of 64 ranks with this many megabytes each,
and the one traceback in two logs of 100 MB.

python benchmarks/scale_logs.py [--ranks 4 64 256 1024 4096] [--megabytes 100]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from command_cost import HEAD, cost_of, environment_of
from side_by_side import arguments
from support.counted import counted
from support.made_runs import Case, write_many_ranks

from clusterctl.launcher.api.logs import read_logs
from clusterctl.launcher.observe.follow import Sources
from clusterctl.launcher.observe.logs import Selection
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.stamp import stamp

if TYPE_CHECKING:
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
RANKS = (4, 64, 256, 1024, 4096)
BEGAN = 1_767_323_045.0
IDLE_SECONDS = 60.0
MEGABYTE = 10**6
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    step(batch)
  File "train.py", line 3, in step
    raise ValueError("rank {rank} has no batch")
ValueError: rank {rank} has no batch
"""


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    words.add_argument("--megabytes", type=int, default=100, help="size of each of 64 logs; 0: skip this part")
    options = words.parse_args()
    print(f"{'idle':>24}{'ranks':>8}{'opens a second':>16}{'listings':>10}{'stats':>8}")
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            idle(write_many_ranks(Path(name), ranks, Case.RUNNING, time.time()), ranks)
    print(f"{'failed run':>24}{'ranks':>8}{HEAD}")
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            run = write_many_ranks(Path(name), ranks, Case.FAILED, time.time())
            for argv in (["logs"], ["logs", "--errors"], ["logs", "--rank", "3"]):
                print(f"{' '.join(argv):>24}{ranks:>8}{cost_of([*argv, run.id], Path(name))}", flush=True)
    if options.megabytes:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            large(Path(name), options.megabytes)


def idle(run: RunDir, ranks: int) -> None:
    """Print the file operations of a minute in which nothing happens."""
    now = [time.time()]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def silent(_: Cluster) -> Slurm:
        raise SlurmError("not asked")

    reading = read_logs(run, Selection())
    sources = Sources(silent, clock=lambda: now[0], sleep=sleep)
    began, before = 0.0, (0, 0, 0)
    with counted(run.path) as count:
        for _, added in reading.follow(sources):
            deque(added, maxlen=0)
            if not began:  # the first poll has read everything
                began, before = now[0], (count.opens, count.listings, count.stats)
            if now[0] - began >= IDLE_SECONDS:
                break
    after = count.opens, count.listings, count.stats
    opens, listings, stats = ((late - early) / IDLE_SECONDS for early, late in zip(before, after, strict=True))
    print(f"{'logs -f':>24}{ranks:>8}{opens:>16.1f}{listings:>10.1f}{stats:>8.0f}", flush=True)


def large(folder: Path, megabytes: int) -> None:
    """Print the time to the first line of large logs, and the cost of finding one error in 200 MB."""
    run = write_many_ranks(folder, 64, Case.RUNNING, BEGAN)
    block = "".join(f"{stamp(BEGAN + step / 100)}step {step}: loss 0.{step % 997:03}\n" for step in range(20_000))
    for rank in range(64):
        grow(run, rank, block, megabytes)
    write_json(run.finished_json, {"attempt": 0, "time": BEGAN})
    print(f"{f'64 ranks x {megabytes} MB':>32}{'first line':>12}{'CPU':>12}")
    for argv in (["logs"], ["logs", "--rank", "3"], ["logs", "--tail", "20"], ["logs", "--since", "20m"]):
        words, began, used = [CLUSTERCTL, *argv, run.id], time.perf_counter(), children_seconds()
        with subprocess.Popen(words, env=environment_of(folder), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            seconds = time.perf_counter() - began
            process.kill()
        print(f"{' '.join(argv):>32}{seconds:>10.2f} s{children_seconds() - used:>10.2f} s", flush=True)
    for rank in range(2, 64):
        run.attempt(0).log(rank).unlink()
    for rank in range(2):
        grow(run, rank, block, 100)
    with run.attempt(0).log(1).open("a") as file:
        file.write(TRACEBACK.format(rank=1))
    print(f"{'2 ranks x 100 MB':>32}{HEAD}")
    print(f"{'logs --errors':>32}{cost_of(['logs', '--errors', run.id], folder)}", flush=True)


def children_seconds() -> float:
    """The CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def grow(run: RunDir, rank: int, block: str, megabytes: int) -> None:
    with run.attempt(0).log(rank).open("a") as file:
        while file.tell() < megabytes * MEGABYTE:
            file.write(block)


if __name__ == "__main__":
    main()

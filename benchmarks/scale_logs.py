"""What `clusterctl logs` costs as the ranks of a run grow: file operations, processor time and memory.

Idle: `logs -f` on a run that is silent for a minute of simulated time, after the first look.
Failed: every rank printed some lines and the same traceback. Large: the first line of 64 ranks with so many megabytes
each, and the one traceback in two logs of 100 MB.

python benchmarks/scale_logs.py [--ranks 4 64 256 1024 4096] [--megabytes 100]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from counted import HEAD, cost_of, counting, environment_of

from clusterctl.api.logs import read_logs
from clusterctl.errors import SlurmError
from clusterctl.observe.follow import Sources
from clusterctl.observe.logs import Selection
from clusterctl.runs.files import Lines, write_json
from clusterctl.runs.layout import Attempt, RunDir
from clusterctl.runs.stamp import stamp
from clusterctl.spec import Cluster, Job, RedditTrain, Resources, to_record

if TYPE_CHECKING:
    from clusterctl.slurm import Slurm

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
RANKS, RANKS_OF_A_NODE = (4, 64, 256, 1024, 4096), 8
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
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    words.add_argument("--megabytes", type=int, default=100, help="of each of 64 ranks; 0: leave that out")
    options = words.parse_args()
    print(f"{'idle':>24}{'ranks':>8}{'opens a second':>16}{'listings':>10}{'stats':>8}")
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            idle(written(Path(name), ranks), ranks)
    print(f"{'of a failed run':>24}{'ranks':>8}{HEAD}")
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            run = written(Path(name), ranks, failed=True)
            for argv in (["logs"], ["logs", "--errors"], ["logs", "--rank", "3"]):
                print(f"{' '.join(argv):>24}{ranks:>8}{cost_of([*argv, run.id], Path(name))}", flush=True)
    if options.megabytes:
        with tempfile.TemporaryDirectory(prefix="scale-") as name:
            large(Path(name), options.megabytes)


def idle(run: RunDir, ranks: int) -> None:
    """Print the operations of a minute in which nothing happens."""
    now = [time.time()]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def silent(_: Cluster) -> Slurm:
        raise SlurmError("not asked")

    reading = read_logs(run, Selection())
    sources = Sources(silent, clock=lambda: now[0], sleep=sleep)
    began, before = 0.0, None
    with counting() as counted:
        for _, added in reading.follow(sources):
            deque(added, maxlen=0)
            if before is None:  # the first look has read what there is
                began, before = now[0], counted.copy()
            if now[0] - began >= IDLE_SECONDS:
                break
    assert before is not None
    opens, listings, stats = ((counted[name] - before[name]) / IDLE_SECONDS for name in ("open", "list", "stat"))
    print(f"{'logs -f':>24}{ranks:>8}{opens:>16.1f}{listings:>10.1f}{stats:>8.0f}", flush=True)


def large(folder: Path, megabytes: int) -> None:
    """Print when the first line of much comes, and what it takes to find one error in 200 MB."""
    run = written(folder, 64)
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
    """The processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def grow(run: RunDir, rank: int, block: str, megabytes: int) -> None:
    with run.attempt(0).log(rank).open("a") as file:
        while file.tell() < megabytes * MEGABYTE:
            file.write(block)


def written(folder: Path, ranks: int, *, failed: bool = False) -> RunDir:
    """A run of so many ranks in training, or failed."""
    run = RunDir(folder / "cora-20260102-030405-00a1")
    attempt = run.attempt(0)
    for file in (attempt.log(0), attempt.events(0), attempt.telemetry("x"), attempt.marks / "x"):
        file.parent.mkdir(parents=True)
    nodes = max(1, ranks // RANKS_OF_A_NODE)
    resources = Resources(nodes=nodes, tasks_per_node=ranks // nodes)
    job = Job(name="cora", workload="reddit", train=RedditTrain(), resources=resources)
    cluster = Cluster(name="local", kind="emulator", runs=str(folder))
    ours = {"job": to_record(job), "cluster": to_record(cluster)}
    write_json(run.run_json, {"schema_version": 1, "id": run.id, "created": BEGAN, **ours})
    write_json(run.submission_json, {"job_id": "7", "time": BEGAN})
    ended = {"end": BEGAN + 9, "exit_code": 1} if failed else {}
    write_json(attempt.host_json, {"job_id": "7", "start": BEGAN, "nodes": f"node[0-{nodes - 1}]", **ended})
    Lines(attempt.metrics).append({"time": BEGAN, "step": 4, "steps": 90, "loss": 0.5})
    for node in range(nodes):
        attempt.telemetry(f"node{node}").write_text(json.dumps({"time": BEGAN, "cpu": 3.5}) + "\n")
    for rank in range(ranks):
        _write_rank(attempt, rank, f"node{rank // RANKS_OF_A_NODE}", failed=failed)
    return run


def _write_rank(attempt: Attempt, rank: int, node: str, *, failed: bool) -> None:
    began = f'{{"event": "began", "time": {BEGAN}, "host": "{node}", "node": "{node}"}}\n'
    ended = f'{{"event": "exit", "time": {BEGAN + 9}, "code": 1}}\n' if failed else ""
    attempt.events(rank).write_text(began + '{"event": "stage", "stage": "training"}\n' + ended)
    lines = [f"{stamp(BEGAN + second)}epoch {second} of all ranks\n" for second in range(9)]
    lines += [f"{stamp(BEGAN + 9)}rank {rank} has begun\n"]
    attempt.log(rank).write_text("".join(lines))
    printed = f"{stamp(BEGAN + 9 + rank / 1e4)}no batch\n{TRACEBACK.format(rank=rank)}" if failed else ""
    attempt.log(rank, "err").write_text(printed)


if __name__ == "__main__":
    main()

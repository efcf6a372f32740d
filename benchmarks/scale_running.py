"""File operations on the run directory during training, by strace: opens, listings, writes per node and second.

python benchmarks/scale_running.py [--ranks 8 64 512] [--per-node 8] [--seconds 20]

The ranks are tasks of workload "command" whose program sleeps, started as a batch script would, all on this machine.
The ranks and the writer of one node in the middle are traced. All nodes do the same, so the total for the run is that
of one node times the number of nodes.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from side_by_side import arguments

from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import CommandTrain, Job, to_record

ENTRY = ("-m", "clusterctl.runs")  # and the run directory
KINDS = {"openat": "opens", "open": "opens", "getdents64": "listings", "write": "writes", "pwrite64": "writes"}
STATS = "newfstatat,statx,stat,lstat"
_CALL = re.compile(r"^(?:\d+ +)?(?P<call>\w+)\((?P<rest>.*)")
_SETTLED_SECONDS = 8.0


def environment(run: RunDir, rank: int, ranks: int, per_node: int) -> dict[str, str]:
    return os.environ | {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % per_node),
        "SLURM_NODEID": str(rank // per_node),
        "SLURM_NTASKS": str(ranks),
        "SLURM_STEP_NUM_NODES": str(ranks // per_node),
        "SLURMD_NODENAME": f"node{rank // per_node}",
        "CLUSTERCTL_RUN_DIR": str(run.path),
        "CLUSTERCTL_ATTEMPT": "0",
    }


def of_node(run: RunDir, node: int) -> list[int]:
    """The processes of the run on a node, found by their environment."""
    marks = {f"CLUSTERCTL_RUN_DIR={run.path}".encode(), f"SLURM_NODEID={node}".encode()}
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marks <= set(path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
        except OSError:  # it has just ended, or belongs to another user
            continue
    return found


def traced(run: RunDir, node: int, seconds: float, folder: Path) -> Counter[str]:
    """The number of operations of each kind by the processes of a node on files of the run, within `seconds`."""
    output = folder / "trace"
    pids = [word for pid in of_node(run, node) for word in ("-p", str(pid))]
    calls = ",".join(KINDS) + "," + STATS
    words = ["strace", "-f", "-qq", "-y", "-e", f"trace={calls}", "-o", str(output), *pids]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as tracer:
        time.sleep(seconds)
        tracer.terminate()
    found: Counter[str] = Counter()
    for line in output.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if match and str(run.path) in match["rest"]:
            found[KINDS.get(match["call"], "stats")] += 1
    return found


def claimed(folder: Path) -> RunDir:
    """A run whose ranks sleep, with the files that the batch script creates before they start."""
    run = RunDir(folder / "run")
    attempt = run.attempt(0)
    (attempt.path / "logs").mkdir(parents=True)
    attempt.secret.write_text(secrets.token_hex(32))
    attempt.secret.chmod(0o600)
    job = Job(name="scale", workload="command", argv=("sleep", "100000"), train=CommandTrain())
    write_json(run.run_json, {"job": to_record(job)})
    return run


def measure(ranks: int, per_node: int, seconds: float) -> Counter[str]:
    with TemporaryDirectory() as name:
        run = claimed(Path(name))
        attempt = run.attempt(0)
        argv = [sys.executable, *ENTRY, str(run.path)]
        tasks = []
        for rank in range(ranks):
            with attempt.log(rank).open("wb") as out, attempt.log(rank, "err").open("wb") as err:
                own = environment(run, rank, ranks, per_node)
                tasks.append(subprocess.Popen(argv, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=err))
        try:
            while sum(1 for _ in (attempt.path / "marks").glob("*.running")) < ranks:
                time.sleep(0.5)
            time.sleep(_SETTLED_SECONDS)
            return traced(run, ranks // per_node // 2, seconds, Path(name))
        finally:
            for task in tasks:
                task.kill()
            for task in tasks:
                task.wait()


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512])
    words.add_argument("--per-node", type=int, default=8)
    words.add_argument("--seconds", type=float, default=20.0)
    options = words.parse_args()
    names = ("opens", "listings", "writes", "stats")
    print(f"{'ranks':>8}{'nodes':>8}" + "".join(f"{name:>12}" for name in names) + "   per node and second")
    for ranks in options.ranks:
        found = measure(ranks, options.per_node, options.seconds)
        rates = "".join(f"{found[name] / options.seconds:>12.2f}" for name in names)
        print(f"{ranks:>8}{ranks // options.per_node:>8}{rates}", flush=True)


if __name__ == "__main__":
    main()

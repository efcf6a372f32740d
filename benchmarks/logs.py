"""`clusterctl logs` on 64 ranks with 10 MB each and one sparse log of 10 GB: the first line, all lines, and memory.

The rival merges the same files with `cat | sort`, by the times at the start of their lines; it prints its first line
once it has read everything. For the end of each log, the rival is `tail -q`.

python benchmarks/logs.py [--megabytes 10]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from process_memory import memory
from side_by_side import arguments, compare, timed

from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.stamp import stamp
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, to_record

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
RANKS, BEGAN = 64, 1_767_323_045.0
SPARSE_BYTES = 10 * 2**30


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=10)
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory(prefix="logs-") as name:
        run = written(Path(name), megabytes)
        environment = {**os.environ, "CLUSTERCTL_RUNS": name, "XDG_STATE_HOME": f"{name}/.state"}
        ours = [CLUSTERCTL, "logs", run.id, "--cluster", "local"]
        rival = f"cat '{run.path}'/attempts/0/logs/*.out | sort -s -k1,1"
        files = [str(path) for path in run.attempt(0).log_files("out").values()]

        def first(*argv: str) -> float:
            began = time.perf_counter()
            with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                passed = time.perf_counter() - began
                process.kill()
            return passed

        def whole(*argv: str) -> None:
            subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)

        size = f"{RANKS} x {megabytes} MB"
        sort, tail = ["sh", "-c", rival], ["tail", "-q", "-n20", *files]
        for title, words, rivals, bound, runs in (
            (f"All of {size}", ours, ("cat | sort", sort), 20.0, 1),
            (f"Last 20 lines of each of {size}", [*ours, "--tail", "20"], ("tail -q", tail), 100.0, 5),
        ):
            timed_whole = [timed(lambda argv=argv: whole(*argv)) for argv in (words, rivals[1])]
            compare(title, ("clusterctl logs", timed_whole[0]), (rivals[0], timed_whole[1]), bound=bound, runs=runs)
        pair = ("clusterctl logs", lambda: first(*ours))
        compare(f"First line of {size}", pair, ("cat | sort", lambda: first(*sort)), bound=1.0, runs=3)
        sparse(run)
        compare(f"First line of {size} and a sparse one of 10 GB", pair, ("0.3 s", lambda: 0.3), bound=1.0, runs=5)
        print(f"memory at most: {peak_bytes(ours, environment) / 2**20:.0f} MB   aim: 100 MB")


def written(folder: Path, megabytes: int) -> RunDir:
    """A run whose ranks wrote `megabytes` each: unique lines, and some common to all ranks."""
    run = RunDir(folder / "cora-20260102-030405-00a1")
    run.attempt(0).log(0).parent.mkdir(parents=True)
    job = Job(name="cora", workload="reddit", train=RedditTrain(), resources=Resources(nodes=8, tasks_per_node=8))
    record = {"id": run.id, "created": BEGAN, "job": to_record(job), "cluster": to_record(Cluster(name="local"))}
    run.run_json.write_text(json.dumps(record))
    run.finished_json.write_text(json.dumps({"time": BEGAN}))
    for rank in range(RANKS):
        with run.attempt(0).log(rank).open("w") as file:
            for first in range(1, sys.maxsize, 1000):
                file.write("".join(_line(rank, step) for step in range(first, first + 1000)))
                if file.tell() >= megabytes * 2**20:
                    break
    return run


def _line(rank: int, step: int) -> str:
    whose = "all ranks" if step % 10 == 0 else f"rank {rank}"
    return f"{stamp(BEGAN + step / 100)}step {step} of {whose}: loss 0.{step % 997:03} some words\n"


def sparse(run: RunDir) -> None:
    """Add a sparse log."""
    with run.attempt(0).log(RANKS).open("w") as file:
        file.write(f"{stamp(BEGAN)}begun\n")
        file.seek(SPARSE_BYTES)
        file.write(f"{stamp(BEGAN + 1)}over\n")


def peak_bytes(argv: list[str], environment: dict[str, str]) -> int:
    """The peak memory of `argv`, as reported by the kernel."""
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, memory("status", "VmHWM:", pid=process.pid))
            time.sleep(0.05)
    return peak


if __name__ == "__main__":
    main()

"""The cost of commands that look for runs, with 100, 1,000 and 10,000 ended runs on disk.

File operations below the folder of runs are counted by strace in a separate call: opens, other accesses to a path
(stat, access, readlink), and listed folders. CPU and wall seconds are the smaller of two further calls.

python benchmarks/scale_runs.py [--runs 100 1000 10000]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from side_by_side import arguments

from clusterctl.launcher.observe.ended_runs import QUIET_SECONDS
from clusterctl.shared.record.layout import RUN_FORMAT, RunDir
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, to_record

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
JOB = 'workload = "command"\nargv = ["true"]\n'
_CALL = re.compile(r"(?P<name>\w+)\(")


class Cost(NamedTuple):
    opens: int
    looks: int
    listings: int
    cpu: float
    wall: float

    def __str__(self) -> str:
        return f"{self.opens:>7} {self.looks:>7} {self.listings:>6} {self.cpu:>6.2f} {self.wall:>6.2f}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=(100, 1000, 10_000))
    counts = parser.parse_args().runs
    print(f"{'':<34}" + "".join(f"{f'{count} runs':^38}" for count in counts))
    print(f"{'':<34}" + f"{'opens':>9} {'looks':>7} {'lists':>6} {'CPU s':>6} {'wall':>6}  " * len(counts), flush=True)
    table = [measured(count) for count in counts]
    for title in table[0]:
        print(f"{title:<34}" + "  ".join(f"{costs[title]!s:>36}" for costs in table))


def measured(count: int) -> dict[str, Cost]:
    with tempfile.TemporaryDirectory(prefix="runs-") as name:
        runs = Path(name, "runs")
        many_runs(runs, count)
        time.sleep(QUIET_SECONDS + 1)
        project = Path(name, "project")
        project.mkdir()
        (project / "job.toml").write_text(JOB)
        middle = sorted(path.name for path in runs.iterdir())[count // 2]
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise changed modules are compiled in each call
        environment = os.environ | {f"XDG_{kind}_HOME": f"{name}/{kind}" for kind in ("STATE", "CACHE", "CONFIG")}
        environment |= {"CLUSTERCTL_RUNS": str(runs), "CLUSTERCTL_CLUSTER": "local"}
        completing = {"_CLUSTERCTL_COMPLETE": "bash_complete", "COMP_WORDS": f"clusterctl why {middle[:14]}"}
        completing["COMP_CWORD"] = "2"
        commands: dict[str, tuple[list[str], dict[str, str]]] = {
            "status": (["status"], {}),
            "status -a": (["status", "-a"], {}),
            "status -a -o json": (["status", "-a", "-o", "json"], {}),
            "status --state failed": (["status", "--state", "failed"], {}),
            "status --since 10m": (["status", "--since", "10m"], {}),
            "status @last": (["status", "@last"], {}),
            "status <exact id>": (["status", middle], {}),
            "status <job>": (["status", "cora"], {}),
            "completion": ([], completing),
            "submit": (["submit", "./job.toml", "--hold"], {}),
        }
        try:
            return {
                title: cost([CLUSTERCTL, *words], environment | more, project, runs)
                for title, (words, more) in commands.items()
            }
        finally:
            held = [path.name for path in runs.glob("job-*")]
            call([CLUSTERCTL, "cancel", "--yes", *held], environment, project)


def cost(argv: list[str], environment: dict[str, str], cwd: Path, runs: Path) -> Cost:
    call(argv, environment, cwd)  # warms up
    log = cwd.with_name("strace")
    traced = ["strace", "-qq", "-y", "-s", "4096", "-e", "trace=%file,getdents64", "-e", "signal=none"]
    call([*traced, "-o", str(log), *argv], environment, cwd)
    kinds: Counter[str] = Counter()
    for line in log.read_text(errors="replace").splitlines():
        if f"{runs}" in line and (match := _CALL.match(line)):
            kinds[{"openat": "opens", "open": "opens", "getdents64": "listings"}.get(match["name"], "looks")] += 1
    times = [call(argv, environment, cwd) for _ in range(2)]
    return Cost(kinds["opens"], kinds["looks"], kinds["listings"], *map(min, zip(*times, strict=True)))


def call(argv: list[str], environment: dict[str, str], cwd: Path) -> tuple[float, float]:
    """Run `argv`; returns its CPU and wall seconds."""
    began = time.perf_counter()
    process = subprocess.Popen(argv, env=environment, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def run_id(number: int, created: float) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(created))
    return f"cora-{stamp}-{number & 0xFFFF:04x}"


def many_runs(folder: Path, count: int) -> None:
    """Ended runs, one in ten failed, each with the files of its ranks and a few hundred steps in its metrics."""
    job = Job(name="cora", workload="reddit", resources=Resources(nodes=2, tasks_per_node=2), train=RedditTrain())
    cluster = Cluster(name="local", kind="emulator")
    record = {"schema_version": RUN_FORMAT, "job": to_record(job), "cluster": to_record(cluster)}
    values = {"epoch": 20, "epochs": 20, "steps": 400, "seconds": 0.03, "nodes_per_second": 30_000}
    steps = [{"time": 1.7e9 + step, "step": step, "loss": 2 * 0.99**step, **values} for step in range(400)]
    metrics = "".join(json.dumps(one) + "\n" for one in steps)
    began = time.time() - 60 * count - 30  # a minute apart, the last one 90 s ago
    for number in range(count):
        created, failed = began + 60 * number, number % 10 == 0
        run = RunDir(folder / run_id(number, created))
        attempt = run.attempt(0)
        attempt.path.mkdir(parents=True)
        run.run_json.write_text(json.dumps({"id": run.id, "created": created, **record}))
        run.submission_json.write_text(json.dumps({"job_id": str(number + 1), "time": created}))
        host = {"job_id": str(number + 1), "start": created, "end": created + 50, "exit_code": int(failed)}
        attempt.host_json.write_text(json.dumps(host))
        attempt.metrics.write_text(metrics)
        if not failed:
            run.finished_json.write_text(json.dumps({"time": created + 50, "attempt": 0}))


if __name__ == "__main__":
    main()

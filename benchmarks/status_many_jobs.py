"""`clusterctl status` with 1,000 runs on disk, and when the user has 10,000 pending jobs.

The first is compared with the aim of one second; all runs have ended. The second is compared with one squeue query and
the start of the command line, on a real Slurm on this machine (needs root and Slurm's packages). The jobs are held, so
none of them starts. One is a run of clusterctl on a cluster without a polling floor, so `status` queries Slurm each
time.

python benchmarks/status_many_jobs.py [--jobs 10000]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from side_by_side import arguments, compare, timed

from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, to_record

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
JOB = 'workload = "command"\nargv = ["true"]\n'


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    jobs = parser.parse_args().jobs
    many_runs(1000)
    with tempfile.TemporaryDirectory(prefix="many-", dir="/tmp") as name:
        folder = Path(name)
        environment = {**os.environ, "XDG_STATE_HOME": name, "CLUSTERCTL_RUNS": f"{name}/runs"}
        environment["SLURM_CONF"] = f"{name}/clusterctl/sandbox/etc/slurm.conf"

        def call(*words: str) -> None:
            subprocess.run(words, env=environment, cwd=folder, capture_output=True, check=True)

        def submit(_: int) -> None:
            call("sbatch", "--hold", "--job-name=filler", "--wrap=true")

        call(CLUSTERCTL, "sandbox", "up", "--nodes", "2")
        try:
            (folder / "job.toml").write_text(JOB)
            (folder / "project").mkdir()
            (folder / "cluster").mkdir()
            (folder / "cluster" / "asked.toml").write_text('kind = "sandbox"\npolling_floor = 0\n')
            call(CLUSTERCTL, "submit", "./job.toml", "--cluster", "asked", "--hold", "--set", f"code={name}/project")
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(submit, range(jobs - 1)))
            status = timed(lambda: call(CLUSTERCTL, "status", "--cluster", "asked"))
            squeue, start = timed(lambda: call("squeue")), timed(lambda: call(CLUSTERCTL, "--help"))
            compare(
                f"Status with {jobs} pending jobs",
                ("clusterctl status", status),
                ("squeue, then clusterctl --help", lambda: squeue() + start()),
                bound=2.0,
                runs=9,
            )
        finally:
            call(CLUSTERCTL, "sandbox", "down")


def many_runs(count: int) -> None:
    """Ended runs, each with a few hundred steps in its metrics."""
    with tempfile.TemporaryDirectory(prefix="runs-") as name:
        job = Job(name="cora", workload="reddit", resources=Resources(nodes=2, tasks_per_node=2), train=RedditTrain())
        record = {"job": to_record(job), "cluster": to_record(Cluster(name="local", kind="emulator"))}
        step = {"epoch": 20, "epochs": 20, "steps": 400, "loss": 0.5, "seconds": 0.03, "nodes_per_second": 30_000}
        for number in range(count):
            run = RunDir(Path(name) / f"cora-20260101-{number:06}-{number:04x}")
            run.attempt(0).path.mkdir(parents=True)
            run.run_json.write_text(json.dumps({"id": run.id, "created": 1.7e9 + number, **record}))
            run.finished_json.write_text(json.dumps({"time": 1.8e9}))
            run.attempt(0).host_json.write_text(
                json.dumps({"job_id": "7", "start": 1.7e9, "end": 1.8e9, "exit_code": 0})
            )
            steps = [{"time": 1.7e9 + place, "step": place, **step} for place in range(400)]
            run.attempt(0).metrics.write_text("".join(json.dumps(one) + "\n" for one in steps))
        environment = {**os.environ, "XDG_STATE_HOME": f"{name}/.state", "CLUSTERCTL_RUNS": name}
        for output in ("table", "json"):
            argv = [CLUSTERCTL, "status", "-a", "-o", output, "--cluster", "local"]
            call = timed(lambda argv=argv: subprocess.run(argv, env=environment, capture_output=True, check=True))
            title = f"Status of {count} runs, -o {output}"
            compare(title, ("clusterctl status -a", call), ("1 s", lambda: 1.0), bound=1.0, runs=5)


if __name__ == "__main__":
    main()

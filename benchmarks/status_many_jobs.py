"""`clusterctl status` when the user has 10,000 pending jobs, against asking squeue once and starting the command line.

Brings up a real Slurm on this machine (root, Slurm's packages). The jobs are held, so none of them runs; one of them is
a run of clusterctl's, so that `status` has to ask. Each call is cold: nothing is remembered from the one before.

python benchmarks/status_many_jobs.py [JOBS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from side_by_side import compare, timed

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
JOB = 'workload = "command"\nargv = ["true"]\n'


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
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
            call(CLUSTERCTL, "submit", "./job.toml", "--cluster", "sandbox", "--hold", "--set", f"code={name}/project")
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(submit, range(jobs - 1)))
            status = timed(lambda: call(CLUSTERCTL, "status", "--cluster", "sandbox"))
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


if __name__ == "__main__":
    main()

"""Time until the run's id is printed: `clusterctl submit` compared with a ten-line script that uses submitit.

Both submit a held job of 2 nodes x 2 tasks to the same emulator; the jobs are cancelled outside the timed part. The
first snapshot of the code is made in the warm-up.

python benchmarks/submit.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import arguments, compare

from clusterctl.launcher.config import load_cluster, state_folder
from clusterctl.launcher.emulator.install import ensure_stand_ins

JOB = 'workload = "command"\nargv = ["true"]\n[resources]\nnodes = 2\ntasks_per_node = 2\n'
PLAIN = """\
import os
import sys

import submitit

executor = submitit.SlurmExecutor(folder=sys.argv[1])
executor.update_parameters(
    job_name="plain", nodes=2, ntasks_per_node=2, time=60, additional_parameters={"hold": True}
)
print(executor.submit(os.system, "true").job_id)
"""


def main() -> None:
    arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # so that changed modules are compiled only in the warm-up
        os.environ |= {"XDG_STATE_HOME": f"{name}/state", "CLUSTERCTL_RUNS": f"{name}/runs"}
        stand_ins = ensure_stand_ins(state_folder(), load_cluster("local").emulator)
        (folder / "plain.py").write_text(PLAIN)
        (folder / "project").mkdir()
        (folder / "project" / "job.toml").write_text(JOB)
        plain_environment = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}"}
        clusterctl = str(Path(sys.executable).with_name("clusterctl"))

        def ours() -> float:
            words = [clusterctl, "submit", "./job.toml", "--cluster", "local", "--hold"]
            return seconds_to_submit(words, folder / "project", dict(os.environ))

        def rival() -> float:
            words = [sys.executable, str(folder / "plain.py"), str(folder / "plain")]
            return seconds_to_submit(words, folder, plain_environment)

        def seconds_to_submit(words: list[str], cwd: Path, environment: dict[str, str]) -> float:
            began = time.perf_counter()
            subprocess.run(words, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, check=True)
            seconds = time.perf_counter() - began
            queue = [str(stand_ins / "squeue"), "--me", "-h", "-O", "JobID:"]
            jobs = subprocess.run(queue, capture_output=True, text=True, check=True).stdout.split()
            subprocess.run([str(stand_ins / "scancel"), *jobs], check=True)
            return seconds

        compare("Submission", ("clusterctl submit", ours), ("plain submitit script", rival), bound=2.0)


if __name__ == "__main__":
    main()

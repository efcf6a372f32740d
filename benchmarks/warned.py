"""From the warning signal to the requeue request: the current step, the checkpoint, and ending the processes.

GraphSAGE on a generated graph with Reddit's statistics, on two nodes with two ranks each, warned by
`scancel --signal=USR2`. Aim: at most one step plus the checkpoint; the rest is the end of four processes, srun, and the
batch script. Runs on the emulator and, if the user may start one, on a sandbox.

python benchmarks/warned.py [--scale 0.02] [--runs 5]
"""

from __future__ import annotations

import os
import subprocess
import time
from statistics import median
from typing import TYPE_CHECKING

from side_by_side import arguments
from time_to_cause import call, emulator, sandbox

from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.record.files import read_json, read_lines
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from pathlib import Path

JOB = """workload = "reddit"
[train]
epochs = 1000
batch_size = 256
evaluate_every = 0
[resources]
nodes = 2
tasks_per_node = 2
[checkpoint]
every = "1h"
"""
STEPS = 30  # before the warning


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.02, help="relative to Reddit's 233 thousand nodes")
    words.add_argument("--runs", type=int, default=5)
    options = words.parse_args()
    for back_end in (emulator, sandbox):
        try:
            with back_end() as (cluster, environment, folder):
                call(
                    environment, folder, "data", "generate", "reddit", "--root", "graph", "--scale", str(options.scale)
                )
                (folder / "warned.toml").write_text(f'{JOB}[data]\nroot = "{folder / "graph"}"\n')
                found = [warned(cluster, environment, folder) for _ in range(options.runs)]
        except ClusterctlError as error:
            print(f"{back_end.__name__:<8} left out: {error.message}")
            continue
        whole, step, save = (sorted(column) for column in zip(*found, strict=True))
        reached = "reached" if all(seconds <= a + b for seconds, a, b in found) else "NOT reached"
        print(
            f"{cluster:<8} {median(whole):.2f} s ({whole[0]:.2f} to {whole[-1]:.2f}); a step {median(step):.2f} s, "
            f"the checkpoint {median(save):.2f} s   aim: at most both, {reached}",
            flush=True,
        )


def warned(cluster: str, environment: dict[str, str], folder: Path) -> tuple[float, float, float]:
    """Seconds from the signal to the request, of a step (the longest recent one), and of the checkpoint."""
    run = RunDir(folder / "runs" / call(environment, folder, "submit", "./warned.toml", "--cluster", cluster).strip())
    attempt = run.attempt(0)
    while sum("loss" in line for line in read_lines(attempt.metrics)) < STEPS:
        time.sleep(0.2)
    began = time.time()
    subprocess.run(
        [command(folder, "scancel"), "--signal=USR2", str(read_json(run.submission_json)["job_id"])],
        env=environment | {"SLURM_CONF": str(folder / "clusterctl" / "sandbox" / "etc" / "slurm.conf")},
        check=True,
    )
    while not (read_json(attempt.host_json) or {}).get("requeued"):
        time.sleep(0.01)
    whole = attempt.host_json.stat().st_mtime - began
    call(environment, folder, "cancel", "--yes", run.id, "--cluster", cluster)
    lines = list(read_lines(attempt.metrics))
    steps = [line["seconds"] for line in lines if "seconds" in line]
    (save,) = [line["checkpoint_seconds"] for line in lines if "checkpoint_seconds" in line]
    return whole, max(steps[-STEPS // 2 :]), save


def command(folder: Path, name: str) -> str:
    """The path of a Slurm command, real or emulated."""
    found = sorted(folder.glob(f"clusterctl/emulator/bin-*/{name}"))
    return os.fspath(found[-1]) if found else name


if __name__ == "__main__":
    main()

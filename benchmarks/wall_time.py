"""The overhead of clusterctl: the Reddit workload on Cora, four tasks, on the emulator and under torchrun.

The emulator is timed from sbatch to the end of the run; torchrun runs the same module with the same settings.

python benchmarks/wall_time.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from side_by_side import arguments, compare, timed

EPOCHS = 20


def main() -> None:
    arguments(__doc__).parse_args()
    here = Path(sys.executable)
    project = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as name:
        settings = [f"train.epochs={EPOCHS}", f"data.root={project / 'data' / 'cora'}"]
        environment = {
            **os.environ,
            "XDG_STATE_HOME": f"{name}/state",
            "CLUSTERCTL_RUNS": f"{name}/runs",
            "CLUSTERCTL_DATA_CACHE": f"{name}/cache",
            "OMP_NUM_THREADS": "1",
        }
        ours = [str(here.with_name("clusterctl")), "submit", "cora", "--cluster", "local", "--wait"]
        ours += [word for setting in settings for word in ("--set", setting)]
        rival = [
            str(here.with_name("torchrun")),
            "--standalone",
            "--nproc-per-node=4",
            "-m",
            "clusterctl.train",
            "reddit",
        ]
        rival += [str(project / "jobs" / "cora.toml"), *settings]

        def run(words: list[str]) -> None:
            subprocess.run(words, env=environment, cwd=project, capture_output=True, check=True)

        compare(
            f"Wall time of a run: {EPOCHS} epochs of Cora on four tasks",
            ("clusterctl submit --wait (2 nodes x 2 tasks)", timed(lambda: run(ours))),
            ("torchrun --nproc-per-node=4", timed(lambda: run(rival))),
            bound=1.1,
            runs=5,
        )


if __name__ == "__main__":
    main()

"""False alarms of the watchdog: a run of four ranks whose evaluations take twenty times as long as its steps.

A step takes half a second, and every minute an evaluation takes ten; one rank is slightly slower. The run is healthy,
so any alarm is a false one. The settings are the defaults.

python benchmarks/watchdog.py [MINUTES]      default: 3; the aim is none in 30
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from side_by_side import arguments

from clusterctl.shared.record.layout import RunDir

CLUSTERCTL = str(Path(sys.executable).with_name("clusterctl"))
PROGRAM = """
import os, sys, time
from clusterctl.program import log, phase
rank, end, step = int(os.environ["RANK"]), time.time() + float(sys.argv[1]), 0
while time.time() < end:
    phase("training")
    for _ in range(100):
        time.sleep(0.5 + 0.01 * rank)
        step += 1
        log(step=step)
    phase("evaluating")
    time.sleep(10)
    print("evaluated", flush=True)
"""
JOB = """workload = "command"
argv = [{python}, "program.py", "{seconds}"]
[resources]
nodes = 2
tasks_per_node = 2
time = "{minutes}m"
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=3.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="watchdog-") as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        job = JOB.format(python=json.dumps(sys.executable), seconds=60 * minutes, minutes=int(minutes) + 10)
        (folder / "evaluating.toml").write_text(job)
        environment = os.environ | {"CLUSTERCTL_RUNS": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}
        words = [CLUSTERCTL, "submit", "./evaluating.toml", "--cluster", "local", "--wait"]
        began = time.monotonic()
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        run = RunDir(folder / "runs" / done.stdout.split()[0])
        texts = [path.read_text() for attempt in run.attempts() for path in attempt.node_event_files().values()]
        alarms = sum(text.count('"event": "hang"') for text in texts)
        phases = sum(attempt.log(0).read_text().count("evaluated") for attempt in run.attempts())
        print(f"{(time.monotonic() - began) / 60:.1f} minutes, {len(run.attempts())} attempt, {phases} evaluations")
        print(f"false alarms: {alarms}   aim: 0, {'reached' if not alarms and not done.returncode else 'NOT reached'}")


if __name__ == "__main__":
    main()

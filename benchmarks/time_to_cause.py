"""Seconds from a fault until `clusterctl why` names its cause: a killed rank, an exception, and a hang.

Aims with default settings: 10 s for a rank that died or failed, 60 s for one that hangs while training. Runs on the
emulator and, if the user may start one, on a sandbox.

python benchmarks/time_to_cause.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from side_by_side import arguments

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.record.heartbeats import all_beats
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import os, signal, time
import clusterctl.program as run
def fail(*_):
    raise ValueError("no such layer: 7")
signal.signal(signal.SIGURG, fail)
step = 0
while True:
    step += 1
    time.sleep(0.05)
    run.log(step=step, loss=0.5)
"""
JOB = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n'
SHAPE = '[resources]\nnodes = 2\ntasks_per_node = 2\n[watchdog]\naction = "fail"\n[restart]\nlimit = 0\n'
FAULTS = {
    "a rank is killed": (signal.SIGKILL, "killed", 10),
    "a rank raises": (signal.SIGURG, "user-error", 10),
    "a rank hangs": (signal.SIGSTOP, "hang", 60),
}
PATIENCE_SECONDS = 180


def main() -> None:
    arguments(__doc__).parse_args()
    for back_end in (emulator, sandbox):
        try:
            with back_end() as (cluster, environment, folder):
                for fault, (number, cause, aim) in FAULTS.items():
                    seconds = measured(cluster, environment, folder, number, cause)
                    verdict = "reached" if seconds <= aim else "NOT reached"
                    print(f"{cluster:<8} {fault:<18} {seconds:6.1f} s   aim: at most {aim} s, {verdict}", flush=True)
        except ClusterctlError as error:
            print(f"{back_end.__name__:<8} left out: {error.message}")


@contextmanager
def emulator() -> Iterator[tuple[str, dict[str, str], Path]]:
    with tempfile.TemporaryDirectory(prefix="cause-") as name:
        yield "local", surroundings(Path(name)), Path(name)


@contextmanager
def sandbox() -> Iterator[tuple[str, dict[str, str], Path]]:
    with tempfile.TemporaryDirectory(prefix="cause-") as name:
        folder = Path(name)
        state = folder / "clusterctl" / "sandbox"
        try:
            lifecycle.up(state, SandboxRequest(nodes=2))
            yield "sandbox", surroundings(folder), folder
        finally:
            lifecycle.down(state)


def surroundings(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERCTL_", "SLURM_"))}
    return kept | {"XDG_STATE_HOME": str(folder), "CLUSTERCTL_RUNS": str(folder / "runs"), "NO_COLOR": "1"}


def call(environment: dict[str, str], folder: Path, *words: str) -> str:
    """The output of `clusterctl WORDS` in `folder`."""
    argv = [sys.executable, "-m", "clusterctl", *words]
    return subprocess.run(argv, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout


def measured(cluster: str, environment: dict[str, str], folder: Path, number: signal.Signals, cause: str) -> float:
    """Seconds from the signal to rank 2's program until `why` gives the cause its class."""
    typed = partial(call, environment, folder)
    here = ("--cluster", cluster)
    (folder / "cause.toml").write_text(JOB + SHAPE)
    run = RunDir(folder / "runs" / typed("submit", "./cause.toml", *here).strip())
    while len(known := all_beats(run.attempt(0))) < 4 or not all(beat.slow_seconds for beat in known.values()):
        time.sleep(0.1)
    os.kill(program_of(run, rank=2), number)
    struck = time.monotonic()
    found = False
    while not found and time.monotonic() - struck < PATIENCE_SECONDS:
        time.sleep(0.2)
        found = json.loads(typed("why", run.id, "-o", "json", *here))["class"] == cause
    seconds = time.monotonic() - struck
    typed("cancel", "--yes", run.id, *here)  # a hang is diagnosed before the watchdog ends the run
    return seconds


def program_of(run: RunDir, rank: int) -> int:
    """The process of the user's program, found by its environment: a node may have its own PID namespace."""
    marks = {f"CLUSTERCTL_RUN_DIR={run.path}".encode(), f"RANK={rank}".encode()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marks <= set((folder / "environ").read_bytes().split(b"\0")):
                return int(folder.name)
        except OSError:
            continue
    raise SystemExit(f"rank {rank} of {run.id} has no process")


if __name__ == "__main__":
    main()

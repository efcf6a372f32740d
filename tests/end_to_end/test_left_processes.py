"""A program that ignores TERM, and its daemon, end with their attempt, whichever way Slurm tracks processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from support.scenario import Stage, alive, wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.parametrize("back_end", ["emulator", "sandbox", "contained"], indirect=True),
]

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt = os.environ["CLUSTERCTL_ATTEMPT"]
if os.fork() == 0:  # a daemon that proctrack/linuxproc loses
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
seen = open(f"seen-{attempt}", "a")
if attempt == "1":
    beside = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            one = open(f"/proc/{name}/environ", "rb").read().split(b"\\0")
        except OSError:  # it has just ended, or nobody may look at it
            continue
        earlier = (b"CLUSTERCTL_ATTEMPT=0", b"CLUSTERCTL_RUN_DIR=" + os.environb[b"CLUSTERCTL_RUN_DIR"])
        if {*earlier, b"SLURM_PROCID=0"}.issubset(one):
            beside.append(name)
    print(len(beside), "beside", flush=True)
    os._exit(0)
for _ in range(3000):
    seen.write("alive\\n")
    seen.flush()
    time.sleep(0.1)
"""


@pytest.mark.parametrize("how", ["requeued", "killed"])
def test_nothing_runs_beside_the_next_attempt(stage: Stage, how: str) -> None:
    (stage.folder / "stubborn.py").write_text(STUBBORN)
    checkpoint = 'mkdir -p "$CLUSTERCTL_CHECKPOINTS/$CLUSTERCTL_ATTEMPT-7"; exec python stubborn.py'
    argv = json.dumps(["bash", "-c", checkpoint])
    run = stage.submit(stage.write_job("stubborn", f'workload = "command"\nargv = {argv}\n'))
    wait_until(lambda: (run.work / "seen-0").exists(), 60, "the program")
    if how == "requeued":
        stage.slurm("scontrol", "requeue", stage.job_id(run))
    else:
        cmdlines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in alive(run, rank=0)}
        program = min(pid for pid, words in cmdlines.items() if words.startswith(b"python\0stubborn.py"))
        os.kill(program, signal.SIGKILL)
    stage.wait_for_state(run, "finished", seconds=120)
    assert "0 beside" in stage.log(run, 0, attempt=1)


@pytest.mark.parametrize("how", ["cancelled", "timed-out"])
def test_nothing_outlives_the_run(stage: Stage, how: str) -> None:
    (stage.folder / "stubborn.py").write_text(STUBBORN)
    limit = '[resources]\ntime = "15s"\n' if how == "timed-out" else ""
    job = f'workload = "command"\nargv = ["python", "stubborn.py"]\n{limit}'
    run = stage.submit(stage.write_job("stubborn", job))
    wait_until(lambda: (run.work / "seen-0").exists(), 60, "the program")
    assert len(alive(run)) >= 3  # the task, the program and its daemon
    if how == "cancelled":
        assert stage.call("cancel", run.id, "--yes", "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, how, seconds=120)
    wait_until(lambda: alive(run) == [], 30, "nothing to be left")

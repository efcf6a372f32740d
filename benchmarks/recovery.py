"""Seconds from the SIGKILL of a rank to the first new step, on a sandbox of two nodes with two ranks each.

A stranger's DDP program (gloo; it saves every ten steps into a file of its own, and knows nothing of clusterctl), and
our own training, each killed several times: started again in the same job, and through the queue; beside torchrun's
`--max-restarts` with the same program on the same nodes, as its best user would set it up: a monitor interval of 0.1 s,
and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it never recovers. Aims: our own training at most 1 s and a
fifth of torchrun's; a stranger's program no slower than torchrun's. Only root can start a sandbox.

python benchmarks/recovery.py [--kills 8] [--queue]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from time_to_cause import call, surroundings

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable

CORA = Path(__file__).resolve().parents[1] / "data" / "cora"
PATIENCE_SECONDS = 400.0
PROGRAM = """
import os, time
import torch, torch.distributed as dist
from torch import nn

def main():
    folder, rank = os.environ["STEPS_IN"], int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer, step, saved = torch.optim.Adam(model.parameters()), 0, f"{folder}/saved.pt"
    if os.path.exists(saved):
        state = torch.load(saved)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    while True:
        x = torch.randn(32, 64)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        step += 1
        time.sleep(0.02)
        if rank == 0:
            with open(f"{folder}/steps", "a") as file:
                file.write(f"{time.time()} {os.getpid()} {step}\\n")
            if step % 10 == 0:
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, f"{saved}.new")
                os.replace(f"{saved}.new", saved)

main()
"""
SHAPE = '[resources]\nnodes = 2\ntasks_per_node = 2\ntime = "2h"\n[restart]\nwhere = {where}\nwithout_progress = 1000\n'
OURS = (
    f'workload = "reddit"\n[data]\nroot = {json.dumps(str(CORA))}\n[train]\nepochs = 100000\nbatch_size = 64\n'
    'evaluate_every = 1000\ndevice = "cpu"\n[checkpoint]\nevery = "1s"\n'
)
TORCHRUN = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --output={folder}/torchrun.log
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 STEPS_IN={folder}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$head" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
srun --mem=0 {torchrun} --nnodes=2 --nproc-per-node=2 --max-restarts=1000 --monitor-interval=0.1 \\
  --rdzv-backend=c10d --rdzv-endpoint="$address:29511" {folder}/program.py
"""


@dataclass(frozen=True)
class Step:
    """A step that was logged: when it was first seen, and in which life of the training."""

    time: float
    life: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8, help="how often each training is killed")
    parser.add_argument("--queue", action="store_true", help="also through the queue, which takes minutes a kill")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rec-", dir="/tmp") as name:
        folder = Path(name)
        state = folder / "clusterctl" / "sandbox"
        environment = surroundings(folder) | {"SLURM_CONF": str(state / "etc" / "slurm.conf")}
        lifecycle.up(state, SandboxRequest(nodes=2))
        try:
            rival = of_torchrun(folder, environment, arguments.kills)
            stranger = of_clusterctl(folder, environment, "stranger", "allocation", arguments.kills)
            ours = of_clusterctl(folder, environment, "ours", "allocation", arguments.kills)
            print(f"a stranger's program: {stranger / rival:.2f} of torchrun's time; aim: at most 1")
            print(f"our own training:     {ours / rival:.2f} of torchrun's time, {ours:.2f} s; aims: 0.2, 1 s")
            if arguments.queue:
                queued = of_clusterctl(folder, environment, "ours", "queue", 2)
                print(f"our own training through the queue: {queued / ours:.0f} times as long")
        finally:
            lifecycle.down(state)


def of_torchrun(folder: Path, environment: dict[str, str], kills: int) -> float:
    (folder / "program.py").write_text(PROGRAM)
    script = folder / "torchrun.sh"
    script.write_text(TORCHRUN.format(folder=folder, torchrun=Path(sys.executable).with_name("torchrun")))
    job = subprocess.run(
        ["sbatch", "--parsable", str(script)], env=environment, cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        return killed("torchrun", kills, lambda: program_step(folder), [f"STEPS_IN={folder}", "RANK=1"])
    finally:
        subprocess.run(["scancel", job], env=environment, check=True)
        until_idle(environment)


def of_clusterctl(folder: Path, environment: dict[str, str], what: str, where: str, kills: int) -> float:
    steps = folder / f"{what}-{where}"
    steps.mkdir()
    shape = SHAPE.format(where=json.dumps(where))
    if what == "ours":
        (folder / "job.toml").write_text(OURS.replace("[data]", f"{shape}[data]"))
    else:
        argv = json.dumps([sys.executable, str(folder / "program.py")])
        own = f"[env]\nSTEPS_IN = {json.dumps(str(steps))}\n"
        (folder / "job.toml").write_text(f'workload = "command"\nargv = {argv}\n{own}{shape}')
    run = RunDir(folder / "runs" / call(environment, folder, "submit", "./job.toml", "--cluster", "sandbox").strip())
    try:
        if what == "ours":
            marks = [f"CLUSTERCTL_RUN_DIR={run.path}", "SLURM_PROCID=1"]
            return killed(f"ours, {where}", kills, lambda: own_step(run), marks)
        return killed(
            f"a stranger's program, {where}", kills, lambda: program_step(steps), [f"STEPS_IN={steps}", "RANK=1"]
        )
    finally:
        call(environment, folder, "cancel", "--yes", run.id, "--cluster", "sandbox")
        until_idle(environment)


def until_idle(environment: dict[str, str]) -> None:
    while subprocess.run(["squeue", "-h"], env=environment, capture_output=True, check=True).stdout.strip():
        time.sleep(0.5)


def killed(name: str, kills: int, newest: Callable[[], Step | None], marks: list[str]) -> float:
    """The median of the seconds to the first step of the next life, printed with its spread."""
    found: list[float] = []
    for _ in range(kills):
        before = until(newest)
        time.sleep(3)
        os.kill(process_with(marks), signal.SIGKILL)
        struck = time.time()
        after = until(partial(next_life, newest, before.life))
        found.append(after.time - struck)
    found.sort()
    middle = statistics.median(found)
    print(f"{name:<34} {found[0]:6.2f} / {middle:6.2f} / {found[-1]:6.2f} s in {kills} kills", flush=True)
    return middle


def next_life(newest: Callable[[], Step | None], before: str) -> Step | None:
    step = newest()
    return step if step and step.life != before else None


def until(look: Callable[[], Step | None]) -> Step:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.005)
    raise SystemExit(f"no step within {PATIENCE_SECONDS:.0f} s")


def program_step(folder: Path) -> Step | None:
    """The first step of the program's newest life."""
    try:
        lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    except OSError:
        return None
    whole = [line for line in lines if len(line) == 3]
    return next((Step(float(line[0]), line[1]) for line in whole if line[1] == whole[-1][1]), None)


def own_step(run: RunDir) -> Step | None:
    """The newest attempt of our own training that has logged a step, now."""
    for attempt in reversed(run.attempts()):
        try:
            if '"loss"' in attempt.metrics.read_text():
                return Step(time.time(), str(attempt.number))
        except OSError:
            continue
    return None


def process_with(marks: list[str]) -> int:
    """The newest Python process that has these variables; a node may have its own PID namespace."""
    wanted, found = {mark.encode() for mark in marks}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if not wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                continue
            if "python" in (folder / "comm").read_text() and b"node_writer" not in (folder / "cmdline").read_bytes():
                found.append((folder.stat().st_ctime_ns, int(folder.name)))
        except OSError:
            continue
    if not found:
        raise SystemExit(f"no process with {marks}")
    return max(found)[1]


if __name__ == "__main__":
    main()

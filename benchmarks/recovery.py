"""Seconds from the SIGKILL of a rank to the first new step, on a sandbox of nodes with two ranks each.

A stranger's DDP program (gloo; it saves every ten steps into a file of its own, and knows nothing of clusterctl), and
our own training with and without standbys, each killed several times: started again in the same job, and through the
queue; beside torchrun's `--max-restarts` with the same program on the same nodes, as its best user would set it up: a
monitor interval of 0.1 s, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it never recovers. For our own
training also the parts of that time (medians), and its memory. Aims: our own training at most 1 s and a fifth of
torchrun's; a stranger's program no slower than torchrun's. Only root can start a sandbox. In a control group of its own
with the controller cpuacct, it also prints the processor time that all of this took, which other programs on a busy
machine hardly change; `--ours` leaves out everything but our own training with standbys. `--image` adds our own
training in an image that has torch (`clusterctl image build`), with and without standbys.

python benchmarks/recovery.py [--kills 8] [--nodes 2 4] [--queue] [--ours] [--image FILE.sqsh]
"""

from __future__ import annotations

import itertools
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
from typing import TYPE_CHECKING, Any, NamedTuple

from side_by_side import arguments
from time_to_cause import call, surroundings

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.shared.record.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CORA = Path(__file__).resolve().parents[1] / "data" / "cora"
PATIENCE_SECONDS = 120.0
PARTS = ("old attempt gone", "tasks began", "met", "loaded", "first step")
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
SHAPE = """[resources]
nodes = {nodes}
tasks_per_node = 2
time = "2h"
[restart]
where = "{where}"
without_progress = 1000
"""
OURS = (
    f'workload = "reddit"\n[data]\nroot = {json.dumps(str(CORA))}\n[train]\nepochs = 100000\nbatch_size = 64\n'
    'evaluate_every = 1000\ndevice = "cpu"\n[checkpoint]\nevery = "1s"\n'
)
TORCHRUN = """#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --cpus-per-task=1 --mem=0 --output={folder}/torchrun.log
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 STEPS_IN={folder}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$head" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
srun --mem=0 {torchrun} --nnodes={nodes} --nproc-per-node=2 --max-restarts=1000 --monitor-interval=0.1 \\
  --rdzv-backend=c10d --rdzv-endpoint="$address:29511" {folder}/program.py
"""


@dataclass(frozen=True)
class Step:
    """A step that was logged: when it was first seen, and in which life of the training."""

    time: float
    life: str


class Case(NamedTuple):
    """What is killed: the stranger's program or our own training, on so many nodes."""

    folder: Path
    environment: dict[str, str]
    nodes: int
    kills: int
    image: Path | None = None


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=8, help="how often each training is killed")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--queue", action="store_true", help="also through the queue, which takes minutes a kill")
    parser.add_argument("--ours", action="store_true", help="only our own training with standbys")
    parser.add_argument("--image", type=Path, help="also our own training in this image")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rec-", dir="/tmp") as name:
        folder = Path(name)
        state = folder / "clusterctl" / "sandbox"
        environment = surroundings(folder) | {"SLURM_CONF": str(state / "etc" / "slurm.conf")}
        lifecycle.up(state, SandboxRequest(nodes=max(options.nodes)))
        try:
            for nodes in options.nodes:
                inside = folder / str(nodes)
                inside.mkdir()
                case = Case(inside, environment, nodes, options.kills)
                if options.ours:
                    of_clusterctl(case, f"our own training, {nodes} x 2 ranks")
                else:
                    compare(case, queue=options.queue)
                if options.image:
                    boxed = case._replace(image=options.image.resolve())
                    alone = of_clusterctl(boxed, "our own, image, no standby", "standby = false\n")
                    ours = of_clusterctl(boxed, "our own training, in an image")
                    print(f"in an image: {ours / alone:.2f} of the time without standbys")
        finally:
            lifecycle.down(state)


def compare(case: Case, *, queue: bool) -> None:
    print(f"{case.nodes} nodes with 2 ranks each: seconds, min / median / max of {case.kills} kills")
    rival = of_torchrun(case)
    stranger = of_clusterctl(case, "a stranger's program")
    alone = of_clusterctl(case, "our own training, no standby", "standby = false\n")
    ours = of_clusterctl(case, "our own training")
    print(f"a stranger's program: {stranger / rival:.2f} of torchrun's time; aim: at most 1")
    print(f"our own training:     {ours / rival:.2f} of torchrun's time, {ours:.2f} s; aims: 0.2, 1 s")
    print(f"                      {ours / alone:.2f} of the time without standbys")
    if queue:
        queued = of_clusterctl(case._replace(kills=2), "our own training, queue", where="queue")
        print(f"                      {ours / queued:.3f} of the time through the queue")


def of_torchrun(case: Case) -> float:
    folder, environment, nodes, *_ = case
    (folder / "program.py").write_text(PROGRAM)
    script = folder / "torchrun.sh"
    script.write_text(TORCHRUN.format(folder=folder, nodes=nodes, torchrun=Path(sys.executable).with_name("torchrun")))
    job = subprocess.run(
        ["sbatch", "--parsable", str(script)], env=environment, cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        return killed("torchrun", case, lambda: program_step(folder), [f"STEPS_IN={folder}", "RANK=1"])
    finally:
        subprocess.run(["scancel", job], env=environment, check=True)
        until_idle(environment)


def of_clusterctl(case: Case, what: str, restart: str = "", where: str = "allocation") -> float:
    folder, environment, nodes, _, image = case
    steps = folder / "steps of the program"
    steps.mkdir(exist_ok=True)
    shape = SHAPE.format(nodes=nodes, where=where) + restart
    if image:
        shape += f"[container]\nimage = {json.dumps(str(image))}\n"
    if "own" in what:
        (folder / "job.toml").write_text(OURS.replace("[data]", f"{shape}[data]"))
    else:
        argv = json.dumps([sys.executable, str(folder / "program.py")])
        own = f"[env]\nSTEPS_IN = {json.dumps(str(steps))}\n"
        (folder / "job.toml").write_text(f'workload = "command"\nargv = {argv}\n{own}{shape}')
    run = RunDir(
        Path(environment["CLUSTERCTL_RUNS"])
        / call(environment, folder, "submit", "./job.toml", "--cluster", "sandbox").strip()
    )
    try:
        if "own" not in what:
            return killed(what, case, lambda: program_step(steps), [f"STEPS_IN={steps}", "RANK=1"])
        median = killed(what, case, lambda: own_step(run), [f"CLUSTERCTL_RUN_DIR={run.path}", "SLURM_PROCID=1"], run)
        print(f"  {memory_of(run) / nodes / 2**20:.0f} MiB per node (PSS)")
        return median
    finally:
        call(environment, folder, "cancel", "--yes", run.id, "--cluster", "sandbox")
        until_idle(environment)


def until_idle(environment: dict[str, str]) -> None:
    while subprocess.run(["squeue", "-h"], env=environment, capture_output=True, check=True).stdout.strip():
        time.sleep(0.5)


def killed(
    name: str, case: Case, newest: Callable[[], Step | None], marks: list[str], run: RunDir | None = None
) -> float:
    """The median of the seconds to the first step of the next life; prints the spread, and for `run` the parts."""
    found: list[float] = []
    processor: list[float] = []
    parts: list[list[float]] = []
    for _ in range(case.kills):
        before = until(newest)
        time.sleep(3)
        os.kill(process_with(marks), signal.SIGKILL)
        struck, used = time.time(), processor_seconds()
        after = until(partial(next_life, newest, before.life))
        found.append(after.time - struck)
        processor.append(processor_seconds() - used)
        if run is not None:
            times = [struck, *moments(run, 2 * case.nodes), after.time]
            parts.append([later - earlier for earlier, later in itertools.pairwise(times)])
    found.sort()
    middle = statistics.median(found)
    print(f"{name:<34} {found[0]:6.2f} / {middle:6.2f} / {found[-1]:6.2f}", flush=True)
    if any(processor):
        print(f"  {statistics.median(processor):.2f} s of processor time", flush=True)
    if parts:
        medians = map(statistics.median, zip(*parts, strict=True))
        print("  " + ", ".join(f"{part} {median:.2f}" for part, median in zip(PARTS, medians, strict=True)))
    return middle


def processor_seconds() -> float:
    """What the others in this process's control group have used so far, also those that have ended; 0 without one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpuacct" in controllers.split(",") and path != "/":
            used = int(Path(f"/sys/fs/cgroup/cpuacct{path}/cpuacct.usage").read_text())
            return used / 1e9 - time.process_time()
    return 0.0


def moments(run: RunDir, ranks: int) -> Iterator[float]:
    """When the old attempt had ended, when all tasks of the new one had begun, met, and loaded: the ends of PARTS."""
    *_, old, new = run.attempts()
    yield old.host_json.stat().st_mtime
    events = list[dict[str, Any]]()
    while len({one["rank"] for one in events if one.get("stage") == "training"}) < ranks:
        time.sleep(0.5)  # the nodes' writers collect events for a while
        files = new.path.glob("nodes/*.events.jsonl")
        events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for event, stage in (("began", None), ("stage", "loading"), ("stage", "training")):
        first = {
            one["rank"]: one["time"] for one in reversed(events) if (one["event"], one.get("stage")) == (event, stage)
        }
        yield max(first.values())


def memory_of(run: RunDir) -> int:
    """The memory of a run's processes on all nodes, in bytes; pages that several of them share count once."""
    total, name = 0, os.fsencode(run.path)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if name in (folder / "environ").read_bytes() and "python" in (folder / "comm").read_text():
                text = (folder / "smaps_rollup").read_text()
                total += next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
        except OSError:
            continue
    return total


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
    """The newest program that has these variables; a node may have its own PID namespace."""
    wanted, found = {mark.encode() for mark in marks}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            # A task of ours may have handed over to the rank: only that one has its attempt.
            is_attempts = any(variable.startswith(b"CLUSTERCTL_ATTEMPT=") for variable in variables)
            words = (folder / "cmdline").read_bytes()
            is_program = b"/node/__main__.py\0" in words or b"program.py\0" in words
            if wanted <= set(variables) and (is_attempts or b"program.py" in words) and is_program:
                started = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
                found.append((started, int(folder.name)))
        except OSError:
            continue
    if not found:
        raise SystemExit(f"no process with {marks}")
    return max(found)[1]


if __name__ == "__main__":
    main()

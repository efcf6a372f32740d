"""One run with a fault: access to its ranks, its nodes, its files, and its Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.shapes import PLAIN, Shape
from support.recorded import beat_of, recorded
from support.scenario import Stage, alive, wait_until

from clusterctl.launcher.observe.run_record import read_submission
from clusterctl.shared.record.files import read_json, read_lines
from clusterctl.shared.record.layout import RunDir, SweepDir

DATA = Path(__file__).resolve().parents[2] / "data"
INSIDE = Path(__file__).resolve().parent / "inside"
NODES, RANKS = 2, 4

_PROGRAM = """
import contextlib, json, os, time
import clusterctl.program as run
rank, step, total = int(os.environ["RANK"]), 0, 0.0
devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
print("in an image," if os.path.exists("/srv/own.txt") else "on its node,", end=" ")
print(f"with {len(devices)} GPUs" if devices[0] else "without GPUs", flush=True)
go = os.path.join(os.environ["CLUSTERCTL_RUN_DIR"], "go")
if folder := run.latest_checkpoint():
    step, total = json.loads((folder / "state.json").read_text())
while step < 300:
    step += 1
    total += 1 / step
    waits = step > 60 and os.environ["CLUSTERCTL_ATTEMPT"] == "0" and not os.path.exists(go)
    time.sleep(0.5 if waits else 0.02)
    run.log(step=step, steps=300, loss=total)
    if rank == 0 and (run.stop_requested() or step % 20 == 0):
        with contextlib.suppress(OSError), run.checkpoint(step) as folder:
            (folder / "state.json").write_text(json.dumps([step, total]))
    if run.stop_requested():
        run.request_restart(step)
"""
_CORA = f"[data]\nroot = {json.dumps(str(DATA / 'cora'))}\n"
WORKLOADS = {
    "command": f'workload = "command"\nargv = ["python", "-c", {json.dumps(_PROGRAM)}]\n',
    "reddit": f'workload = "reddit"\n{_CORA}[train]\nepochs = 30\nbatch_size = 128\nevaluate_every = 10\n',
    "deep-sage": f'workload = "deep-sage"\n{_CORA}[train]\nepochs = 30\nbatch_size = 64\nevaluate_every = 10\n',
    "synthetic": 'workload = "synthetic"\n[train]\navg_num_nodes = 4000\nmodel = "sage"\nfan_out = [5, 5]\n'
    "epochs = 100\nevaluate_every = 20\n",
    "graph-classification": 'workload = "graph-classification"\n[data]\n'
    f"root = {json.dumps(str(DATA / 'IMDB-BINARY'))}\n[train]\nepochs = 40\npatience = 40\nfolds = 2\n",
    "taobao": 'workload = "taobao"\n[train]\ngenerated = 0.001\nepochs = 3\nbatch_size = 512\nlr = 3e-3\n',
}
"""Each takes some seconds on four ranks and saves a checkpoint every second. The first attempt is slow until
`Scene.go_on`; the program waits by itself, the trainings are slowed down by `inside`."""


def job_file(workload: str) -> str:
    """Two nodes with two ranks each; the watchdog has short limits, and every rank imports `inside`."""
    return WORKLOADS[workload] + (
        f'[resources]\nnodes = {NODES}\ntasks_per_node = {RANKS // NODES}\nmemory = "3G"\n'
        '[checkpoint]\nevery = "1s"\n[watchdog]\nfloor = 15\nfactor = 5\nevaluating = 30\n'
        f"[env]\nPYTHONPATH = {json.dumps(str(INSIDE))}\n"
    )


@dataclass
class Scene:
    """A run of `workload` on `stage` and on `nodes`."""

    stage: Stage
    workload: str
    nodes: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = "run"
    shape: Shape = PLAIN
    run: RunDir = field(init=False)
    other: RunDir | None = None  # the run beside it, in a sweep
    script_killed: bool = False

    def submit(self) -> None:
        words = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        words += ["--sweep", "env.ELEMENT=0,1"] if self.shape.sweep else []
        (self.stage.folder / f"{self.name}.toml").write_text(job_file(self.workload))
        self.run = self.stage.submit(f"./{self.name}.toml", *words)
        if self.shape.sweep:
            sweep = SweepDir.of(self.stage.runs, self.run.id)
            self.run, self.other = sweep.run(0), sweep.run(1)
            (self.other.path / "go").touch()

    def go_on(self) -> None:
        """Let the first attempt run to its end."""
        (self.run.path / "go").touch()

    @property
    def job_id(self) -> str:
        return read_submission(self.run).job_id

    # Its ranks

    def pids(self, rank: int) -> list[int]:
        """The processes of a rank, the oldest first: with `command`, clusterctl's own comes before the program."""
        return sorted(alive(self.run, rank), key=_started)

    def send(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to the process that does the work of `rank`."""
        os.kill(self.pids(rank)[-1], number)

    def kill(self, rank: int) -> None:
        os.kill(self.pids(rank)[0], signal.SIGKILL)

    def kill_script(self) -> None:
        """Kill the batch script (bash in the run directory, and slurmd's copy of it), so that it records no end.

        In an array, what was slurmd's copy is the run's own script by now.
        """
        names = (b"/slurm_script\0", os.fsencode(f"{self.run.script}\0"))
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes()
                if any(name in words for name in names) and (folder / "cwd").readlink() == self.run.path:
                    os.kill(int(folder.name), signal.SIGKILL)
                    self.script_killed = True
        assert self.script_killed, f"no batch script of {self.run.id} is running"

    # Its files

    def checkpoints(self) -> list[Path]:
        """The existing checkpoints of the first attempt, the oldest first."""
        return sorted(self.run.checkpoints.glob("0-*"), key=lambda path: int(path.name.partition("-")[2]))

    def wait_for_checkpoints(self, count: int = 1) -> list[Path]:
        """Wait until every rank works and `count` checkpoints are complete; return all of them, the oldest first."""

        def found() -> list[Path]:
            assert not self.run.finished_json.exists(), f"{self.run.id} finished before its fault"
            return self.checkpoints()

        def at_work() -> bool:
            assert len(self.run.attempts()) <= 1, f"{self.run.id} has started again before its fault"
            return all(self.steps(rank) for rank in range(RANKS))

        # With a program, rank 0 may save before rank 2 has started.
        wait_until(at_work, 120, f"the first step of every rank of {self.run.id}", every=0.2)
        return list(wait_until(lambda: made if len(made := found()) >= count else None, 120, "checkpoints"))

    def steps(self, rank: int) -> int:
        """The step of a rank of the first attempt, from its last heartbeat."""
        beat = beat_of(self.run.attempt(0), rank)
        return beat.step if beat else 0

    def ended(self, attempt: int) -> bool:
        """Whether the batch script of `attempt` has recorded its end, or was killed."""
        return self.script_killed or "exit_code" in (read_json(self.run.attempt(attempt).host_json) or {})

    def losses(self) -> dict[int, float]:
        return losses_of(self.run)

    # Its Slurm

    def slurm(self, *words: str) -> None:
        self.stage.slurm(*words)

    def nodes_of(self, attempt: int = 0) -> list[str]:
        """The nodes of an attempt as its ranks recorded them, rank 0's first."""
        records = [recorded(self.run.attempt(attempt), rank) for rank in (0, 2)]
        return [next(str(event["node"]) for event in events if event["event"] == "began") for events in records]

    def node(self, action: str, name: str) -> None:
        done = self.stage.call("sandbox", "node", action, name)
        assert done.returncode == 0, done.stderr

    # Its diagnosis

    def evidence(self) -> str:
        """What it and its Slurm show, for a test that has failed: the next run of the tests overwrites its files."""
        texts = [self.stage.call("why", self.run.id, "--cluster", self.stage.cluster).stdout]
        for words in (("squeue", "--long"), ("sinfo", "--long", "--Node"), ("sinfo", "--list-reasons")):
            with contextlib.suppress(OSError, IndexError, subprocess.SubprocessError):  # the emulator knows fewer
                texts.append(self.stage.slurm(*words))
        for attempt in self.run.attempts():
            for path in (attempt.host_json, attempt.path / "host.log", *attempt.beat_files().values()):
                with contextlib.suppress(OSError):
                    texts.append(f"{path.relative_to(self.run.path)}: {path.read_text()[-2000:]}")
        return "\n".join(texts)

    def why(self) -> dict[str, Any]:
        done = self.stage.call("why", self.run.id, "--cluster", self.stage.cluster, "-o", "json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


def losses_of(run: RunDir) -> dict[int, float]:
    """The loss of each step; later attempts replace what an earlier one did beyond its last checkpoint."""
    found: dict[int, float] = {}
    for attempt in run.attempts():
        found |= {line["step"]: line["loss"] for line in read_lines(attempt.metrics) if "loss" in line}
    return found


def _started(pid: int) -> int:
    """When a process started, in ticks since boot; process IDs may have wrapped around."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])

"""How long a checkpoint blocks the training loop, compared with torch.save of the same state, pair by pair.

One rank writes everything, the worst case: with more ranks, each copies its share. Ours continues to write in the
background while the loop trains; waiting for that is not timed. torch.save is not even followed by an fsync.

python benchmarks/checkpoint.py
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from side_by_side import arguments, compare
from torch import distributed as dist

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.checkpoint import Checkpoints, Position
from clusterctl.engine.training.flat import Stops
from clusterctl.engine.training.state import PartState
from clusterctl.shared.node.events import Events
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import MetricsWriter
from clusterctl.shared.record.place import Place
from clusterctl.shared.spec import Checkpoint, LoopTrain

ALLOWED_SECONDS = 0.050  # or 1.1 times torch.save, whichever is more


class Tensors:
    """Weights and two moments, with a total of `megabytes`."""

    def __init__(self, megabytes: int) -> None:
        self.tensors = {name: torch.rand(megabytes * 2**20 // 12) for name in ("values", "mean", "square")}

    def state(self) -> PartState:
        return PartState(self.tensors)

    def load(self, state: PartState) -> None:
        raise NotImplementedError


def main() -> None:
    arguments(__doc__).parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    assert world is not None
    with tempfile.TemporaryDirectory() as name:
        attempt = RunDir(Path(name)).attempt(0)
        attempt.path.mkdir(parents=True)
        outside = Events(None, 0), MetricsWriter(None, 0), StopRequest()
        task = Task(Place(), torch.device("cpu"), world, Path(name, "cache"), *outside)
        for megabytes, runs in ((4, 15), (768, 5)):
            measure(megabytes, runs, replace(task, attempt=attempt, checkpoint=Checkpoint(every=1)))
            shutil.rmtree(RunDir(Path(name)).checkpoints)
    dist.destroy_process_group()


def measure(megabytes: int, runs: int, task: Task) -> None:
    parts = {"state": Tensors(megabytes)}
    saved = Checkpoints(task, LoopTrain())
    steps = iter(range(1, 10**6))
    assert task.attempt is not None
    path = task.attempt.path / "plain.pt"
    seconds: list[float] = []

    def ours() -> float:
        saved.finish()
        began = time.perf_counter()
        saved.boundary(Stops(False, False, due=True), Position(step=next(steps)), parts)
        stood_still = time.perf_counter() - began
        saved.finish()
        return stood_still

    def rival() -> float:
        began = time.perf_counter()
        torch.save(parts["state"].tensors, path)
        seconds.append(time.perf_counter() - began)
        return seconds[-1]

    rival()
    bound = max(1.1, ALLOWED_SECONDS / seconds[0])
    compare(
        f"Checkpoint of {megabytes} MB", ("the loop is blocked", ours), ("torch.save", rival), bound=bound, runs=runs
    )
    path.unlink()


if __name__ == "__main__":
    main()

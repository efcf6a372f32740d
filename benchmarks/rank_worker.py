"""Several ranks that train on a stored graph for some steps, measured by `ranks_and_threads`, `memory` and `growth`.

`measure` runs this file under torchrun, once per rank.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path

import torch
from process_memory import memory
from torch import distributed as dist

from clusterctl.engine.graph import sampling
from clusterctl.engine.graph.storage import Graph, load
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.learner import Adam
from clusterctl.engine.training.loop import prefetched
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.node.events import Context
from clusterctl.shared.spec import RedditTrain


@dataclass(frozen=True)
class Wanted:
    """What the ranks do: train `steps` steps on the graph in `path` after three warm-up steps, then may evaluate."""

    path: str
    steps: int = 10
    batch_size: int = 1024
    precision: str = "float32"
    cached: bool = False
    evaluate: bool = False


@dataclass(frozen=True)
class Measured:
    """Totals over all ranks; memory in bytes."""

    seeds_per_second: float
    in_step: int  # proportional set size between forward and backward pass of the last warm-up step
    at_rest: int  # proportional set size at the end
    peak: int  # of one rank, including mapped pages of the graph


def measure(wanted: Wanted, ranks: int, threads: int) -> Measured:
    """Run `ranks` processes of `threads` threads each on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, __file__, json.dumps(asdict(wanted))],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Measured(**json.loads(done.stdout))


def main(wanted: Wanted) -> None:
    sampling.WORTH_COMPILING = 0  # so that ranks with a tiny graph run the same code
    settings = replace(
        RedditTrain(),
        batch_size=wanted.batch_size,
        precision=wanted.precision,
        cache_first_aggregation=wanted.cached,
    )
    context = Context({"name": "benchmark", "workload": "reddit"})
    place = context.place
    with joined(context) as task:
        objective = NodeClassification(load(Graph, Path(wanted.path)), settings, task)
        flat = FlatModel(objective.model)
        optimizer = Adam(flat.values, flat.gradients, settings.lr, settings.weight_decay)
        plan = EpochPlan(objective.seeds, settings.batch_size * place.world_size, 0, place.rank, place.world_size)
        objective.model.train()
        batches = chain.from_iterable(plan.batches(epoch) for epoch in range(wanted.steps + 3))
        for step, (batch, prepared) in enumerate(prefetched(islice(batches, wanted.steps + 3), objective.prepare)):
            if step == 3:
                dist.barrier()
                began = time.perf_counter()
            loss = objective.loss(batch, prepared)
            if step == 2:
                in_step = proportional()
            flat.backward(loss, context.stop)
            optimizer.step()
        seconds = time.perf_counter() - began
        del batch, prepared, loss
        if wanted.evaluate:
            objective.model.eval()
            objective.evaluate(["val", "test"])
        ctypes.CDLL(None).malloc_trim(0)  # do not count memory that the allocator keeps for the next step
        at_rest = proportional()
        if place.rank == 0:
            seeds = wanted.steps * settings.batch_size * place.world_size / seconds
            print(json.dumps(asdict(Measured(seeds, in_step, at_rest, memory("status", "VmHWM:")))))


def proportional() -> int:
    """The total proportional set size of all ranks, in bytes. A collective."""
    dist.barrier()
    size = torch.tensor(memory("smaps_rollup", "Pss:"))
    dist.barrier()  # if a rank exited early, its share of the pages would be counted for the others
    dist.all_reduce(size)
    return int(size)


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["--help"]):
        print(__doc__)
    else:
        main(Wanted(**json.loads(sys.argv[1])))

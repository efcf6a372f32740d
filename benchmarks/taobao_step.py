"""The cost of a training step: link prediction on generated data with Taobao's statistics, ours and PyG's example.

The settings are those of PyG's own example: 64 channels, fan-out 8/4, 2,048 edges and as many negatives, dense Adam.
The rivals are the example, which like ours samples within the measured time, and the same model as an expert uses it
(`taobao_rival.py`), whose sampling is not timed. They run in a separate interpreter: --rival-python names one with
torch-sparse, which must be compiled. Both sides use the allocator of a run. The last row updates only the embeddings
that a batch reads, which is a different optimiser.

python benchmarks/taobao_step.py [--scale 0.02] [--threads 2] [--runs 10] [--rival-python PYTHON]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from node_steps import begin_alone, lone_task
from side_by_side import Timed, arguments, compare
from torch import distributed as dist

import clusterctl
from clusterctl.engine.data import taobao
from clusterctl.engine.data.taobao import interactions, read_events
from clusterctl.engine.graph.links import ends
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.learner import Adam, TableAdam
from clusterctl.engine.training.objectives.link import Interactions, LinkPrediction
from clusterctl.shared.spec import TaobaoTrain

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = TaobaoTrain()
ROWS = {  # name -> settings, and the aim: how many times faster than the expert's
    "dense Adam": (SETTINGS, 3),
    "dense Adam, bfloat16": (replace(SETTINGS, precision="bfloat16"), 4),
    "only touched rows": (replace(SETTINGS, row_optimizer="touched-rows"), None),
}
PARTS = ("sampling", "forward", "backward", "update")


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.02, help="relative to the real data set")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    words.add_argument("--rival-python", default=sys.executable)
    options = words.parse_args()
    begin_alone(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        taobao.write(Path(folder), options.scale, seed=0)
        data = interactions(read_events(Path(folder)), SETTINGS.together, best_auc=0.0)
        torch.save(edges_of(data), Path(folder, "edges.pt"))
        counts = ", ".join(f"{number} {kind}s" for kind, number in data.num_nodes.items())
        edges = ", ".join(str(indices.numel()) for indices in data.indices.values())
        print(f"{counts}, {edges} edges, {options.threads} threads")
        with rival(options.rival_python, Path(folder, "edges.pt"), options.threads) as process:
            assert process.stdout is not None
            print(f"rival's samples: {process.stdout.readline().strip()}\n")
            for name, (settings, aim) in ROWS.items():
                shares: list[list[float]] = []
                sampling: list[float] = []
                ours = our_step(data, settings, shares.append)
                expert = rival_step(process, settings.precision, sampling.append)
                by_expert = ("expert's PyG, sampling not timed", expert)
                compare(
                    f"A step, {name}",
                    ("clusterctl", ours),
                    by_expert,
                    bound=1 / aim if aim else None,
                    runs=options.runs,
                )
                sampling.clear()
                example = ("PyG's example", rival_step(process, "example", sampling.append))
                compare(f"A step, {name}", ("clusterctl", ours), example, bound=None, runs=options.runs)
                parts = (
                    f"{part} {median(column) * 1000:.1f}"
                    for part, column in zip(PARTS, zip(*shares, strict=True), strict=True)
                )
                print(f"  ours in ms: {', '.join(parts)}; the example samples in {median(sampling):.0%} of its time\n")
    dist.destroy_process_group()


def our_step(data: Interactions, settings: TaobaoTrain, note: Callable[[list[float]], None]) -> Timed:
    """Sampling, forward, backward and update, sequentially.

    `fit` samples ahead in a thread, which would here run during the rival's time.
    """
    task = lone_task()
    objective = LinkPrediction(data, settings, task)
    flat = FlatModel(objective.model)
    optimizer = Adam(flat.values, flat.gradients, settings.lr, settings.weight_decay)
    rows = TableAdam(objective.model.table, settings.lr, settings.weight_decay)
    plan = EpochPlan(objective.seeds, settings.batch_size, seed=0, rank=0, world_size=1)
    batches = (batch for epoch in count(1) for batch in plan.batches(epoch))
    objective.model.train()

    def once() -> float:
        batch = next(batches)
        times = [time.perf_counter()]
        prepared = objective.prepare(batch)
        times.append(time.perf_counter())
        loss = objective.loss(batch, prepared)
        times.append(time.perf_counter())
        flat.backward(loss, task.stop)
        times.append(time.perf_counter())
        rows.collect()
        optimizer.step()
        rows.step()
        times.append(time.perf_counter())
        note([after - before for before, after in pairwise(times)])
        return times[-1] - times[0]

    return once


def rival(python: str, edges: Path, threads: int) -> subprocess.Popen[str]:
    """The rivals' process, which waits for lines."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(clusterctl.__file__).parents[1]),
        "OMP_NUM_THREADS": str(threads),
    }
    program = [python, "-W", "ignore", str(Path(__file__).with_name("taobao_rival.py")), str(edges), str(threads)]
    return subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def rival_step(process: subprocess.Popen[str], name: str, note: Callable[[float], None]) -> Timed:
    """A step of the rival `name`; `note` is called with the share of its time spent on sampling."""

    def once() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        seconds, sampling = map(float, process.stdout.readline().split())
        note(sampling / seconds)
        return seconds

    return once


def edges_of(data: Interactions) -> dict[str, object]:
    """The rival's training data: the same edges, in PyG's format."""
    items, users = ends(data.relation(OF_USER), torch.arange(data.indices[OF_USER].numel()))
    together = torch.stack(ends(data.relation(TOGETHER), torch.arange(data.indices[TOGETHER].numel())))
    return {
        "users": data.num_nodes[USER],
        "items": data.num_nodes[ITEM],
        "taken": torch.stack([users, items]),
        "together": together,
    }


if __name__ == "__main__":
    main()

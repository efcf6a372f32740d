"""What it costs to split the features over the nodes: a step, and the bytes that each rank fetches for it.

GraphSAGE on a generated graph with Reddit's statistics. Each rank is a node of its own on this machine, and they talk
over loopback, so the bytes are those of as many nodes, but the times are not those of a network, and all ranks share
this machine's cores. Each placement takes a few steps in turn, on the same batches. It fails if a loss differs.

python benchmarks/split_features.py [--ranks 2 4 8] [--scale 0.1] [--batch 256] [--cache 16] [--rounds 5] [--steps 8]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from side_by_side import arguments

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.graph.storage import Graph, load, save
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.training.loop import prefetched
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.node.events import Context
from clusterctl.shared.spec import Batches, RedditTrain

if TYPE_CHECKING:
    from clusterctl.engine.task.task import Task
    from clusterctl.shared.spec import NodeTrain

MEBIBYTE = 1 << 20
BEFORE, AFTER = 2, 3  # steps of a round that do not count


def main() -> None:
    words = arguments(__doc__)
    words.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 4, 8], help="numbers of ranks, each a node of its own"
    )
    words.add_argument("--scale", type=float, default=0.1, help="of Reddit's number of nodes; 1: all 233 thousand")
    words.add_argument("--batch", type=int, default=256, help="seeds of a rank")
    words.add_argument("--cache", type=int, default=16, help="data.cache, in MiB")
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--steps", type=int, default=8, help="of each placement in a round")
    words.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.worker:
        work(options)
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "graph.pt")
        graph = reddit_like(options.scale)
        save(graph, path)
        table = graph.x.numel() * graph.x.element_size() / MEBIBYTE
        print(f"{graph.num_nodes:,} nodes, features of {table:.0f} MiB, {options.batch} seeds a rank")
        print("In brackets: of replicated. What a rank waits for rows, and fetches, a step.")
        print("| ranks | sampling | placement | a step | CPU of a rank | waits | fetches | hit rate |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for ranks in options.ranks:
            started(path, ranks)


def started(path: Path, ranks: int) -> None:
    """Run the ranks; rank 0 prints the rows of the table."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"TORCHELASTIC_RUN_ID": "benchmark", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(ranks), "GROUP_WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker", str(path)],
            env=os.environ | shared | {"RANK": str(rank), "GROUP_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    try:
        if any(worker.wait() for worker in workers):
            raise SystemExit(f"{ranks} ranks: one has failed")
    finally:
        for worker in workers:
            worker.kill()


# --- a rank


class Trial:
    """One placement in training."""

    def __init__(
        self, name: str, graph: Graph, train: NodeTrain, task: Task, cache: int | None = None, *, split: bool = True
    ) -> None:
        self.name = name
        self._task, place = task, task.place
        self._objective = NodeClassification(graph, train, task, cache, split=split)
        self._learner = Learner(self._objective, train, task)
        size = Batches(train, place.world_size).size
        plan = EpochPlan(self._objective.seeds, size, 0, place.rank, place.world_size)
        self._batches = (batch for epoch in count(1) for batch in plan.batches(epoch))
        self._objective.model.train()
        self.losses: list[float] = []
        self._laps: list[dict[str, float]] = []

    def train(self, steps: int) -> None:
        """Steps with sampling and fetching ahead, as in a run. The first and the last ones, which have less to do
        meanwhile, do not count."""
        clock, laps = self._task.clock, []
        clock.restart("sampling")
        clock.note({})
        batches = islice(self._batches, BEFORE + steps + AFTER)
        for number, (batch, prepared) in enumerate(prefetched(batches, self._objective.prepare)):
            if number in (BEFORE, BEFORE + steps):
                laps.append((time.perf_counter(), time.process_time()))
            step = self._learner.train_step(batch, prepared, 1.0, False)
            (loss, _), lap = step.reading.read(), step.lap.read()
            clock.enter("sampling")
            self.losses.append(loss)
            if BEFORE <= number < BEFORE + steps:
                self._laps.append(lap)
        (began, cpu_began), (ended, cpu_ended) = laps
        self._laps[-1] |= {"step": (ended - began) / steps, "cpu": (cpu_ended - cpu_began) / steps}

    def median(self, number: str) -> float:
        """Of all steps; of a number that this placement does not have, 0."""
        return statistics.median([lap[number] for lap in self._laps if number in lap] or [0.0])


def work(options: argparse.Namespace) -> None:
    """Train on every placement in turn."""
    record = {"name": "benchmark", "workload": "reddit", "data": {"placement": "split"}}
    with joined(Context(record)) as task:
        graph = load(Graph, options.worker)
        for sampling in ("uniform", "labor"):
            train = RedditTrain(batch_size=options.batch, sampling=sampling)
            trials = [
                Trial("replicated", graph, train, task, split=False),
                Trial("split", graph, train, task),
                Trial(f"split, {options.cache} MiB", graph, train, task, options.cache * MEBIBYTE),
            ]
            for _ in range(options.rounds):
                for trial in trials:
                    trial.train(options.steps)
            assert all(trial.losses == trials[0].losses for trial in trials), "the losses differ"
            if task.place.rank == 0:
                report(task.place.world_size, sampling, trials)


def report(ranks: int, sampling: str, trials: list[Trial]) -> None:
    """Print the rows of the table."""
    for trial in trials:
        cells = [str(ranks), sampling, trial.name]
        for number in ("step", "cpu"):
            ratio = trial.median(number) / trials[0].median(number)
            cells.append(f"{1000 * trial.median(number):.0f} ms ({ratio:.2f})")
        cells += [f"{1000 * trial.median('gathering'):.0f} ms", f"{trial.median('bytes_exchanged') / 1e6:.1f} MB"]
        print(f"| {' | '.join(cells)} | {trial.median('cache_hit_rate'):.2f} |", flush=True)


if __name__ == "__main__":
    main()

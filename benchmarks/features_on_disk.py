"""Training with a feature table four times as large as memory, compared with features in memory, and PyG on np.memmap.

The table is as wide as MAG240M's (768 float32), and so is the model (1,024 channels). In the generated graph, half of a
node's neighbours are in its own group, the others anywhere, more often at nodes with large weights. Training from disk
runs in a memory cgroup with a limit, which needs root; training in memory has no limit. The file's pages are dropped
from the page cache before each measurement. The rival is PyG's NeighborLoader over Data whose x is an np.memmap. It
uses our sampling, since neither pyg-lib nor torch-sparse is on PyPI; its layers compute only the required rows
(`trim_to_layer`). It may need more than the limit: then the kernel ends it, and that is its result.

What the disk allows is measured, too: `reads` reads the same rows in the same way without training, and before
everything else, 32 threads read random pieces of the file.

python benchmarks/features_on_disk.py [--limit 1024] [--times 4] [--rounds 3] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from side_by_side import arguments
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.storage import Graph
    from clusterctl.engine.task.task import Task
    from clusterctl.shared.spec import NodeTrain


WIDTH, HIDDEN, CLASSES, DEGREE, GROUP = 768, 1024, 153, 21, 256
BATCH, FAN_OUT, TRAIN = 256, (15, 10), 0.01
WARM = 3
MEBIBYTE = 1 << 20
_ROWS_AT_ONCE = 1 << 14
ALLOWED = 1.5  # times the step in memory
FASTER = 3.0  # at least, compared with the rival


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--limit", type=int, default=1024, help="memory limit in MiB")
    words.add_argument("--times", type=float, default=4.0, help="size of the table relative to the limit")
    words.add_argument("--cache", type=int, default=256, help="data.cache, in MiB")
    words.add_argument("--steps", type=int, default=20)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--scattered", action="store_true", help="rows in random order instead of group by group")
    words.add_argument("--ordered", action="store_true", help="rows as data.order = neighbours puts them")
    words.add_argument("--narrow", action="store_true", help="bfloat16 on the disk")
    ways = ["memory", "disk", "reads", "memmap"]
    words.add_argument("--ways", nargs="+", default=ways, choices=ways, help="what to measure, in this order")
    words.add_argument("--folder", type=Path, help="for the graph, which is kept there")
    words.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.worker:
        way, steps = options.worker
        print(json.dumps(WAYS[way](options.folder, int(steps), options.cache * MEBIBYTE)))
        return
    with TemporaryDirectory() as temporary:
        compare(options, options.folder or Path(temporary))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Measure every way in turn, and print the ratios."""
    limit = options.limit * MEBIBYTE
    nodes = int(options.times * limit / (WIDTH * 4))
    if not (folder / "graph.pt").exists():
        folder.mkdir(exist_ok=True, parents=True)
        generate(folder, nodes, scattered=options.scattered, ordered=options.ordered, narrow=options.narrow)
    for size in (1 << 14, 1 << 20):
        rate = random_reads(folder / "graph.pt", size)
        print(f"random reads of {size >> 10} KiB: {rate:.0f} a second, {rate * size / 1e9:.2f} GB/s", flush=True)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in options.ways}
    for _ in range(options.rounds):
        for way in [*found]:
            results = found[way]
            drop_pages(folder / "graph.pt")
            words = [sys.executable, __file__, "--worker", way, str(options.steps), "--folder", str(folder)]
            words += ["--cache", str(options.cache)]
            try:
                results.append(in_cgroup(words, None if way == "memory" else limit))
            except OutOfMemory:
                print(f"{way:<8}  needs more than {options.limit} MiB, so the kernel has ended it", flush=True)
                del found[way]
                continue
            print(f"{way:<8}" + "".join(f"  {name} {value:.4g}" for name, value in results[-1].items()), flush=True)
    middle = {way: statistics.median(result["step_ms"] for result in results) for way, results in found.items()}
    if "disk" not in found:
        return
    peak = max(result["anonymous_MiB"] for result in found["disk"])
    print(f"limit {options.limit} MiB, table {nodes * WIDTH * 4 / MEBIBYTE:.0f} MiB, cache {options.cache} MiB")
    print(f"anonymous memory at most {peak:.0f} MiB: the cache and {peak - options.cache:.0f} MiB")
    for rival, aim in (("memory", ALLOWED), ("reads", None), ("memmap", 1 / FASTER)):
        if rival in middle:
            ratio = middle["disk"] / middle[rival]
            verdict = f"aim: at most {aim:.3g}, {'reached' if ratio <= aim else 'NOT reached'}" if aim else ""
            print(f"step on disk / {rival}: {ratio:.3f}   {verdict}")


# --- the data


def generate(folder: Path, nodes: int, *, scattered: bool, ordered: bool, narrow: bool) -> None:
    """Write the graph to `folder`."""
    from clusterctl.engine.graph.features.arrangement import arranged
    from clusterctl.engine.graph.storage import Graph, Recipe, compressed, save

    random = torch.Generator().manual_seed(0)
    targets = torch.arange(nodes).repeat_interleave(DEGREE)
    near = targets // GROUP * GROUP + torch.randint(GROUP, targets.shape, generator=random)
    # a share x of all edge ends is at a share x**5 of the nodes: few nodes have most edges
    far = (torch.rand(targets.shape, generator=random) ** 5 * nodes).long()
    hubs = torch.randperm(nodes, generator=random)
    is_near = torch.rand(targets.shape, generator=random) < 0.5
    sources = torch.where(is_near, near, hubs[far]).clamp_(max=nodes - 1)
    if scattered:
        place = torch.randperm(nodes, generator=random)
        sources, targets = place[sources], place[targets]
    indptr, indices = compressed(torch.stack([sources, targets]), nodes, shuffled=True)
    del sources, targets, near, far, is_near
    y = torch.randint(CLASSES, (nodes,), generator=random)
    centres = torch.randn(CLASSES, WIDTH, generator=random)
    noise = torch.randn(_ROWS_AT_ONCE, WIDTH, generator=random)
    with (folder / "x").open("wb") as file:
        for start in range(0, nodes, _ROWS_AT_ONCE):
            rows = centres[y[start : start + _ROWS_AT_ONCE]]
            rows += noise[: len(rows)]
            file.write(memoryview(rows.numpy()))
    x = torch.from_file(str(folder / "x"), shared=True, size=nodes * WIDTH, dtype=torch.float32).view(nodes, WIDTH)
    sizes = [round(nodes * TRAIN), round(nodes * TRAIN / 4), round(nodes * TRAIN / 4)]
    chosen = torch.randperm(nodes, generator=random)[: sum(sizes)]
    train, val, test = (part.sort().values for part in chosen.split(sizes))
    graph = Graph(indptr, indices, x, y, train, val, test, num_classes=CLASSES)
    order, precision = "neighbours" if ordered else "given", "bfloat16" if narrow else "given"
    began = time.perf_counter()
    save(arranged(Recipe("generated", {}, lambda _: graph), order, precision).build(folder), folder / "graph.pt")
    print(f"arranged and saved {nodes} nodes in {time.perf_counter() - began:.0f} s", flush=True)
    for path in folder.glob("*"):
        if path.name != "graph.pt":
            path.unlink()


def random_reads(path: Path, size: int, threads: int = 32, seconds: float = 2.0) -> float:
    """Requests of `size` bytes per second at random places of a file, past the page cache."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    pages = (path.stat().st_size - size) // mmap.PAGESIZE
    end = time.perf_counter() + seconds

    def read(seed: int) -> int:
        random, memory, count = Random(seed), mmap.mmap(-1, size), 0
        while time.perf_counter() < end:
            os.preadv(file, [memory], random.randrange(pages) * mmap.PAGESIZE)
            count += 1
        return count

    try:
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(read, range(threads))) / seconds
    finally:
        os.close(file)


def drop_pages(*paths: Path) -> None:
    """Drop these files from the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- the limit


def in_cgroup(words: list[str], limit: int | None) -> dict[str, float]:
    """Run a worker in its own cgroup; its output and its peak anonymous memory."""
    with memory_cgroup(limit) as group:
        worker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=group.enter)
        peak = 0
        while worker.poll() is None:
            peak = max(peak, group.anonymous())
            time.sleep(0.05)
        output, _ = worker.communicate()
        if group.is_exceeded():
            raise OutOfMemory(f"{words[3]} needs more memory than its cgroup has, so the kernel has ended it")
        if worker.returncode:
            raise SystemExit(f"{words[3]} ended with {worker.returncode}")
        return {**json.loads(output), "anonymous_MiB": peak / MEBIBYTE}


class OutOfMemory(SystemExit):
    """The kernel has ended a worker that needed more than its cgroup's limit."""


class Cgroup:
    """A folder of the memory controller, cgroup v1 or v2."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self._folder = folder
        self._first = (folder / "memory.limit_in_bytes").exists()
        if limit is not None:
            (folder / ("memory.limit_in_bytes" if self._first else "memory.max")).write_text(str(limit))

    def enter(self) -> None:
        """Move this process into the cgroup."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def is_exceeded(self) -> bool:
        """Whether the kernel has ended a process of the cgroup for its memory."""
        events = self._folder / ("memory.oom_control" if self._first else "memory.events")
        return int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"]) > 0

    def anonymous(self) -> int:
        """The bytes of memory without file pages."""
        numbers = dict(line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
        return int(numbers["rss" if self._first else "anon"]) + int(numbers["shmem"])


@contextmanager
def memory_cgroup(limit: int | None) -> Iterator[Cgroup]:
    """A new memory cgroup. Needs root and a writable cgroup file system."""
    root = Path("/sys/fs/cgroup/memory")
    if not root.exists():
        root = Path("/sys/fs/cgroup")
    folder = root / f"clusterctl-features-{os.getpid()}"
    folder.mkdir()
    try:
        yield Cgroup(folder, limit)
    finally:
        folder.rmdir()


# --- the ways


def on_disk(folder: Path, steps: int, cache: int) -> dict[str, float]:
    return _ours(folder, steps, cache)


def only_reads(folder: Path, steps: int, cache: int) -> dict[str, float]:
    return _ours(folder, steps, cache, trains=False)


def in_memory(folder: Path, steps: int, _: int) -> dict[str, float]:
    return _ours(folder, steps, None)


def _ours(folder: Path, steps: int, cache: int | None, *, trains: bool = True) -> dict[str, float]:
    from clusterctl.engine.graph.storage import Graph, load
    from clusterctl.engine.task.task import joined
    from clusterctl.shared.node.events import Context
    from clusterctl.shared.spec import NodeTrain

    train = NodeTrain(batch_size=BATCH, fan_out=FAN_OUT, hidden_channels=HIDDEN, sampling="labor")
    with joined(Context({"name": "benchmark", "workload": "reddit"})) as task:
        graph = load(Graph, folder / "graph.pt")
        if cache is None:
            graph = replace(graph, x=graph.x.clone())
        return trained(graph, train, task, cache, steps, trains=trains)


def trained(
    graph: Graph, train: NodeTrain, task: Task, cache: int | None, steps: int, *, trains: bool = True
) -> dict[str, float]:
    """The mean of `steps` of our training steps after `WARM` ones, with sampling and fetching ahead as in a run.

    If it does not train, only the rows of the steps are fetched.
    """
    from clusterctl.engine.training.epoch_plan import EpochPlan
    from clusterctl.engine.training.loop import Learner, prefetched
    from clusterctl.engine.training.objectives.node import NodeClassification

    began = time.perf_counter()
    objective = NodeClassification(graph, train, task, cache)
    setup = time.perf_counter() - began
    learner = Learner(objective, train, task)
    plan = EpochPlan(objective.seeds, train.batch_size, 0, 0, 1)
    objective.model.train()
    batches = (batch for epoch in count(1) for batch in plan.batches(epoch))
    laps, taken, loss = [], 0, 0.0
    task.clock.restart("sampling")
    for batch, prepared in prefetched(islice(batches, WARM + steps), objective.prepare):
        if taken == WARM:
            began, used = time.perf_counter(), time.process_time()
        taken += 1
        if not trains:
            objective.gather(prepared)
            continue
        step = learner.train_step(batch, prepared, 1.0, False)
        (loss, _), lap = step.reading.read(), step.lap.read()
        task.clock.enter("sampling")
        laps.append(lap)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    found = {"step_ms": 1000 * seconds / steps, "cpu_ms": 1000 * cpu / steps, "setup_s": setup, "loss": loss}
    for name in ("sampling", "gathering", "cache_hit_rate", "bytes_read"):
        if laps and name in laps[-1]:
            found[name] = statistics.mean(lap[name] for lap in laps[WARM:])
    return found


def by_memmap(folder: Path, steps: int, _: int) -> dict[str, float]:
    """PyG's loader on an np.memmap."""
    from node_steps import pyg_data
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import trim_to_layer

    from clusterctl.engine.graph.features.row_file import mapped_from
    from clusterctl.engine.graph.storage import Graph, load
    from clusterctl.pyg import NeighborLoader

    graph = load(Graph, folder / "graph.pt")
    path, offset = mapped_from(graph.x)
    rows = np.memmap(path, dtype=np.float32, mode="c", offset=offset, shape=(graph.num_nodes, WIDTH))
    data: Any = pyg_data(graph)
    data.x = torch.from_numpy(rows)
    loader = NeighborLoader(data, list(FAN_OUT), graph.train, batch_size=BATCH, shuffle=True, is_sorted=True)
    layers = torch.nn.ModuleList([SAGEConv(WIDTH, HIDDEN), SAGEConv(HIDDEN, CLASSES)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.003, fused=True)
    batches = (batch for _ in count() for batch in loader)
    for number in range(WARM + steps):
        if number == WARM:
            began, used = time.perf_counter(), time.process_time()
        batch = next(batches)
        x, edges = batch.x, batch.edge_index
        for depth, layer in enumerate(layers):
            x, edges, _ = trim_to_layer(depth, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            x = layer(x, edges)
            x = F.dropout(x.relu(), 0.5) if depth == 0 else x
        loss = F.cross_entropy(x[: batch.batch_size], batch.y[: batch.batch_size])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    return {"step_ms": 1000 * seconds / steps, "cpu_ms": 1000 * cpu / steps, "loss": loss.item()}


WAYS = {"disk": on_disk, "reads": only_reads, "memory": in_memory, "memmap": by_memmap}

if __name__ == "__main__":
    main()

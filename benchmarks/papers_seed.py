"""The core time that a seed of ogbn-papers100M costs, from generated graphs of growing size with its shape.

128 features, 172 classes, 29 neighbours a node in both directions, and 1.1 % of the nodes are seeds. Three layers of
GraphSAGE, width 256, fan-out 15/10/5, 1,024 seeds a step, uniform sampling; sampling and fetching run ahead.
A figure is the wall time of a step times the cores it may use, divided by its seeds. Each measurement is a process of
its own with the allocator of a run, in a memory cgroup of --memory, which needs root; the default nearly fills it.
The largest graph is measured with its features on disk, too, in a cgroup with room for the edges, 64 bytes a node,
--cache and 2 GiB, for torch and two steps; and without training, to show how long its rows only take to be read. The
pages of a file are dropped from the page cache before.

At the end, a line through the medians over the logarithm of the nodes is continued to the size of the real data set,
with the 95 % interval that follows from how far the graphs are from the line (Student's t). That takes three graphs:
two determine a line exactly. Whether the growth stays logarithmic beyond the largest graph is not in it.
Published figures for the same network, from whole epochs on clusters with other processors, network included:
DistGNN-MB 2.4 (arXiv 2211.06385: 20 s for 1,207,179 seeds on 144 cores), DistDGL at least 8.6 (64.7 s on 160 cores).

python benchmarks/papers_seed.py [--scales 0.01 0.02 0.05 0.12] [--memory 10240] [--cache 512] [--rounds 3]
    [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from features_on_disk import MEBIBYTE, drop_pages, in_cgroup, trained
from scipy.stats import t as student
from side_by_side import arguments, with_environment_of_a_run

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES, SEEDS = 111_059_956, 1_207_179
AIM = 2.4  # core-milliseconds per seed
PUBLISHED = {"DistGNN-MB": 2.4, "DistDGL": 8.6}
BATCH = 1024
_ROWS_AT_ONCE = 1 << 16


def main() -> None:
    words = arguments(__doc__)
    words.add_argument(
        "--scales", type=float, nargs="+", default=[0.01, 0.02, 0.05, 0.12], help="relative to the real number of nodes"
    )
    words.add_argument("--memory", type=int, default=10240, help="limit in MiB")
    words.add_argument("--cache", type=int, default=512, help="data.cache of the features on disk, in MiB")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--steps", type=int, default=20)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--folder", type=Path, help="for the graphs, which are kept there and used again")
    words.add_argument("--worker", nargs=3, metavar=("PATH", "PRECISION", "WHERE"), help=argparse.SUPPRESS)
    options = words.parse_args()
    if options.worker:
        path, precision, where = options.worker
        print(json.dumps(worker(Path(path), precision, where, options)))
        return
    with_environment_of_a_run(options.threads)
    with TemporaryDirectory() as temporary:
        measure(options, options.folder or Path(temporary))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Print a row for each graph, precision and place of the features, and the lines through them."""
    folder.mkdir(parents=True, exist_ok=True)
    print(f"| scale | edges | features | precision | core-ms a seed (aim {AIM:g}) | a step | processor | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    points: dict[str, list[tuple[float, float]]] = {"float32": [], "bfloat16": []}
    for scale in sorted(options.scales):
        path = folder / f"papers-{scale:g}.pt"
        if not path.exists():
            generate(path, scale)
        table, edges = NODES * scale * 128 * 4, NODES * scale * 2 * 14.55
        little = int((4 * edges + 64 * NODES * scale) / MEBIBYTE + options.cache + 2048)
        places = ["memory", "disk", "reads"] if scale == max(options.scales) else ["memory"]
        for where in places:
            for precision, found in points.items():
                limit = options.memory if where == "memory" else little
                results = [once(path, precision, where, limit, options) for _ in range(options.rounds)]
                if not results:
                    continue
                each = [result["step_ms"] * options.threads / BATCH for result in results]
                middle = statistics.median(each)
                if where == "memory":
                    found.append((math.log(scale), middle))
                step, cpu = (statistics.median(result[name] for result in results) for name in ("step_ms", "cpu_ms"))
                peak = max(result["anonymous_MiB"] for result in results)
                held = {"memory": "in memory", "reads": "the same, only read"}.get(where, "")
                if where == "disk":
                    held = (
                        f"{table / MEBIBYTE:.0f} MiB on disk, hit rate {results[-1]['cache_hit_rate']:.2f}, "
                        f"{results[-1]['bytes_read'] / 1e6:.0f} MB a step"
                    )
                print(
                    f"| {scale:g} | {edges / 1e6:.0f} million | {held} | {precision} "
                    f"| {middle:.2f} ({min(each):.2f} to {max(each):.2f}) | {step:.0f} ms | {cpu:.0f} ms "
                    f"| {peak:.0f} of {limit} MiB |",
                    flush=True,
                )
    for precision, found in points.items():
        print(f"{precision}: {growth(found)}")
    print("published, on other processors: " + ", ".join(f"{name} {value:g}" for name, value in PUBLISHED.items()))


class Line(NamedTuple):
    """A line fitted to measurements, and its prediction for a measurement at place 0."""

    slope: float
    slope_error: float  # standard error
    spread: float  # standard deviation of the measurements around the line
    at_zero: float
    low: float  # of the 95 % prediction interval at 0
    high: float


def fitted(points: Sequence[tuple[float, float]]) -> Line:
    """The line of least squares through at least three points (place, value)."""
    places, values = zip(*points, strict=True)
    slope, at_zero = statistics.linear_regression(places, values)
    centre, freedom = statistics.fmean(places), len(points) - 2
    squares = sum((place - centre) ** 2 for place in places)
    spread = math.sqrt(sum((value - at_zero - slope * place) ** 2 for place, value in points) / freedom)
    error = spread * math.sqrt(1 + 1 / len(points) + centre**2 / squares)
    half = float(student.ppf(0.975, freedom)) * error
    return Line(slope, spread / math.sqrt(squares), spread, at_zero, at_zero - half, at_zero + half)


def growth(points: Sequence[tuple[float, float]]) -> str:
    """What the measurements (logarithm of the scale, core-ms) say about the real size."""
    if len(points) < 3:
        return f"no line: it takes three graphs to see how far they lie from one, and there are {len(points)}"
    line, ten = fitted(points), math.log(10)
    listed = ", ".join(f"{value:.3f} at {math.exp(place):.3g}" for place, value in points)
    return (
        f"{listed}; for ten times the nodes {ten * line.slope:+.3f} (standard error {ten * line.slope_error:.3f}), "
        f"with {line.spread:.3f} around the line; at the real size {line.at_zero:.2f} core-ms a seed "
        f"(95 %: {line.low:.2f} to {line.high:.2f}), {SEEDS * line.at_zero / 3.6e6:.2f} core-hours an epoch"
    )


def once(path: Path, precision: str, where: str, limit: int, options: argparse.Namespace) -> dict[str, float]:
    """One measurement, in its own process."""
    drop_pages(path)
    words = [sys.executable, __file__, "--worker", str(path), precision, where]
    words += [f"--{name}={getattr(options, name)}" for name in ("cache", "threads", "steps")]
    return in_cgroup(words, limit * MEBIBYTE)


def worker(path: Path, precision: str, where: str, options: argparse.Namespace) -> dict[str, float]:
    """The steps. In memory, the tensors are copied out of the file; bfloat16 features are a copy anyhow."""
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    from clusterctl.engine.graph.storage import Graph, load
    from clusterctl.engine.task.task import joined
    from clusterctl.shared.node.events import Context
    from clusterctl.shared.spec import DeepSageTrain

    torch.set_num_threads(options.threads)
    train = replace(
        DeepSageTrain(), batch_size=BATCH, fan_out=(15, 10, 5), hidden_channels=256, precision=precision, dropout=0.0
    )
    with joined(Context({"name": "benchmark", "workload": "deep-sage"})) as task:
        graph = load(Graph, path)
        graph = replace(graph, indices=graph.indices.clone())
        if where == "memory" and precision == "float32":
            graph = replace(graph, x=graph.x.clone())
        cache = None if where == "memory" else options.cache * MEBIBYTE
        return trained(graph, train, task, cache, options.steps, trains=where != "reads")


def generate(path: Path, scale: float) -> None:
    """Write a graph of this size; its features go to the disk piece by piece."""
    import torch

    from clusterctl.engine.data.ogb_like import MODELS
    from clusterctl.engine.data.reddit import community, sources
    from clusterctl.engine.graph.storage import Graph, save

    real = MODELS["ogbn-papers100M"].shape
    seeds = SEEDS / NODES
    truth = community(scale, 0, real._replace(degree=2 * real.degree, split=(seeds, 1.1 * seeds)))
    nodes, edges = truth.degree.numel(), int(truth.degree.sum())
    indices, filled = torch.empty(edges, dtype=torch.int32), 0
    for piece in sources(truth):
        indices[filled : filled + piece.numel()] = piece
        filled += piece.numel()
    noise = torch.randn(_ROWS_AT_ONCE, real.features, generator=truth.random)
    raw = path.with_suffix(".x")
    with raw.open("wb") as file:
        for classes in truth.classes.split(_ROWS_AT_ONCE):
            file.write(memoryview((truth.centres[classes] + noise[: classes.numel()]).numpy()))
    x = torch.from_file(str(raw), shared=True, size=nodes * real.features, dtype=torch.float32)
    indptr = torch.cat([truth.degree.new_zeros(1), truth.degree.cumsum(0)])
    train, val, test = truth.parts
    x = x.view(nodes, real.features)
    graph = Graph(indptr, indices, x, truth.labels, train, val, test[: 2 * val.numel()], num_classes=real.classes)
    save(graph, path)
    raw.unlink()


if __name__ == "__main__":
    main()

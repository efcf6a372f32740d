"""The cost of a training step, ours and PyG's, in one process, with the same hyperparameters on the same data.

reddit      GraphSAGE 602-256-41, fan-out 25/10, 1,024 seeds, on a generated graph with Reddit's statistics
deep-sage   three layers, fan-out 4/4/4, width 128, on the same graph
synthetic   GCN 64-64-10, fan-out 50/50, 128 seeds, on PyG's FakeDataset

Two rivals. PyG as in its examples: all rows of the subgraph in every layer, once with its own NeighborLoader if
torch-sparse or pyg-lib is installed (`make bench-rivals` builds the former), and once with sampling not timed. And PyG
as an expert uses it, to which the aims refer: only the required rows, fused Adam, autocast if ours is bfloat16, and
sampling not timed either; in float32 once more with torch.sparse.mm for the sums over neighbours. All sides use the
allocator of a run. The aims for Reddit's graph apply to the whole graph
(--scale 1): in a small one the second hop reaches nearly every node, which PyG computes only once. The short steps of
synthetic are timed in groups of twenty, as in a training.

python benchmarks/training_step.py [reddit] [deep-sage] [synthetic] [--scale 0.1] [--threads 2] [--runs 10]
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from node_steps import begin_alone, expert_step, given_samples, loader_samples, our_step, pyg_step
from side_by_side import arguments, compare, in_a_row
from torch import distributed as dist

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.workloads.synthetic import generate
from clusterctl.shared.spec import DeepSageTrain, NodeTrain, RedditTrain, SyntheticTrain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.storage import Graph


class Workload(NamedTuple):
    settings: NodeTrain
    steps: int  # timed in a row
    float32: float  # aim: how many times faster than the expert's
    bfloat16: float
    best: float  # with other algorithms: LABOR, and the first aggregation cached


WORKLOADS = {
    "reddit": Workload(RedditTrain(), 1, 2.3, 3, 5),
    "deep-sage": Workload(DeepSageTrain(), 1, 2, 2.5, 3.5),
    "synthetic": Workload(SyntheticTrain(), 20, 10, 10, 10),
}


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    words.add_argument("--scale", type=float, default=0.1, help="relative to Reddit's 233 thousand nodes")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    options = words.parse_args()
    begin_alone(options.threads)
    print(f"our sampler: {'numba' if find_spec('numba') else 'plain torch'}, {options.threads} threads")
    for name in options.workloads or WORKLOADS:
        graph = generate(SyntheticTrain().avg_num_nodes, seed=0) if name == "synthetic" else reddit_like(options.scale)
        print(f"\n{name}: {graph.num_nodes} nodes, {graph.indices.numel()} edges\n")
        side_by_side(name, graph, options.runs)
    dist.destroy_process_group()


def side_by_side(workload: str, graph: Graph, runs: int) -> None:
    settings, steps, *_ = WORKLOADS[workload]
    published = {"PyG's example, sampling not timed": pyg_step(graph, settings, given_samples(graph, settings))}
    if find_spec("torch_sparse") or find_spec("pyg_lib"):
        sampler = "pyg-lib" if find_spec("pyg_lib") else "torch-sparse"
        published[f"PyG's example ({sampler})"] = pyg_step(graph, settings, loader_samples(graph, settings))
    else:
        print("no NeighborLoader: neither torch-sparse nor pyg-lib is installed\n")
    for precision in ("float32", "bfloat16"):
        narrow = replace(settings, precision=precision)
        expert = {"expert's PyG, sampling not timed": expert_step(graph, narrow)}
        if precision == "float32" and settings.model == "sage":
            expert["the same, with torch.sparse.mm"] = expert_step(graph, narrow, sparse=True)
        for title, chosen, aim in _variants(workload, narrow):
            ours = in_a_row(our_step(graph, chosen), steps)
            for rivals, speedup in ((expert, aim), (published, None)):
                for rival, step in rivals.items():
                    theirs = in_a_row(step, steps)
                    bound = 1 / speedup if speedup else None
                    compare(title, ("clusterctl", ours), (rival, theirs), bound=bound, runs=runs)


def _variants(workload: str, settings: NodeTrain) -> Iterator[tuple[str, NodeTrain, float | None]]:
    """The variants compared: the same algorithm, and changed ones, each with its aim."""
    aims = WORKLOADS[workload]
    title = f"{workload}, one step in {settings.precision}"
    is_narrow = settings.precision == "bfloat16"
    yield title, settings, aims.bfloat16 if is_narrow else aims.float32
    yield f"{title}, first aggregation cached", replace(settings, cache_first_aggregation=True), None
    yield f"{title}, LABOR", replace(settings, sampling="labor"), None
    both = replace(settings, sampling="labor", cache_first_aggregation=True)
    yield f"{title}, LABOR, first aggregation cached", both, aims.best if is_narrow else None


if __name__ == "__main__":
    main()

"""What a training step costs, ours and PyG's, one process, the same hyper-parameters on the same data.

reddit      GraphSAGE 602-256-41, fan-out 25/10, 1,024 seeds, on a generated graph with Reddit's statistics
deep-sage   three layers, fan-out 4/4/4, width 128, on the same graph
synthetic   GCN 64-64-10, fan-out 50/50, 128 seeds, on PyG's FakeDataset

The rival is PyG's model on PyG's subgraphs of sampled neighbourhoods: once with its own NeighborLoader, where
torch-sparse or pyg-lib is installed (`make bench-rivals` builds the first), and once given its samples for nothing,
which is what the fastest sampler could leave of the ratio. The aims for Reddit's graph are those of the whole one
(--scale 1): on a small one the second hop reaches nearly every node, once for PyG. Of synthetic's short steps twenty
follow each other, as in a training.

python benchmarks/training_step.py [reddit] [deep-sage] [synthetic] [--scale 0.1] [--threads 2] [--runs 10]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch
from node_steps import given_samples, loader_samples, our_step, pyg_step
from side_by_side import compare, in_a_row
from torch import distributed as dist

from clusterctl.spec import DeepSageTrain, NodeTrain, RedditTrain, SyntheticTrain
from clusterctl.workloads.generated.reddit_like import reddit_like
from clusterctl.workloads.synthetic import generate

if TYPE_CHECKING:
    from clusterctl.graph.storage import Graph


class Workload(NamedTuple):
    settings: NodeTrain
    steps: int  # of each in a row
    float32: float  # how many times faster
    bfloat16: float


WORKLOADS = {
    "reddit": Workload(RedditTrain(), 1, 7, 12),
    "deep-sage": Workload(DeepSageTrain(), 1, 5, 5),
    "synthetic": Workload(SyntheticTrain(), 20, 15, 15),
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    words.add_argument("--scale", type=float, default=0.1, help="of Reddit's number of nodes; 1: all 233 thousand")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    options = words.parse_args()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(f"our sampler: {'numba' if find_spec('numba') else 'plain torch'}, {options.threads} threads")
    for name in options.workloads or WORKLOADS:
        graph = generate(SyntheticTrain().avg_num_nodes, seed=0) if name == "synthetic" else reddit_like(options.scale)
        print(f"\n{name}: {graph.num_nodes} nodes, {graph.indices.numel()} edges\n")
        side_by_side(name, graph, options.runs)
    dist.destroy_process_group()


def side_by_side(workload: str, graph: Graph, runs: int) -> None:
    settings, steps, *speedups = WORKLOADS[workload]
    rivals = {"PyG, samples for nothing": pyg_step(graph, settings, given_samples(graph, settings))}
    if find_spec("torch_sparse") or find_spec("pyg_lib"):
        sampler = "pyg-lib" if find_spec("pyg_lib") else "torch-sparse"
        rivals[f"PyG's NeighborLoader ({sampler})"] = pyg_step(graph, settings, loader_samples(graph, settings))
    else:
        print("no NeighborLoader: neither torch-sparse nor pyg-lib is installed\n")
    for precision, speedup in zip(("float32", "bfloat16"), speedups, strict=True):
        for cached in (False, True):
            chosen = replace(settings, precision=precision, cache_first_aggregation=cached)
            ours = in_a_row(our_step(graph, chosen), steps)
            title = f"{workload}, a step in {precision}" + (", first aggregation cached" if cached else "")
            for rival, step in rivals.items():
                theirs = in_a_row(step, steps)
                compare(title, ("clusterctl", ours), (rival, theirs), bound=1 / speedup, runs=runs)


if __name__ == "__main__":
    main()

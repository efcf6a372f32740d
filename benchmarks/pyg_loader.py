"""Batches of our NeighborLoader, compared with PyG's own on torch-sparse; and compiled, compared with plain torch.

PyG's own is included if torch-sparse is installed (`make bench-rivals`), for the options that torch-sparse supports.

python benchmarks/pyg_loader.py [--nodes 100000]
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import torch
from side_by_side import Timed, arguments, compare, timed
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as RivalLoader

from clusterctl.engine.graph.pyg import relation
from clusterctl.pyg import NeighborLoader

DEGREE = 25
FAN_OUT, BATCH = [15, 10], 1024
OPTIONS: dict[str, dict[str, Any]] = {
    "directional": {},
    "induced": {"subgraph_type": "induced"},
    "disjoint": {"disjoint": True},
    "by time": {"time_attr": "time"},
    "by weight": {"weight_attr": "weight"},
}
OF_TORCH_SPARSE = ("directional", "induced")


def graph(nodes: int) -> Data:
    """A random graph with few features, so that mostly sampling is measured."""
    return Data(
        x=torch.rand(nodes, 8),
        edge_index=torch.randint(nodes, (2, DEGREE * nodes)),
        time=torch.arange(nodes),
        weight=torch.rand(DEGREE * nodes),
    )


def one_batch(loader: Any, nodes: int) -> Timed:
    """The time for a batch of random seeds."""
    return timed(lambda: loader(torch.randint(nodes, (BATCH,))))


def ours(data: Data, options: dict[str, Any], *, compiled: bool) -> Timed:
    """One of our batches, sampled by numba or in plain torch regardless of the size of the graph."""
    relation.WORTH_COMPILING = 0 if compiled else sys.maxsize
    return one_batch(NeighborLoader(data, FAN_OUT, **options), data.num_nodes)


def main() -> None:
    """Print a ratio for each way of sampling."""
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    torch.manual_seed(0)
    data = graph(parser.parse_args().nodes)
    for name, options in OPTIONS.items():
        fast = ("ours, compiled", ours(data, options, compiled=True))
        compare(f"{name}, {BATCH} seeds", fast, ("in plain torch", ours(data, options, compiled=False)), bound=None)
        if find_spec("torch_sparse") and name in OF_TORCH_SPARSE:
            rival = one_batch(RivalLoader(data, FAN_OUT, **options), data.num_nodes)
            compare(f"{name}, {BATCH} seeds", fast, ("PyG's own, torch-sparse", rival), bound=None)


if __name__ == "__main__":
    main()

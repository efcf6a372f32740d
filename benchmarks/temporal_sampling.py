"""Typed temporal sampling, ours and PyG's: 512 rows of a table, each with a time, and two hops over three tables.

PyG's own sampler is included if pyg-lib is installed. Without it there is no rival: PyG 2.8 refuses to sample by time
with torch-sparse ("'disjoint' sampling not supported"), and has no sampler in plain Python. Our plain torch is then
the other side.

python benchmarks/temporal_sampling.py [--customers 20000]
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from side_by_side import Timed, arguments, compare, timed
from torch_geometric.data import HeteroData

from clusterctl.engine.data.own_relations import relations_of
from clusterctl.engine.graph import sampling
from clusterctl.engine.graph.pyg import relation
from clusterctl.engine.graph.subgraphs import TypedSampler

if TYPE_CHECKING:
    from clusterctl.engine.graph.storage import LabelledHeteroGraph

AIM = 0.5  # of the time of PyG's
FAN_OUT, BATCH = [15, 10], 512
PURCHASES = 40  # per customer


def tables(customers: int) -> HeteroData:
    """Customers, products, and purchases at random times; an example for each customer."""
    products, purchases = customers // 10, customers * PURCHASES
    data = HeteroData()
    data["customer"].x, data["product"].x = torch.rand(customers, 1), torch.rand(products, 1)
    data["purchase"].x, data["purchase"].time = torch.rand(purchases, 1), torch.arange(purchases)
    rows = torch.arange(purchases)
    for key, count in (("customer", customers), ("product", products)):
        ends = torch.stack([rows, torch.randint(count, (purchases,))])
        data["purchase", f"of_{key}", key].edge_index = ends
        data[key, f"rev_of_{key}", "purchase"].edge_index = ends.flip(0)
    store = data["customer"]
    store.seed_time = torch.randint(purchases // 2, purchases, (customers,))
    store.y = torch.arange(customers) % 2
    for number, name in enumerate(("train", "val", "test")):
        store[f"{name}_mask"] = torch.arange(customers) % 3 == number
    return data


def ours(graph: LabelledHeteroGraph, *, compiled: bool, last: bool) -> Timed:
    """The time for a batch of random rows, by numba or in plain torch."""
    sampling.WORTH_COMPILING = relation.WORTH_COMPILING = 0 if compiled else sys.maxsize
    sampler = TypedSampler(graph, FAN_OUT, 0, last=last)
    times = graph.seed_times
    assert times is not None

    def once() -> None:
        rows = torch.randint(len(times), (BATCH,))
        sampler.sample({"customer": rows}, 0, 0, latest=times[rows], examples=rows)

    return timed(once)


def pygs(data: HeteroData, *, last: bool) -> Timed:
    """The same by PyG's own sampler."""
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    strategy = "last" if last else "uniform"
    bare = HeteroData({kind: {"num_nodes": data[kind].num_nodes} for kind in data.node_types})
    bare["purchase"].time = data["purchase"].time
    for edge_type in data.edge_types:
        bare[edge_type].edge_index = data[edge_type].edge_index
    sampler = NeighborSampler(bare, FAN_OUT, disjoint=True, temporal_strategy=strategy, time_attr="time")
    times = data["customer"].seed_time

    def once() -> None:
        rows = torch.randint(len(times), (BATCH,))
        sampler.sample_from_nodes(NodeSamplerInput(None, rows, times[rows], "customer"))

    return timed(once)


def main() -> None:
    """Print a ratio for each strategy."""
    torch.manual_seed(0)
    parser = arguments(__doc__)
    parser.add_argument("--customers", type=int, default=20_000)
    data = tables(parser.parse_args().customers)
    graph = relations_of(data, "tables")
    for last in (False, True):
        title = f"{'last' if last else 'uniform'}, {BATCH} rows"
        fast = ("ours, compiled", ours(graph, compiled=True, last=last))
        compare(title, fast, ("in plain torch", ours(graph, compiled=False, last=last)), bound=None)
        if find_spec("pyg_lib"):
            compare(title, fast, ("PyG's own", pygs(data, last=last)), bound=AIM)


if __name__ == "__main__":
    main()

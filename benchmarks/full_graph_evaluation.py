"""Exact evaluation on the whole graph: our layer-wise inference compared with PyG's, same weights and allocator.

An expert gives PyG's layers the whole graph at once as a sparse matrix: torch's own and, if installed, torch-sparse's.
PyG's examples process the nodes batch by batch and layer by layer, each batch with all its neighbours: once from a
NeighborLoader, if torch-sparse or pyg-lib is installed, and once with batches made by us and not timed, which shows the
ratio with the fastest possible sampler. The outputs of both sides are compared in the same run.

python benchmarks/full_graph_evaluation.py [--scale 0.1] [--threads 2] [--runs 3]
"""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from node_steps import begin_alone, lone_task, pyg_data, pyg_model
from side_by_side import Timed, arguments, compare, timed
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.inference import infer
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.spec import RedditTrain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.storage import Graph

SETTINGS = RedditTrain()
_NODES_AT_ONCE = 1024  # the batch of the examples' inference

Cut = tuple[Tensor, Tensor, int, float]
"""Nodes, edges between their rows, how many of the first rows are targets, seconds spent on sampling."""


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.1, help="relative to Reddit's 233 thousand nodes")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=3)
    options = words.parse_args()
    begin_alone(options.threads)
    warnings.filterwarnings("ignore", message="Sparse ")  # torch warns that its sparse matrices are unchecked and beta
    graph = reddit_like(options.scale)
    print(f"{graph.num_nodes} nodes, {graph.indices.numel()} edges, {options.threads} threads")
    task = lone_task()
    network = NodeClassification(graph, SETTINGS, task).model.eval()
    layers = pyg_model(graph, SETTINGS).eval()
    for ours, theirs in zip(network.layers, layers, strict=True):
        renamed = {
            "lin_l.weight": ours.neighbor.weight,
            "lin_l.bias": ours.neighbor.bias,
            "lin_r.weight": ours.root.weight,
        }
        theirs.load_state_dict(renamed)
    outputs: list[Tensor] = []
    rivals = {
        "expert's PyG, torch's sparse matrix": (whole_graph(torch_matrix(graph), graph.x, layers, outputs), 1 / 5)
    }
    if find_spec("torch_sparse"):
        matrix = torch_sparse_matrix(graph)
        rivals["expert's PyG, torch-sparse's matrix"] = whole_graph(matrix, graph.x, layers, outputs), 1 / 5
    rivals["PyG's examples, sampling not timed"] = pyg_inference(given(graph), graph.x, layers, outputs), None
    if find_spec("torch_sparse") or find_spec("pyg_lib"):
        rivals["PyG's examples"] = pyg_inference(loaded(graph), graph.x, layers, outputs), None
    ours = timed(lambda: infer(network, graph, task))
    for name, (rival, bound) in rivals.items():
        title = "Outputs of all nodes, two layers of GraphSAGE"
        compare(title, ("clusterctl", ours), (name, rival), bound=bound, runs=options.runs)
        difference = (infer(network, graph, task)[1] - outputs[-1]).abs().max()
        print(f"  largest difference between the outputs: {difference:.1e}\n")
    dist.destroy_process_group()


def torch_matrix(graph: Graph) -> Tensor:
    """The edges as a torch sparse matrix; row i contains the neighbours of node i."""
    ones = torch.ones(graph.indices.numel())
    size = (graph.num_nodes, graph.num_nodes)
    return torch.sparse_csr_tensor(graph.indptr, graph.indices.to(graph.indptr.dtype), ones, size)


def torch_sparse_matrix(graph: Graph) -> Any:
    from torch_sparse import SparseTensor

    size = (graph.num_nodes, graph.num_nodes)
    return SparseTensor(rowptr=graph.indptr, col=graph.indices.to(torch.int64), sparse_sizes=size, is_sorted=True)


def whole_graph(matrix: Any, x: Tensor, layers: torch.nn.ModuleList, outputs: list[Tensor]) -> Timed:
    """Every layer for all nodes at once; the last layer's rows are appended to `outputs`."""

    @torch.no_grad()
    def once() -> None:
        rows = x
        for depth, layer in enumerate(layers):
            rows = layer(rows, matrix)
            if depth < len(layers) - 1:
                rows = rows.relu()
        outputs[:] = [rows]

    return timed(once)


def pyg_inference(
    batches: Iterator[Iterator[Cut]], x: Tensor, layers: torch.nn.ModuleList, outputs: list[Tensor]
) -> Timed:
    """Every layer for every batch of nodes, from all neighbours; the results are appended to `outputs`."""

    @torch.no_grad()
    def once() -> float:
        spent, rows = 0.0, x
        for depth, layer in enumerate(layers):
            parts = []
            for nodes, edges, count, seconds in next(batches):
                began = time.perf_counter()
                out = layer(rows[nodes], edges)[:count]
                parts.append(out.relu() if depth < len(layers) - 1 else out)
                spent += time.perf_counter() - began + seconds
            rows = torch.cat(parts)
        outputs[:] = [rows]
        return spent

    return once


def loaded(graph: Graph) -> Iterator[Iterator[Cut]]:
    from torch_geometric.loader import NeighborLoader

    data = pyg_data(graph)
    del data.x, data.y  # as in the examples, which fetch the rows of each layer themselves
    loader = NeighborLoader(data, [-1], None, batch_size=_NODES_AT_ONCE, is_sorted=True)

    def one_pass() -> Iterator[Cut]:
        began = time.perf_counter()
        for batch in loader:
            yield batch.n_id, batch.edge_index, batch.batch_size, time.perf_counter() - began
            began = time.perf_counter()

    while True:
        yield one_pass()


def given(graph: Graph) -> Iterator[Iterator[Cut]]:
    def one_pass() -> Iterator[Cut]:
        place = torch.empty(graph.num_nodes, dtype=torch.int64)
        for nodes in torch.arange(graph.num_nodes).split(_NODES_AT_ONCE):
            offsets = graph.indptr[nodes[0] : nodes[-1] + 2]
            sources = graph.indices[offsets[0] : offsets[-1]].to(torch.int64)
            new = sources.unique()
            everything = torch.cat([nodes, new[(new < nodes[0]) | (new > nodes[-1])]])
            place[everything] = torch.arange(everything.numel())
            yield everything, torch.stack([place[sources], rows_of(offsets, sources.numel())]), nodes.numel(), 0.0

    while True:
        yield one_pass()


if __name__ == "__main__":
    main()

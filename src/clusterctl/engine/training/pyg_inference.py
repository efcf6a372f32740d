"""Exact outputs of models with `forward(x, edge_index)`: on the whole graph at once, or in pieces with all neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.subgraphs import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.features.sources import Features
    from clusterctl.engine.graph.storage import FeatureGraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.pyg_model import PygModel


class PygInference:
    """The outputs of `own` for the nodes of `graph`."""

    def __init__(self, own: PygModel, graph: FeatureGraph, features: Features, task: Task) -> None:
        self._own, self._graph, self._features, self._task = own, graph, features, task

    def rows_at_once(self, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """These nodes in chunks, int64, with their outputs. Every rank must iterate to the end, each over its own."""
        yield nodes, self._of_whole().index_select(0, nodes)

    def _of_whole(self) -> Tensor:
        """The outputs of all nodes, computed by rank 0. A collective."""
        dtype, device = next(self._own.model.parameters()).dtype, self._task.device
        rows = torch.empty(0, 0, dtype=dtype, device=device)
        if dist.get_rank() == 0:
            subgraph = whole(self._graph)
            x = self._features.fetch(subgraph.places).rows()
            rows = self._own.outputs([subgraph], x).to(dtype).contiguous()
        self._features.settle()
        if dist.get_world_size() > 1:
            width = torch.tensor([rows.size(1)], device=device)
            dist.broadcast(width, 0)
            if dist.get_rank():
                rows = rows.new_empty(self._graph.num_nodes, int(width))
            dist.broadcast(rows, 0)
        return rows

"""Full-graph inference with user-defined models: layer by layer and split over the ranks if the model has layers."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.graph.features.hidden import own_rows, rows_of_all, shared_rows
from clusterctl.graph.gat import Gat
from clusterctl.graph.hops import sampled_hops, whole_hops, whole_neighborhoods
from clusterctl.graph.inference import NODES_AT_ONCE, NODES_AT_ONCE_FROM_DISK, one_ahead, own_piece
from clusterctl.graph.sampling import NeighborSampler
from clusterctl.graph.slices import slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.graph.features.sources import Features
    from clusterctl.graph.storage import FeatureGraph
    from clusterctl.task.task import Task
    from clusterctl.training.own_model import OwnModel

_MOST_EDGES = 1 << 19  # per piece: PyG's layers materialize a row for each edge
_SEEDS_AT_ONCE = 128  # if the model can only run all layers at once


class OwnInference:
    """The outputs of the model `own`, which has `depth` layers, for the nodes of `graph`."""

    def __init__(self, own: OwnModel, graph: FeatureGraph, features: Features, depth: int, task: Task) -> None:
        self._own, self._graph, self._features, self._depth, self._task = own, graph, features, depth, task

    def rows(self, nodes: range, finish: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The outputs for this rank's slice of the nodes, one layer at a time for all nodes. A collective.

        Each piece is `finish`ed and kept in memory; without it, outputs are where the features say.
        """
        model = self._own.model
        in_memory = self._features.spill is None  # else neighbours' messages are fetched hop by hop
        if isinstance(model, Gat) and in_memory:
            rows = self._by_sending(model, nodes)
            return finish(rows) if finish else rows
        return self._by_layer(nodes, finish)

    def rows_at_once(self, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """These nodes in chunks, int64, with their outputs: all layers at once, on the full neighbourhood.

        Every rank must iterate to the end, each over its own nodes.
        """
        sampler = NeighborSampler(self._graph, (*[-1] * self._depth, 0), 0)
        for seeds in torch.split(nodes, _SEEDS_AT_ONCE):
            blocks = sampler.sample(seeds, 0, 0)
            x = self._features.fetch(blocks[0].nodes).rows()
            yield seeds, self._own.outputs(sampled_hops(blocks, None), x)
        self._features.settle()

    def of_all(self, rows: Tensor) -> Features:
        """All nodes' rows, from each rank's own, where the features say. A collective."""
        return rows_of_all([rows], self._like(rows), self._graph.num_nodes, self._task, self._features.spill)

    def _by_sending(self, model: Gat, nodes: range) -> Tensor:
        """In every layer, the messages of each node are computed once and shared."""
        piece: Callable[[slice], Tensor] = partial(own_piece, self._features, nodes)
        for number in range(self._depth):
            sending = (model.send(number, piece(part)) for part in slices(len(nodes), NODES_AT_ONCE))
            like = model.send(number, piece(slice(0, 0)))
            sent = shared_rows(sending, like, self._graph.num_nodes, self._task)
            pieces = whole_neighborhoods(self._graph, nodes, _MOST_EDGES)
            rows = torch.cat([model.receive(number, edges, sent, piece(part)) for part, edges in pieces])
            piece = rows.__getitem__
        return rows

    def _by_layer(self, nodes: range, finish: Callable[[Tensor], Tensor] | None) -> Tensor:
        features, spill = self._features, self._features.spill
        for number in range(self._depth):
            last = number == self._depth - 1
            finished = finish if last else None
            parts: Iterator[Tensor] = self._parts(number, nodes, features)
            first = next(parts, None)
            if first is None:  # this rank has no nodes
                first = features.piece(0, 0).new_zeros(0, 1)
            parts = chain([first], parts)
            rows = own_rows(map(finished, parts) if finished else parts, len(nodes), None if finished else spill)
            if not last:
                features = self.of_all(rows)
        return rows

    def _parts(self, number: int, nodes: range, features: Features) -> Iterator[Tensor]:
        """A layer's rows of these nodes; none for a rank without nodes."""
        last = number == self._depth - 1
        most_targets = NODES_AT_ONCE_FROM_DISK if self._features.spill else None
        hops = whole_hops(self._graph, nodes, _MOST_EDGES, most_targets)
        for hop, fetch in one_ahead((hop, features.fetch(hop.nodes)) for hop in hops):
            yield self._own.layer(number, hop, fetch.rows(), last=last)
        features.settle()

    def _like(self, rows: Tensor) -> Tensor:
        """An empty table as wide as rank 0's: a rank without nodes does not know the width of a layer."""
        width = torch.tensor([rows.size(1)], device=rows.device)  # NCCL does not support CPU tensors
        dist.broadcast(width, 0)
        return rows.new_empty(0, int(width))

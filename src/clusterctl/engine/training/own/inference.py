"""Full-graph inference with user-defined models: layer by layer and split over the ranks if the model has layers."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.attention import Gat
from clusterctl.engine.graph.blocks import slices
from clusterctl.engine.graph.hops import hop_into, sampled_hops, whole_hops, whole_neighborhoods
from clusterctl.engine.graph.inference import (
    NODES_AT_ONCE,
    NODES_AT_ONCE_FROM_DISK,
    one_ahead,
    own_piece,
    own_rows,
    parts_or,
    rows_of_all,
    shared_rows,
)
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.training.own.model import relative_difference, undisturbed
from clusterctl.engine.training.own.pyg_model import print_what_varies
from clusterctl.shared.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.engine.graph.features.sources import Features, Spill
    from clusterctl.engine.graph.hops import Hop
    from clusterctl.engine.graph.storage import FeatureGraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.own.model import OwnModel

_MOST_EDGES = 1 << 19  # per piece: PyG's layers materialize a row for each edge
_SEEDS_AT_ONCE = 128  # if the model can only run all layers at once
_TRIED_TARGETS, _TRIED_EDGES, _TRIED_AMONG = 4, 1 << 14, 512  # of the comparison at the start
_TOLERANCE = 1e-3  # relative to the largest output: rounding stays below


class OwnInference:
    """The outputs of the model `own`, which has `depth` layers, for the nodes of `graph`."""

    def __init__(self, own: OwnModel, graph: FeatureGraph, features: Features, depth: int, task: Task) -> None:
        self._own, self._graph, self._features, self._depth, self._task = own, graph, features, depth, task

    @torch.no_grad()
    def warn_if_pieces_differ(self) -> None:
        """Print a line if a few nodes get other outputs when their neighbours are computed beside them.

        Then evaluation, which goes through the graph in pieces, differs from the whole graph, and training depends on
        the number of ranks. Not a collective: rank 0 compares, on the features as they are stored.
        """
        if self._task.place.rank != 0 or (targets := self._tried_targets()) is None:
            return
        try:
            with undisturbed(self._own.model, self._task.device):
                part, difference = self._difference(targets)
        except TaskError:
            return  # the first step reports it
        if difference > _TOLERANCE:
            print(
                f"{self._own.name}: the outputs of {part} for a node depend on the other nodes in its piece "
                f"(by {difference:.1%}): evaluation in pieces is not that of the whole graph; "
                "use hop.row_degree for degrees, and no statistics of a batch"
            )

    @torch.no_grad()
    def print_what_varies(self, hops: Sequence[Hop]) -> None:
        """Print what keeps training from being the same on any number of ranks, from a forward on these `hops`."""
        if self._task.place.rank == 0:
            x, own = self._stored(hops[0].places), self._own
            with suppress(TaskError):  # the first step reports it
                print_what_varies(own.model, own.name, self._task.device, lambda: own.outputs(hops, x))

    def _tried_targets(self) -> Tensor | None:
        """A few nodes with neighbours, and not too many of those; None if there are none."""
        indptr = self._graph.indptr
        degrees = indptr[: _TRIED_AMONG + 1].diff()
        chosen, edges = [], 0
        for node in degrees.nonzero().squeeze(1).tolist():
            first, last = int(indptr[node]), int(indptr[node + 1])
            sources = self._graph.sources(slice(first, min(last, first + _TRIED_EDGES + 1))).long()
            cost = len(sources) + int((indptr[sources + 1] - indptr[sources]).sum())
            if edges + cost <= _TRIED_EDGES and cost > len(sources):
                chosen.append(node)
                edges += cost
            if len(chosen) == _TRIED_TARGETS:
                break
        return torch.tensor(chosen, device=indptr.device) if chosen else None

    def _difference(self, targets: Tensor) -> tuple[str, float]:
        """The part of the model with the largest difference, relative to its largest output, and that difference."""
        alone = hop_into(self._graph, targets)
        if not self._own.by_layer:
            sampler, outputs = self._whole_sampler(), []
            for seeds in (targets, alone.places[:_SEEDS_AT_ONCE]):
                blocks = sampler.sample(seeds, 0, 0)
                rows = self._own.outputs(sampled_hops(blocks, None), self._stored(blocks[0].nodes))
                outputs.append(rows[: len(targets)])
            return "forward", relative_difference(*outputs)
        together = hop_into(self._graph, alone.places)
        order = together.places.argsort()
        row = order[torch.searchsorted(together.places[order], alone.places)]  # of each row of `alone` in `together`
        x = self._stored(together.places)
        worst = ("", 0.0)
        for number in range(self._depth):
            last = number == self._depth - 1
            theirs = self._own.layer(number, together, x, last=last)
            difference = relative_difference(self._own.layer(number, alone, x[row], last=last), theirs[: len(targets)])
            worst = max(worst, (f"layer {number}", difference), key=lambda found: found[1])
            x = torch.rand(len(together.places), theirs.size(1), device=x.device, dtype=theirs.dtype)
        return worst

    def _stored(self, nodes: Tensor) -> Tensor:
        rows = self._graph.x.index_select(0, nodes.to(self._graph.x.device))
        return rows.to(self._task.device, next(self._own.model.parameters()).dtype)

    def rows(self, nodes: range, finish: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The outputs for this rank's slice of the nodes, one layer at a time for all nodes. A collective.

        Each piece is `finish`ed and kept in memory; without it, outputs are where the features say.
        """
        model, features, spill = self._own.model, self._features, self._features.spill
        if isinstance(model, Gat) and spill is None:  # else neighbours' messages are fetched hop by hop
            # In every layer, the messages of each node are computed once and shared.
            piece: Callable[[slice], Tensor] = partial(own_piece, features, nodes)
            for number in range(self._depth):
                sending = (model.send(number, piece(part)) for part in slices(len(nodes), NODES_AT_ONCE))
                like = model.send(number, piece(slice(0, 0)))
                sent = shared_rows(sending, like, self._graph.num_nodes, self._task)
                pieces = whole_neighborhoods(self._graph, nodes, _MOST_EDGES)
                received = (model.receive(number, edges, sent, piece(part)) for part, edges in pieces)
                rows = own_rows(received, len(nodes), None)
                piece = rows.__getitem__
            return finish(rows) if finish else rows
        for number in range(self._depth):
            last = number == self._depth - 1
            finished = finish if last else None
            parts = parts_or(features.piece(0, 0).new_zeros(0, 1), self._parts(number, nodes, features))
            rows = own_rows(map(finished, parts) if finished else parts, len(nodes), None if finished else spill)
            if not last:
                features = of_all(rows, self._graph.num_nodes, self._task, spill)
        return rows

    def _parts(self, number: int, nodes: range, features: Features) -> Iterator[Tensor]:
        """A layer's rows of these nodes; none for a rank without nodes."""
        last = number == self._depth - 1
        most_targets = NODES_AT_ONCE_FROM_DISK if self._features.spill else None
        hops = whole_hops(self._graph, nodes, _MOST_EDGES, most_targets)
        for hop, fetch in one_ahead((hop, features.fetch(hop.places)) for hop in hops):
            yield self._own.layer(number, hop, fetch.rows(), last=last)
        features.settle()

    def rows_at_once(self, nodes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """These nodes in chunks, int64, with their outputs: all layers at once, on the full neighbourhood.

        Every rank must iterate to the end, each over its own nodes.
        """
        sampler = self._whole_sampler()
        for seeds in torch.split(nodes, _SEEDS_AT_ONCE):
            blocks = sampler.sample(seeds, 0, 0)
            x = self._features.fetch(blocks[0].nodes).rows()
            yield seeds, self._own.outputs(sampled_hops(blocks, None), x)
        self._features.settle()

    def _whole_sampler(self) -> NeighborSampler:
        return NeighborSampler(self._graph, (*[-1] * self._depth, 0), 0)


def of_all(rows: Tensor, nodes: int, task: Task, spill: Spill | None) -> Features:
    """All `nodes`' rows, from each rank's own, on the device, or in the place of `spill`. A collective."""
    # A rank without nodes does not know the width of a layer. NCCL does not support CPU tensors.
    width = torch.tensor([rows.size(1)], device=task.device)
    dist.broadcast(width, 0)
    return rows_of_all([rows], rows.new_empty(0, int(width)), nodes, task, spill)

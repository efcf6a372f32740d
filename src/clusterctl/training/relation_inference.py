"""Exact inference with a relational attention network on the whole graph, layer by layer, split over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from clusterctl.graph.attention import Neighborhoods
from clusterctl.graph.features.hidden import own_rows, rows_of_all, trimmed
from clusterctl.graph.features.sources import FeaturesInMemory
from clusterctl.graph.hops import whole_neighborhoods
from clusterctl.graph.inference import NODES_AT_ONCE, NODES_AT_ONCE_FROM_DISK, one_ahead, own_piece, part_of
from clusterctl.graph.slices import own_slice, slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from clusterctl.graph.features.sources import Features, Fetch
    from clusterctl.graph.rgat import Rgat
    from clusterctl.graph.storage import EdgeType, HeteroGraph
    from clusterctl.task.task import Task

    Piece = Callable[[slice], Tensor]
    """The rows of a part of this rank's nodes."""

_MOST_EDGES = 1 << 19  # per piece


def infer(model: Rgat, graph: HeteroGraph, features: Mapping[str, Features], task: Task) -> dict[str, Tensor]:
    """The last layer's rows of this rank's nodes, by type, one layer at a time for all nodes. A collective.

    Tables between layers are where the features say.
    """
    own = {kind: own_slice(count) for kind, count in graph.num_nodes.items()}
    spill = next(iter(features.values())).spill
    pieces: dict[str, Piece] = {kind: partial(own_piece, one, own[kind]) for kind, one in features.items()}
    for i, relations in enumerate(model.relations):
        layer = _Layer(model, i, graph, own, pieces, spill, task)
        rows: dict[str, Tensor] = {}
        last_into = {relation[2]: relation for relation in relations}
        for relation in relations:
            target, received = relation[2], layer.received(relation)
            is_hidden = i < len(model.relations) - 1
            activate = F.elu_ if is_hidden and relation == last_into[target] else _unchanged
            if target in rows:
                _add(rows[target], trimmed(received) if spill else received, activate)
            else:
                rows[target] = own_rows(map(activate, received), len(own[target]), spill)
        pieces = {kind: partial(part_of, table, task.device) for kind, table in rows.items()}
    return rows


@dataclass(frozen=True)
class _Layer:
    """Layer `i` of the model: its input is each `piece` of this rank's `own` rows, by type."""

    model: Rgat
    i: int
    graph: HeteroGraph
    own: Mapping[str, range]
    pieces: Mapping[str, Piece]
    spill: Path | None
    task: Task

    def received(self, relation: EdgeType) -> Iterator[Tensor]:
        """The output of a relation for this rank's nodes, in parts. A collective.

        The messages of all nodes are computed once, and shared.
        """
        source, _, target = relation
        convolution, piece = self.model.of(self.i, relation), self.pieces[source]
        most = NODES_AT_ONCE_FROM_DISK if self.spill else None
        parts = slices(len(self.own[source]), most or NODES_AT_ONCE)
        sending = (convolution.send(piece(part)) for part in parts)
        like = convolution.send(piece(slice(0, 0)))
        sent = rows_of_all(sending, like, self.graph.num_nodes[source], self.task, self.spill)
        hops = (
            (part, self.model.edges(relation, edges))
            for part, edges in whole_neighborhoods(self.graph.relation(relation), self.own[target], _MOST_EDGES, most)
        )
        if isinstance(sent, FeaturesInMemory):
            for part, edges in hops:
                yield convolution.receive(edges, sent.table, self.pieces[target](part))
            return
        for part, edges, fetch in one_ahead(_fetched(hops, sent)):
            yield convolution.receive(edges, fetch.rows(), self.pieces[target](part))
        sent.settle()


def _fetched(
    hops: Iterable[tuple[slice, Neighborhoods]], sent: Features
) -> Iterator[tuple[slice, Neighborhoods, Fetch]]:
    """The hops with only the rows that they read, which are requested."""
    for part, edges in hops:
        nodes, columns = torch.unique(edges.columns.to(torch.int64), return_inverse=True)
        yield part, Neighborhoods(columns.to(torch.int32), edges.offsets, edges.own), sent.fetch(nodes)


def _add(rows: Tensor, parts: Iterable[Tensor], finish: Callable[[Tensor], Tensor]) -> None:
    """Add consecutive parts to the rows and `finish` these, in place."""
    added = 0
    for part in parts:
        own = rows[added : (added := added + len(part))]
        own += part
        finish(own)


def _unchanged(rows: Tensor) -> Tensor:
    return rows

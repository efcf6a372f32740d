"""The relational attention network for `train.model = "rgat"`: in each layer one GATv2 per relation.

The outputs of the relations into a node are summed, like PyG's `HeteroConv` with `aggr="sum"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clusterctl.engine.graph.attention import GatConv, dropped
from clusterctl.engine.graph.hashing import Purpose, keyed_dropout, stream
from clusterctl.engine.graph.hops import Neighborhoods

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clusterctl.engine.graph.sampling import HeteroSample
    from clusterctl.engine.graph.storage import EdgeType
    from clusterctl.shared.spec import GatOptions


def relations_by_layer(relations: Collection[EdgeType], node_type: str, layers: int) -> list[list[EdgeType]]:
    """The relations that each layer needs so that the last one can compute the rows of `node_type`.

    A type without incoming relations has rows only in the first layer, as in PyG's `HeteroConv`.
    """
    possible, types = [], {kind for source, _, target in relations for kind in (source, target)}
    for _ in range(layers):
        possible.append([relation for relation in relations if {relation[0], relation[2]} <= types])
        types = {target for _, _, target in possible[-1]}
    wanted, found = {node_type}, []
    for layer in reversed(possible):
        found.append([relation for relation in layer if relation[2] in wanted])
        wanted |= {source for source, _, _ in found[-1]}
    return found[::-1]


def fan_outs(by_layer: Sequence[Sequence[EdgeType]], fan_out: Sequence[int]) -> dict[EdgeType, tuple[int, ...]]:
    """The fan-out of each relation per hop, the seeds' hop first; 0 where no layer needs the relation."""
    return {
        relation: tuple(
            count if relation in needed else 0 for count, needed in zip(fan_out, by_layer[::-1], strict=True)
        )
        for relation in by_layer[0]
    }


@dataclass(frozen=True)
class RelationHop:
    """The edges of one relation that one layer reads, and the rows of the source type that they refer to."""

    rows: Tensor  # int64 [sources], ascending: only these are projected
    edges: Neighborhoods  # between places in `rows` and the first rows of the target type


@dataclass(frozen=True)
class LayerHops:
    """The input of one layer, which computes new rows for the first `targets[type]` rows."""

    relations: dict[EdgeType, RelationHop]
    targets: dict[str, int]


def layer_hops(sample: HeteroSample, *, self_loops: bool) -> list[LayerHops]:
    """The hops of a sample in the order of the layers; relations between nodes of one type can get self loops."""
    hops = []
    for blocks in reversed(sample.hops):
        relations = {}
        for relation, block in blocks.items():
            targets = torch.arange(block.nodes.numel(), device=block.nodes.device)
            edges = Neighborhoods(block.columns, block.offsets, targets)
            if self_loops and relation[0] == relation[2]:
                edges = edges.with_self_loops()
            # Drop the rows of the sample that no edge refers to.
            is_read = torch.zeros(sample.nodes[relation[0]].numel(), dtype=torch.bool, device=targets.device)
            is_read[edges.columns.long()] = True
            place = torch.cumsum(is_read, 0, dtype=torch.int32) - 1
            compact = Neighborhoods(place.index_select(0, edges.columns), edges.offsets, edges.own)
            relations[relation] = RelationHop(is_read.nonzero().squeeze(1), compact)
        hops.append(LayerHops(relations, {relation[2]: block.nodes.numel() for relation, block in blocks.items()}))
    return hops


class Rgat(nn.Module):
    """One `GatConv` for each layer and each relation that it needs, with ELU and dropout between layers.

    The last layer averages its heads. Evaluation calls `GatConv.send` and `receive` separately.
    """

    def __init__(
        self, features: Mapping[str, int], classes: int, by_layer: Sequence[Sequence[EdgeType]], options: GatOptions
    ) -> None:
        super().__init__()
        widths, layers = dict(features), []
        for number, relations in enumerate(by_layer):
            last = number == len(by_layer) - 1
            channels, heads = (classes, options.output_heads) if last else (options.hidden, options.heads)
            layer = nn.ModuleDict()
            for relation in relations:
                width = widths[relation[0]], widths[relation[2]]
                layer[_name(relation)] = GatConv(width, channels, heads, mean=last, residual=options.residual)
            layers.append(layer)
            widths = {target: options.heads * options.hidden for _, _, target in relations}
        self.layers = nn.ModuleList(layers)
        self.relations = by_layer
        self._types = {node_type: number for number, node_type in enumerate(features)}
        self._options = options

    def forward(
        self,
        hops: Sequence[LayerHops],
        nodes: Mapping[str, Tensor],
        x: Mapping[str, Tensor],
        randomness: tuple[int, ...] | None,
        *,
        gathered: bool = False,
    ) -> dict[str, Tensor]:
        """The last layer's rows of its targets, by type.

        `nodes` are the nodes of the sample, `x` the features of the whole graph, or only those of `nodes` (`gathered`).
        `randomness` holds the numbers that key dropout: seed, epoch and step; None in evaluation.
        """
        rows: Mapping[str, Tensor] = x
        for i, hop in enumerate(hops):
            if i > 0:
                rows = {kind: self._dropped(i, kind, table, nodes[kind], randomness) for kind, table in rows.items()}
            parts: dict[str, list[Tensor]] = {}
            for number, (relation, own) in enumerate(hop.relations.items()):
                source, _, target = relation
                reads, writes = own.rows, torch.arange(hop.targets[target], device=own.rows.device)
                factors = self._factors(i, number, relation, own, nodes, randomness)
                if i == 0 and not gathered:
                    reads, writes = nodes[source].index_select(0, reads), nodes[target][: hop.targets[target]]
                targets = rows[target].index_select(0, writes)
                layer = self.of(i, relation)
                sent = layer.send(rows[source].index_select(0, reads))
                parts.setdefault(target, []).append(layer.receive(own.edges, sent, targets, factors))
            rows = {kind: self.joined(i, received) for kind, received in parts.items()}
        return dict(rows)

    def joined(self, i: int, received: Iterable[Tensor]) -> Tensor:
        """The new rows of one type in layer `i`, from the outputs of its relations."""
        rows = reduce(torch.add, received)
        return rows if i == len(self.layers) - 1 else F.elu(rows)

    def edges(self, relation: EdgeType, edges: Neighborhoods) -> Neighborhoods:
        """The edges of a relation that its layers use: those between nodes of one type may have self loops."""
        return edges.with_self_loops() if self._options.self_loops and relation[0] == relation[2] else edges

    def of(self, i: int, relation: EdgeType) -> GatConv:
        """The layer of a relation."""
        return cast("GatConv", cast("nn.ModuleDict", self.layers[i])[_name(relation)])

    def _dropped(
        self, i: int, node_type: str, rows: Tensor, nodes: Tensor, randomness: tuple[int, ...] | None
    ) -> Tensor:
        if randomness is None:
            return rows
        key = stream(Purpose.DROPOUT, *randomness, i, self._types[node_type])
        return keyed_dropout(rows, nodes[: len(rows)], self._options.dropout, key)

    def _factors(
        self,
        i: int,
        number: int,
        relation: EdgeType,
        own: RelationHop,
        nodes: Mapping[str, Tensor],
        randomness: tuple[int, ...] | None,
    ) -> Tensor | None:
        """The factors of attention dropout, or None."""
        p = self._options.attention_dropout
        if randomness is None or not p:
            return None
        source, _, target = relation
        sources = nodes[source].index_select(0, own.rows).index_select(0, own.edges.columns)
        targets = nodes[target].index_select(0, own.edges.targets())
        key = stream(Purpose.DROPOUT, *randomness, i, len(self._types) + number)
        return dropped(sources, targets, self.of(i, relation).attention, p, key)


def _name(relation: EdgeType) -> str:
    return "__".join(relation).replace(".", "_")

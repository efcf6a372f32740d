"""Attention over neighbours, its convolution `GatConv`, and the networks `Gat` and `Rgat`.

In plain torch on any device; on a CPU, large hops are computed in loops that numba compiles.
Brody, Alon and Yahav, "How attentive are graph attention networks?" (2022), known as GATv2.

`Rgat` is the relational attention network for `train.model = "rgat"`: in each layer one GATv2 per relation. The outputs
of the relations into a node are summed, like PyG's `HeteroConv` with `aggr="sum"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import Linear, Neighborhoods, has_numba, row_bounds
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.masks import keyed_dropout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from clusterctl.engine.graph.hops import HeteroSample, Hop
    from clusterctl.engine.graph.storage import EdgeType
    from clusterctl.shared.spec import GatOptions


SLOPE = 0.2  # of the leaky ReLU below zero
WORTH_COMPILING = 1 << 20  # edges x heads x channels: importing numba takes a second


class GatConv(nn.Module):
    """GATv2: the neighbours' projected rows `W_left h_u`, weighted by a softmax over the neighbours of each target.

    The softmax is over `a . leaky_relu(W_left h_u + W_right h_v)`, for each head. Equivalent to PyG's GATv2Conv with
    bipartite input; the caller adds self loops. Heads are concatenated, or averaged (`mean`).
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        *,
        mean: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        width = out_channels if mean else heads * out_channels
        of_source, of_target = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        self.left = Linear(of_source, heads * out_channels)
        self.right = Linear(of_target, heads * out_channels)
        self.attention = nn.Parameter(torch.empty(heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(width))
        self.residual = Linear(of_target, width, bias=False) if residual else None
        self._mean = mean
        for weight in (self.left.weight, self.right.weight, self.attention):
            nn.init.xavier_uniform_(weight)
        for bias in (self.left.bias, self.right.bias):
            nn.init.zeros_(bias)

    def send(self, rows: Tensor) -> Tensor:
        """The messages [rows, heads * out] of these rows [rows, in] to their neighbours."""
        return self.left(rows)  # type: ignore[no-any-return]

    def receive(self, edges: Neighborhoods, sent: Tensor, rows: Tensor, factors: Tensor | None = None) -> Tensor:
        """The targets' new rows, from the output of `send` and the targets' own `rows` [targets, in].

        The softmax is multiplied by `factors` [edges, heads], for dropout.
        """
        out = attend(sent, self.right(rows), self.attention, edges, factors)
        if self._mean:
            out = by_head(out, self.attention).mean(1)
        if self.residual is not None:
            out = out + self.residual(rows)
        return out + self.bias


def dropped(sources: Tensor, targets: Tensor, attention: Tensor, p: float, key: int) -> Tensor:
    """The dropout factors [edges, heads] of edges between these nodes (int64), keyed by both ends."""
    ends = (targets << 32) + sources  # ids are below 2**31
    ones = torch.ones(ends.numel(), len(attention), dtype=attention.dtype, device=ends.device)
    return keyed_dropout(ones, ends, p, key)


def attend(left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, factors: Tensor | None) -> Tensor:
    """The attention-weighted sums of the neighbours' rows [targets, heads * channels], zero for isolated targets.

    `left` [rows, heads * channels] holds the projected rows of sources, `right` [targets, heads * channels] those of
    targets; `attention` is [heads, channels]. Sums are in float32 or float64; the result has the dtype of `left`.
    """
    is_plain = left.device.type != "cpu" or edges.edge_mask is not None  # the compiled loops do not support padding
    if not is_plain and edges.columns.numel() * left.size(1) >= WORTH_COMPILING and has_numba():
        from clusterctl.engine.graph.compiled import attend_compiled  # numba takes a second, and may be missing

        return attend_compiled(left, right, attention, edges, factors, SLOPE)
    return attend_plain(left, right, attention, edges, factors)


def attend_plain(
    left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, factors: Tensor | None
) -> Tensor:
    """Like `attend`, in plain torch operations, with several tensors of edges x heads x channels."""
    targets, counts = edges.targets(), edges.offsets.diff().to(torch.int64)
    exact = attention.dtype
    sources = by_head(_select_rows(left.to(exact), edges.columns), attention)
    summed = sources + by_head(_select_rows(right.to(exact), targets), attention)
    logits = (F.leaky_relu(summed, SLOPE) * attention).sum(-1)
    if edges.edge_mask is not None:
        logits = logits.masked_fill(~edges.edge_mask[:, None], -torch.inf)
    highest = torch.segment_reduce(logits.detach(), "max", lengths=counts, unsafe=True)
    highest = highest.clamp(min=torch.finfo(exact).min)  # for targets that have only padding
    weights = (logits - highest.index_select(0, targets)).exp()
    totals = torch.segment_reduce(weights, "sum", lengths=counts, unsafe=True)
    weights = weights / _select_rows(totals.clamp(min=1), targets)  # at least 1 for a target with edges
    if factors is not None:
        weights = weights * factors
    messages = (sources * weights[..., None]).flatten(1)
    return torch.segment_reduce(messages, "sum", lengths=counts, unsafe=True).to(left.dtype)


def by_head(table: Tensor, attention: Tensor) -> Tensor:
    """The table [rows, heads * channels] as [rows, heads, channels]."""
    return table.view(len(table), *attention.shape)


def _select_rows(table: Tensor, rows: Tensor) -> Tensor:
    return _SelectRows.apply(table, rows)  # type: ignore[no-any-return, no-untyped-call]


class _SelectRows(torch.autograd.Function):
    """`table.index_select(0, rows)` with a segment sum as its gradient; torch's own adds in random order on a GPU."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.size = table.size(0)
        ctx.save_for_backward(rows)
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        order, bounds = rows.argsort(stable=True), row_bounds(rows, ctx.size).to(torch.int64)
        return F.embedding_bag(order, gradients[0], bounds, mode="sum", include_last_offset=True), None


# The graph attention network for `train.model = "gat"`: one GATv2 layer per hop.


_ATTENTION = 1  # the number of the second dropout in a layer, see `Hop.dropout`


class Gat(nn.Module):
    """One `GatConv` per hop, with ELU and dropout in between; the last layer averages its heads.

    Evaluation calls a layer in two halves, `send` and `receive`, so that every row is projected only once for all its
    neighbours.
    """

    def __init__(self, features: int, classes: int, layers: int, options: GatOptions) -> None:
        super().__init__()
        widths = [features, *[options.heads * options.hidden] * (layers - 1)]
        residual = options.residual
        hidden = [GatConv(width, options.hidden, options.heads, residual=residual) for width in widths[:-1]]
        last = GatConv(widths[-1], classes, options.output_heads, mean=True, residual=residual)
        self.layers = nn.ModuleList([*hidden, last])
        self._options = options

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        """The new rows of the hop's targets, the first rows of `x` [rows, channels]."""
        if i > 0:
            x = hop.dropout(x, self._options.dropout)
        edges, factors = self._edges(hop.neighborhoods), None
        if hop.randomness is not None and (p := self._options.attention_dropout):
            sources, targets = (hop.nodes.index_select(0, rows) for rows in (edges.columns, edges.targets()))
            key = stream(Purpose.DROPOUT, *hop.randomness, _ATTENTION)
            factors = dropped(sources, targets, self._convolution(i).attention, p, key)
        return self._received(i, edges, self.send(i, x), x[: hop.targets], factors)

    def send(self, i: int, x: Tensor) -> Tensor:
        """The messages of the rows `x` to their neighbours in layer `i`."""
        return self._convolution(i).send(x)

    def receive(self, i: int, edges: Neighborhoods, sent: Tensor, x: Tensor) -> Tensor:
        """The new rows of the targets with rows `x`, from the table `sent` of their neighbours' messages."""
        return self._received(i, self._edges(edges), sent, x, None)

    def _received(self, i: int, edges: Neighborhoods, sent: Tensor, x: Tensor, factors: Tensor | None) -> Tensor:
        rows = self._convolution(i).receive(edges, sent, x, factors)
        return rows if i == len(self.layers) - 1 else F.elu(rows)

    def _edges(self, edges: Neighborhoods) -> Neighborhoods:
        return edges.with_self_loops() if self._options.self_loops else edges

    def _convolution(self, i: int) -> GatConv:
        return cast("GatConv", self.layers[i])


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
            if i > 0 and randomness is not None:
                keys = {kind: stream(Purpose.DROPOUT, *randomness, i, self._types[kind]) for kind in rows}
                rows = {
                    kind: keyed_dropout(table, nodes[kind][: len(table)], self._options.dropout, keys[kind])
                    for kind, table in rows.items()
                }
            read_all = i == 0 and not gathered
            own_rows = {
                kind: rows[kind].index_select(0, nodes[kind][:count]) if read_all else rows[kind][:count]
                for kind, count in hop.targets.items()
            }
            parts: dict[str, list[Tensor]] = {}
            for number, (relation, own) in enumerate(hop.relations.items()):
                source, _, target = relation
                factors = self._factors(i, number, relation, own, nodes, randomness)
                reads = nodes[source].index_select(0, own.rows) if read_all else own.rows
                layer = self.of(i, relation)
                sent = layer.send(rows[source].index_select(0, reads))
                parts.setdefault(target, []).append(layer.receive(own.edges, sent, own_rows[target], factors))
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

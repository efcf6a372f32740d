"""Dropout for models of users whose masks are the same on any number of ranks.

    from clusterctl.pyg import dropout      # instead of torch.nn.functional.dropout
    from clusterctl.pyg import Dropout      # instead of torch.nn.Dropout

The mask of a row depends on the step, the row's (node, depth), and how many such calls came before in the forward. In
models of whole graphs, it depends on the node, or on the graph after the nodes are read out. In graphs with several
types of nodes, pass the dict of all rows by type: `x_dict = dropout(x_dict, 0.5, self.training)`. PyG's attention
layers draw by edge, from the keys of both ends, without a change of the model.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.hashing import Purpose, draws, stream
from clusterctl.engine.graph.masks import keyed_dropout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from clusterctl.engine.graph.hops import Hop
    from clusterctl.engine.graph.subgraphs import Subgraph, TypedSubgraph

_IN_A_HOP = 1 << 20  # separates these masks from those of `Hop.dropout`, whose numbers are small
_IN_EDGE_UPDATE = ("GATConv", "GATv2Conv")  # PyG's layers that end `edge_update` with dropout of what it returns
_IN_MESSAGE = ("TransformerConv",)  # and those whose message is a product with dropped weights [edges, heads]


@dataclass
class _Rows:
    """The rows of the running forward."""

    keys: Tensor  # int64 [rows]: one for each (node, depth)
    randomness: tuple[int, ...]
    of_graphs: Tensor | None = None  # int64 [graphs]: one for each graph of a batch, after its nodes are read out
    by_type: dict[str, Tensor] | None = None  # the same as `keys` for each type of a graph with several
    calls: int = 0

    def keys_of(self, count: int) -> Tensor | None:
        """Those of an input with so many rows; None if it has other rows."""
        if self.of_graphs is None:
            return self.keys[:count] if count <= len(self.keys) else None
        return next((keys for keys in (self.keys, self.of_graphs) if len(keys) == count), None)


_running: list[_Rows] = []


@contextmanager
def _forward_on(rows: _Rows) -> Iterator[None]:
    _running.append(rows)
    try:
        yield
    finally:
        _running.pop()


def rows_of_a_step(subgraph: Subgraph) -> AbstractContextManager[None]:
    """Within this context, `dropout` masks the rows of the subgraph by node; no change in evaluation."""
    if subgraph.randomness is None:
        return nullcontext()
    keys = subgraph.nodes
    if subgraph.rows_by_depth:
        keys = keys * len(subgraph.rows_by_depth) + _depths(subgraph.rows_by_depth, keys)
    return _forward_on(_Rows(keys, subgraph.randomness))


def rows_of_a_hop(hop: Hop) -> AbstractContextManager[None]:
    """Like `rows_of_a_step`, for the rows that a layer of its own gets."""
    if hop.randomness is None:
        return nullcontext()
    return _forward_on(_Rows(hop.nodes, (*hop.randomness, _IN_A_HOP)))


def rows_of_types(subgraph: TypedSubgraph) -> AbstractContextManager[None]:
    """Within this context, `dropout` of a dict masks the rows of each type by node; no change in evaluation."""
    if subgraph.randomness is None:
        return nullcontext()
    keys = {}
    for number, (kind, places) in enumerate(subgraph.places.items()):
        depths = subgraph.rows_by_depth[kind]
        own = (places * len(depths) + _depths(depths, places)) * len(subgraph.places) + number
        if subgraph.trees is not None:
            own = draws(0, own) + subgraph.trees.keys[subgraph.trees.of_rows[kind]]
        keys[kind] = own
    return _forward_on(_Rows(torch.empty(0, dtype=torch.int64), subgraph.randomness, by_type=keys))


def _depths(rows_by_depth: Sequence[int], nodes: Tensor) -> Tensor:
    """The depth of each row, int64, where `nodes` are."""
    (counts,) = moved([torch.tensor(rows_by_depth)], nodes.device)
    return torch.arange(len(counts), device=nodes.device).repeat_interleave(counts, output_size=len(nodes))


def graphs_of_a_step(nodes: Tensor, graphs: Tensor, randomness: tuple[int, ...]) -> AbstractContextManager[None]:
    """Within this context, `dropout` masks the rows of a batch by node or by graph, which have these int64 numbers."""
    return _forward_on(_Rows(nodes, randomness, graphs))


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002 - torch's names
    """Like `torch.nn.functional.dropout`; in a training step of clusterctl, rows are masked by node.

    `input` has a row for each row of `x`, or for the first ones, or one for each graph of a batch of graphs. It may be
    a dict of such rows by node type. Any other input, and one outside of a step, gets torch's own dropout. `inplace` is
    ignored in a step.
    """
    rows = _running[-1] if _running else None
    if isinstance(input, dict):
        return _of_types(input, p, rows, training=training)
    keys = rows.keys_of(len(input)) if rows and input.dim() > 1 else None
    if rows is None or keys is None or not training or not p:
        return F.dropout(input, p, training, inplace)
    rows.calls += 1
    key = stream(Purpose.DROPOUT, *rows.randomness, rows.calls)
    return keyed_dropout(input.flatten(1), keys, p, key).view_as(input)


def draw_attention_by_edge(model: nn.Module) -> None:
    """Have the attention layers of a model draw their dropout by edge in a step of clusterctl.

    Other layers of PyG apply it where nothing can be put in its place.
    """
    part: Any  # of PyG, which has no types
    for part in () if hasattr(model, "_orig_mod") else model.modules():
        of_pyg: list[Any] = [
            kind for kind in type(part).__mro__ if kind.__module__.startswith("torch_geometric.nn.conv")
        ]
        made = next((kind for kind in of_pyg if kind.__name__ in (*_IN_EDGE_UPDATE, *_IN_MESSAGE)), None)
        if made is None or hasattr(part, "dropped_by_edge"):
            continue
        if made.__name__ in _IN_EDGE_UPDATE and type(part).edge_update is made.edge_update:
            part.dropped_by_edge = 0.0
            part.register_edge_update_forward_pre_hook(_before_attention)
            part.register_edge_update_forward_hook(_after_attention)
        elif made.__name__ in _IN_MESSAGE and type(part).message is made.message:
            part.dropped_by_edge = 0.0
            part.register_propagate_forward_pre_hook(_before_messages)
            part.register_message_forward_hook(_after_messages)


def _before_messages(part: Any, inputs: tuple[Any, Any, dict[str, Any]]) -> None:
    edge_index, size, given = inputs
    part.edges_of_messages = edge_index
    _before_attention(part, (edge_index, size, {"rows": (given["query"], given["key"])}))


def _after_messages(part: Any, _: Any, messages: Tensor) -> Tensor:
    """Drop whole messages of a head: the product with a dropped weight."""
    edge_index, part.edges_of_messages = part.edges_of_messages, None
    if not part.dropped_by_edge:
        return messages
    kept = _after_attention(part, (edge_index, None, {}), torch.ones_like(messages[..., 0]))
    return messages * kept[..., None]


def _before_attention(part: Any, inputs: tuple[Any, Any, dict[str, Any]]) -> None:
    """Switch the layer's own dropout off, if its rows are those of the running step."""
    edge_index, _, given = inputs
    tensors = [one for value in given.values() for one in (value if isinstance(value, tuple) else ())]
    count = max((len(one) for one in tensors if one is not None), default=0)
    rows = _running[-1] if _running else None
    # The rows of a pooled graph are others than the nodes, but the first rows of a sample are those of a later layer.
    known = rows is not None and (count == len(rows.keys) or (rows.of_graphs is None and count < len(rows.keys)))
    part.dropped_by_edge = part.dropout if known and part.training and isinstance(edge_index, Tensor) else 0.0
    if part.dropped_by_edge:
        part.dropout = 0.0


def _after_attention(part: Any, inputs: tuple[Any, Any, dict[str, Any]], weights: Tensor) -> Tensor:
    p, part.dropped_by_edge = part.dropped_by_edge, 0.0
    if not p:
        return weights
    part.dropout, rows = p, _running[-1]
    rows.calls += 1
    sources, targets = rows.keys[inputs[0]]
    key = stream(Purpose.DROPOUT, *rows.randomness, rows.calls)
    return keyed_dropout(weights, draws(0, targets) + sources, p, key)


def _of_types(tables: dict[str, Tensor], p: float, rows: _Rows | None, *, training: bool) -> dict[str, Tensor]:
    known = (rows and rows.by_type) or {}
    if (
        rows is None
        or not training
        or not p
        or any(len(one) > len(known.get(kind, ())) for kind, one in tables.items())
    ):
        return {kind: F.dropout(one, p, training) for kind, one in tables.items()}
    rows.calls += 1
    key = stream(Purpose.DROPOUT, *rows.randomness, rows.calls)
    return {
        kind: keyed_dropout(one.flatten(1), known[kind][: len(one)], p, key).view_as(one)
        for kind, one in tables.items()
    }


class Dropout(nn.Module):
    """Like `torch.nn.Dropout`, with `dropout`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Any) -> Any:  # noqa: A002
        return dropout(input, self.p, self.training)

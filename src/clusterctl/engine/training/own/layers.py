"""Layers of torch and PyG on a CPU, computed faster than they do, with the same results but for rounding.

Linear maps are computed by the library that is faster on this processor (see `products`). GCNConv's
`D^-1/2 (A + I) D^-1/2 X W` scales rows, adds them up along the edges, and scales the sums: PyG's own forward computes
weights of edges anew in each layer and makes a row for each edge. Its degrees are always those of the whole sample, so
a layer may leave out edges that no seed depends on (see `trimming`).
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clusterctl.engine.graph.blocks import Sums, linear, row_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.subgraphs import Subgraph


class Layers:
    """The layers of `model` that are computed in this way: the classes themselves, without hooks inside of GCNConv."""

    def __init__(self, model: nn.Module) -> None:
        from torch_geometric.nn import GCNConv, Linear  # late: models with forward(x, edge_index) have imported it

        compiled = hasattr(model, "_orig_mod")
        parts: list[Any] = [] if compiled else [part for part in model.modules() if "forward" not in vars(part)]
        self._linear = [part for part in parts if type(part) in (nn.Linear, Linear)]
        self._gcn = [part for part in parts if type(part) is GCNConv and _is_plain(part)]

    @contextmanager
    def of(self, sample: Subgraph) -> Iterator[None]:
        """Within this context, the model runs on this sample."""
        if not sample.rows_by_depth or sample.edge_index.device.type != "cpu":
            yield
            return
        edges = {loops: _Edges(sample, loops=loops) for loops in {layer.add_self_loops for layer in self._gcn}}
        for layer in self._linear:
            layer.forward = partial(_linear, layer)
        for layer in self._gcn:
            layer.forward = partial(_gcn, layer, edges[layer.add_self_loops])
        try:
            yield
        finally:
            for layer in (*self._linear, *self._gcn):
                del layer.forward  # the class has it


def _is_plain(layer: Any) -> bool:
    """Whether nothing else is done within the layer than by default."""
    inner = ("message", "aggregate", "propagate")
    is_hooked = any(
        value for name, value in vars(layer).items() if name.endswith("_hooks") and any(part in name for part in inner)
    )
    is_default = layer.normalize and not layer.cached and layer.aggr == "add" and layer.flow == "source_to_target"
    return is_default and not is_hooked and not layer.explain


def is_recomputed(layer: nn.Module) -> bool:
    """Whether a running layer is computed again in the backward, by `torch.utils.checkpoint`.

    That happens outside of any context of ours, and must do the same again.
    """
    if layer.training and not torch.is_grad_enabled():  # its older form
        return True
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # noqa: SLF001 - no public name


def _linear(layer: Any, rows: Tensor) -> Tensor:
    if rows.dim() != 2 or is_recomputed(layer):
        return type(layer).forward(layer, rows)  # type: ignore[no-any-return]
    return linear(rows, layer.weight, layer.bias)


class _Edges:
    """The edges of a sample, which are by target, and what GCNConv's degrees make of them."""

    def __init__(self, sample: Subgraph, *, loops: bool) -> None:
        self.whole, self._rows, self._loops = sample.edge_index, sample.num_rows, loops
        sources, targets = self.whole
        # One loop takes the place of all that the data has.
        self._counts = torch.ones_like(sources) if not loops else (sources != targets).to(torch.int64)
        self.degree = torch.zeros(self._rows, dtype=torch.int64).index_add_(0, targets, self._counts)
        self._sums: dict[tuple[int, int], Sums] = {}

    def first(self, edges: int, rows: int) -> Sums:
        """The first so many edges, into the first so many rows."""
        if (edges, rows) not in self._sums:
            sources, targets = self.whole[:, :edges]
            if self._loops and not self._counts[:edges].all():
                sources, targets = (ends[self._counts[:edges] > 0] for ends in (sources, targets))
            self._sums[edges, rows] = Sums(sources.to(torch.int32), row_bounds(targets, rows).to(torch.int32))
        return self._sums[edges, rows]


def _gcn(layer: Any, edges: _Edges, x: Any, edge_index: Any, edge_weight: Any = None) -> Tensor:
    """GCNConv's forward; its own for anything but the rows and edges of the sample."""
    is_first = isinstance(edge_index, Tensor) and edge_index.data_ptr() == edges.whole.data_ptr()
    if (
        not is_first
        or edge_index.stride() != edges.whole.stride()
        or edge_weight is not None
        or not isinstance(x, Tensor)
        or x.dim() != 2
        or is_recomputed(layer)
    ):
        return type(layer).forward(layer, x, edge_index, edge_weight)  # type: ignore[no-any-return]
    loops = 1 if layer.add_self_loops else 0  # `improved` has no effect on PyG's edges without weights
    scale = (edges.degree[: len(x)].to(x.dtype) + loops).pow_(-0.5)[:, None]
    scale.masked_fill_(scale.isinf(), 0.0)
    rows = layer.lin(x) * scale
    out = edges.first(edge_index.size(1), len(x)).of(rows)
    if loops:
        out = out + rows
    out = out * scale
    return out if layer.bias is None else out + layer.bias

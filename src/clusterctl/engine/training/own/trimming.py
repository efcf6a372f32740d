"""Leaves out rows and edges on which no seed's output depends, in models that know nothing of it.

In a sample of L hops, the last of L layers needs the edges into the seeds alone, the one before those of two hops, and
so on. Hooks at PyG's layers cut what they get and give accordingly, as `trim_to_layer` would if the model called it;
layers that accept it also get their targets' rows apart from the sources', `conv((x, x[:n]), edge_index)`. If a model
uses the outputs of several layers together, each output is filled up to all rows. Which of these ways a model allows
is tried on a sample: its outputs must stay the same.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from inspect import signature
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from clusterctl.engine.training.own.layers import is_recomputed
from clusterctl.shared.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.engine.graph.subgraphs import Subgraph


class CannotTrimError(Exception):
    """A layer gets something else than rows and edges of the sample, or there is not one layer for each hop."""


class Way(Enum):
    """What a layer gets and gives. The first that a model allows is the fastest."""

    ROWS = "only the rows that are needed"
    FILLED_TO_THE_END = "all rows, from the last layer on those of the seeds"
    FILLED = "all rows, of which those that are needed are computed"
    EDGES = "all rows, all computed, but only the edges that are needed"


class Trimming:
    """Cuts samples in the layers of `model`, once `try_on` has found that this is possible."""

    def __init__(self, model: nn.Module) -> None:
        from torch_geometric.nn import (
            JumpingKnowledge,
            MessagePassing,
        )  # late: models made of its layers have imported it

        self.is_on = False
        self.way = Way.EDGES
        self._apart: set[nn.Module] = set()  # the layers that get the targets' rows apart
        self._sample: Subgraph | None = None
        self.is_tried, self._called, self._running = False, 0, 0
        # A norm over the rows would see fewer of them in training. Hooks are not called in compiled models.
        cannot = hasattr(model, "_orig_mod") or any(isinstance(part, _NormBase) for part in model.modules())
        self._layers = [] if cannot else [part for part in model.modules() if isinstance(part, MessagePassing)]
        self._arguments = {layer: [*signature(layer.forward).parameters] for layer in self._layers}
        for layer in self._layers:
            layer.register_forward_pre_hook(self._before, with_kwargs=True)
            layer.register_forward_hook(self._after)
        for part in model.modules() if self._layers else ():
            if isinstance(part, (JumpingKnowledge, nn.Linear)):
                part.register_forward_pre_hook(self._before_a_row_wise_part)

    def try_on(self, is_same: Callable[[], bool]) -> None:
        """Switch on what leaves the outputs of a sample as they are, which `is_same` tells."""
        if not self._layers:
            return

        def works() -> bool:
            try:
                return is_same()
            except TaskError:
                return False

        self.is_tried = self.is_on = True
        for self.way in Way:
            if works():
                break
        else:
            self.is_on = False
        for layer in self._layers if self.is_on and self.way is not Way.EDGES else ():
            self._apart.add(layer)
            if not works():
                self._apart.remove(layer)
        self.is_tried = False

    @contextmanager
    def of(self, sample: Subgraph) -> Iterator[None]:
        """Within this context, the model runs on this sample. Raises CannotTrimError."""
        if not self.is_on or not sample.rows_by_depth:
            yield
            return
        self._sample, self._called, self._running = sample, 0, 0
        try:
            yield
            if self.is_tried and self._called != len(sample.edges_by_depth):
                raise CannotTrimError
        finally:
            self._sample = None

    def _before(self, layer: nn.Module, positional: Any, named: Any) -> tuple[Any, Any] | None:
        if self._sample is None:
            return None
        self._running += 1
        if self._running > 1:  # a layer within a layer
            return None
        if is_recomputed(layer):
            raise CannotTrimError
        (above, read, below), edges = self._counts()
        whole = self._sample.edge_index

        def cut(name: str, value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim():
                return value
            if value is whole:
                return value[:, :edges]
            # A sample may have as many edges as rows: then the argument's name decides, as PyG's layers call them.
            is_of_edges = name.startswith("edge")
            if len(value) == whole.size(1) and (is_of_edges or len(value) != above):
                return value[:edges]
            if is_of_edges or len(value) != above:  # edges of the model's own making, or rows of another layer
                raise CannotTrimError
            return (value[:read], value[:below]) if layer in self._apart else value[:read]

        names = chain(self._arguments[layer], repeat(""))
        return tuple(map(cut, names, positional)), {name: cut(name, value) for name, value in named.items()}

    def _after(self, layer: nn.Module, _: Any, output: Any) -> Any:  # noqa: ARG002 - torch's signature
        if self._sample is None:
            return None
        self._running -= 1
        if self._running:
            return None
        (above, _, below), _ = self._counts()
        self._called += 1
        if not isinstance(output, Tensor):
            if self.way is not Way.EDGES:  # its rows are too few for the rest of the model
                raise CannotTrimError
            return None
        is_last = self._called == len(self._sample.edges_by_depth)
        if self.way is Way.FILLED or (self.way is Way.FILLED_TO_THE_END and not is_last):
            # With copies of a row, since a model may divide by zero where it has none: NaN times no gradient is NaN.
            return torch.cat([output[:below], output[:1].detach().expand(above - below, *output.shape[1:])])
        return output[:below]

    def _before_a_row_wise_part(self, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """After the last layer, such a part needs only the rows of the seeds."""
        if self._sample is None or self._running or self.way is not Way.FILLED_TO_THE_END:
            return None
        rows, seeds = self._sample.num_rows, self._sample.rows_by_depth[0]
        left = len(self._sample.edges_by_depth) - self._called

        def cut(value: Any) -> Any:
            if isinstance(value, list):
                return [*map(cut, value)]
            return value[:seeds] if isinstance(value, Tensor) and len(value) == rows else value

        return None if left else tuple(map(cut, given))

    def _counts(self) -> tuple[tuple[int, int, int], int]:
        """The rows that the running layer gets, those that it reads, and those that it computes; and its edges."""
        assert self._sample is not None
        left = len(self._sample.edges_by_depth) - self._called
        if left < 1:
            raise CannotTrimError
        rows, edges = [*accumulate(self._sample.rows_by_depth)], sum(self._sample.edges_by_depth[:left])
        if self.way is Way.EDGES:
            return (rows[-1], rows[-1], rows[-1]), edges
        return (rows[left] if self.way is Way.ROWS else rows[-1], rows[left], rows[left - 1]), edges

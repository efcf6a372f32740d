"""Leaves out rows and edges on which no seed's output depends, in models that know nothing of it.

In a sample of L hops, the last of L layers needs the edges into the seeds alone, the one before those of two hops, and
so on. Hooks at PyG's layers cut what they get and give accordingly, as `trim_to_layer` would if the model called it;
layers that accept it also get their targets' rows apart from the sources', `conv((x, x[:n]), edge_index)`. Whether a
model allows that is tried on a sample: its outputs must stay the same.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from clusterctl.shared.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.engine.graph.subgraphs import Subgraph


class CannotTrimError(Exception):
    """A layer gets something else than rows and edges of the sample, or there is not one layer for each hop."""


class Trimming:
    """Cuts samples in the layers of `model`, once `try_on` has found that this is possible."""

    def __init__(self, model: nn.Module) -> None:
        from torch_geometric.nn import MessagePassing  # late: models made of its layers have imported it

        self.is_on = False
        self._cuts_rows = False  # else edges only, since the model uses the outputs of several layers together
        self._apart: set[nn.Module] = set()  # the layers that get the targets' rows apart
        self._sample: Subgraph | None = None
        self.is_tried, self._called, self._running = False, 0, 0
        # A norm over the rows would see fewer of them in training. Hooks are not called in compiled models.
        cannot = hasattr(model, "_orig_mod") or any(isinstance(part, _NormBase) for part in model.modules())
        self._layers = [] if cannot else [part for part in model.modules() if isinstance(part, MessagePassing)]
        for layer in self._layers:
            layer.register_forward_pre_hook(self._before, with_kwargs=True)
            layer.register_forward_hook(self._after)

    def try_on(self, is_same: Callable[[], bool]) -> None:
        """Switch on what leaves the outputs of a sample as they are, which `is_same` tells."""
        if not self._layers:
            return

        def works() -> bool:
            try:
                return is_same()
            except TaskError:
                return False

        self.is_tried = self.is_on = self._cuts_rows = True
        self._cuts_rows = works()
        self.is_on = self._cuts_rows or works()
        for layer in self._layers if self._cuts_rows else ():
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
        (above, below), edges = self._counts()
        whole = self._sample.edge_index

        def cut(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.dim():
                return value
            if value is whole:
                return value[:, :edges]
            if len(value) == whole.size(1) != above:
                return value[:edges]
            if len(value) != above:  # edges of the model's own making, or rows of another layer
                raise CannotTrimError
            return (value, value[:below]) if layer in self._apart else value

        return tuple(map(cut, positional)), {name: cut(value) for name, value in named.items()}

    def _after(self, layer: nn.Module, _: Any, output: Any) -> Any:  # noqa: ARG002 - torch's signature
        if self._sample is None:
            return None
        self._running -= 1
        if self._running:
            return None
        (_, below), _ = self._counts()
        self._called += 1
        return output[:below] if isinstance(output, Tensor) else None

    def _counts(self) -> tuple[tuple[int, int], int]:
        """The rows that the running layer gets and gives, and its edges."""
        assert self._sample is not None
        left = len(self._sample.edges_by_depth) - self._called
        if left < 1:
            raise CannotTrimError
        rows, edges = [*accumulate(self._sample.rows_by_depth)], sum(self._sample.edges_by_depth[:left])
        return (rows[left], rows[left - 1]) if self._cuts_rows else (rows[-1], rows[-1]), edges

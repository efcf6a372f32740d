"""Adam for one vector, and for the rows of a table that is sharded over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.graph.transfer import moved
from clusterctl.training.adam_step import adam_step
from clusterctl.training.state import PartState, Sharded

if TYPE_CHECKING:
    from clusterctl.graph.sharded_table import ShardedTable

_NUMBERS_AT_ONCE = 1 << 20  # of a table on the CPU, to fit in its caches; on a GPU, chunking would synchronize


class Adam:
    """Adam (Kingma and Ba, 2015) with L2 weight decay, like torch.optim.Adam with its default betas.

    torch.optim imports torch's compiler, which delays the start of every rank by 1.8 s (torch 2.13). This class calls
    the same kernel on a flat vector of parameters.
    """

    def __init__(self, values: Tensor, gradients: Tensor, lr: float, weight_decay: float) -> None:
        self._values, self._gradients = values, gradients
        self._lr, self._weight_decay = lr, weight_decay
        self._steps = 0
        self._mean = torch.zeros_like(values)
        self._square = torch.zeros_like(values)
        self._lr_and_step = torch.zeros(2, device=values.device)  # for `move`

    def state(self) -> PartState:
        return PartState({"mean": self._mean, "square": self._square, "steps": torch.tensor([self._steps])})

    def load(self, state: PartState) -> None:
        self._mean.copy_(state.same["mean"])
        self._square.copy_(state.same["square"])
        self._steps = int(state.same["steps"])

    def step(self, lr_scale: float = 1.0) -> None:
        """Update the values, with the learning rate scaled by `lr_scale`."""
        self._steps += 1
        lr = lr_scale * self._lr
        adam_step(self._values, self._gradients, self._mean, self._square, lr, self._weight_decay, self._steps)

    def advance(self, lr_scale: float) -> None:
        """The first half of a `step` whose second half, `move`, may be a CUDA graph."""
        self._steps += 1
        (lr_and_step,) = moved([torch.tensor([lr_scale * self._lr, self._steps])], self._values.device)
        self._lr_and_step.copy_(lr_and_step)

    def move(self) -> None:
        """The second half of a `step`. Rounds the learning rate to float32."""
        lr, steps = self._lr_and_step
        adam_step(self._values, self._gradients, self._mean, self._square, lr, self._weight_decay, steps)


class TableAdam:
    """Adam for a table in which only a few rows have gradients.

    In Adam, rows without a gradient keep moving along their running means, so every step updates every row. If the
    table is lazy, rows without a gradient and their means do not change, as in torch.optim.SparseAdam. That is faster,
    but a different optimizer.
    """

    def __init__(self, table: ShardedTable, lr: float, weight_decay: float) -> None:
        self._table, self._lr, self._weight_decay = table, lr, weight_decay
        self._steps = 0
        self._mean = torch.zeros_like(table.rows)
        self._square = torch.zeros_like(table.rows)
        self.gradients = table.rows.new_empty(0)
        self._touched = torch.empty(0, dtype=torch.int64, device=table.rows.device)

    def state(self) -> PartState:
        """The table's rows and their running means, sharded over the ranks."""
        parts = {"rows": self._table.rows, "mean": self._mean, "square": self._square}
        sharded = {name: Sharded(part, self._table.start, self._table.total) for name, part in parts.items()}
        return PartState({"steps": torch.tensor([self._steps])}, sharded)

    def load(self, state: PartState) -> None:
        self._table.rows.copy_(state.sharded["rows"].rows)
        self._mean.copy_(state.sharded["mean"].rows)
        self._square.copy_(state.sharded["square"].rows)
        self._steps = int(state.same["steps"])

    def collect(self) -> None:
        """Collect the gradients of the step. A collective."""
        self._touched, self.gradients = self._table.collect()

    @torch.no_grad()
    def step(self, lr_scale: float = 1.0) -> None:
        """Update the rows, with the learning rate scaled by `lr_scale`."""
        self._steps += 1
        if self._table.lazy:
            self._move_touched(lr_scale * self._lr)
        else:
            self._move_all(lr_scale * self._lr)

    def _move_touched(self, lr: float) -> None:
        places = (self._table.rows, self._mean, self._square)
        rows, mean, square = (place[self._touched] for place in places)
        adam_step(rows, self.gradients, mean, square, lr, self._weight_decay, self._steps)
        for place, new in zip(places, (rows, mean, square), strict=True):
            place[self._touched] = new

    def _move_all(self, lr: float) -> None:
        table, (touched, order) = self._table.rows, self._touched.sort()
        is_whole = table.is_cuda or table.numel() <= _NUMBERS_AT_ONCE
        at_once = max(1, table.size(0) if is_whole else _NUMBERS_AT_ONCE // table.size(1))
        cuts = [0, touched.numel()]
        if not is_whole:
            starts = torch.arange(0, table.size(0) + at_once, at_once)
            cuts = torch.searchsorted(touched, starts).tolist()
        gradients = table.new_empty(min(at_once, table.size(0)), table.size(1))
        for first, begin, end in zip(range(0, table.size(0), at_once), cuts, cuts[1:], strict=False):
            rows, mean, square = (place[first : first + at_once] for place in (table, self._mean, self._square))
            given = self.gradients.index_select(0, order[begin:end])
            gradients.zero_().index_copy_(0, touched[begin:end] - first, given)
            adam_step(rows, gradients[: rows.size(0)], mean, square, lr, self._weight_decay, self._steps)

"""Adam on one vector, and on the rows of a table that is split over the ranks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.training.state import PartState, Sharded

if TYPE_CHECKING:
    from clusterctl.graph.sharded_table import ShardedTable

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_NUMBERS_AT_ONCE = (1 << 15) - 1  # of a table: they stay in the cache, and torch calls its other threads for more
_PARTS_WORTH_THREADS = 8


class Adam:
    """Adam (Kingma and Ba, 2015) with L2 weight decay, as torch.optim.Adam with its default betas.

    torch.optim imports torch's compiler, which costs every rank 1.8 s at its start (torch 2.13); this is the same
    arithmetic on a flat vector of parameters.
    """

    def __init__(self, values: Tensor, gradients: Tensor, lr: float, weight_decay: float) -> None:
        self._values, self._gradients = values, gradients
        self._lr, self._weight_decay = lr, weight_decay
        self._steps = 0
        self._mean = torch.zeros_like(values)
        self._square = torch.zeros_like(values)

    def state(self) -> PartState:
        return PartState({"mean": self._mean, "square": self._square, "steps": torch.tensor([self._steps])})

    def load(self, state: PartState) -> None:
        self._mean.copy_(state.same["mean"])
        self._square.copy_(state.same["square"])
        self._steps = int(state.same["steps"])

    @torch.no_grad()
    def step(self, lr_scale: float = 1.0) -> None:
        """Move the values against the gradients, by `lr_scale` of the learning rate."""
        self._steps += 1
        gradients = self._gradients.add(self._values, alpha=self._weight_decay)
        _move(self._values, gradients, self._mean, self._square, lr_scale * self._lr, self._steps)


class TableAdam:
    """Adam for a table in which only a few rows have gradients.

    A row without a gradient moves too, along its means, and so it does here: every row in every step, a few hundred at
    a time on a CPU. Where the table is lazy, rows and means without a gradient stay as they are, as in
    torch.optim.SparseAdam, which is another optimiser and faster.
    """

    def __init__(self, table: ShardedTable, lr: float, weight_decay: float) -> None:
        self._table, self._lr, self._weight_decay = table, lr, weight_decay
        self._steps = 0
        self._mean = torch.zeros_like(table.rows)
        self._square = torch.zeros_like(table.rows)
        self.gradients = table.rows.new_empty(0)
        self._touched = torch.empty(0, dtype=torch.int64, device=table.rows.device)

    def state(self) -> PartState:
        """The table's rows with their means, of which each rank has its part."""
        parts = {"rows": self._table.rows, "mean": self._mean, "square": self._square}
        sharded = {name: Sharded(part, self._table.start, self._table.total) for name, part in parts.items()}
        return PartState({"steps": torch.tensor([self._steps])}, sharded)

    def load(self, state: PartState) -> None:
        self._table.rows.copy_(state.sharded["rows"].rows)
        self._mean.copy_(state.sharded["mean"].rows)
        self._square.copy_(state.sharded["square"].rows)
        self._steps = int(state.same["steps"])

    def collect(self) -> None:
        """Take the gradients of the step. A collective."""
        self._touched, self.gradients = self._table.collect()

    @torch.no_grad()
    def step(self, lr_scale: float = 1.0) -> None:
        """Move the rows against the gradients, by `lr_scale` of the learning rate."""
        self._steps += 1
        if self._table.lazy:
            self._move_touched(lr_scale * self._lr)
        else:
            self._move_all(lr_scale * self._lr)

    def _move_touched(self, lr: float) -> None:
        places = (self._table.rows, self._mean, self._square)
        rows, mean, square = (place[self._touched] for place in places)
        _move(rows, self.gradients.add(rows, alpha=self._weight_decay), mean, square, lr, self._steps)
        for place, moved in zip(places, (rows, mean, square), strict=True):
            place[self._touched] = moved

    def _move_all(self, lr: float) -> None:
        table, order = self._table.rows, self._touched.argsort()
        touched, given = self._touched[order], self.gradients.index_select(0, order)
        at_once = max(1, _NUMBERS_AT_ONCE // table.size(1)) if table.device.type == "cpu" else max(1, table.size(0))
        starts = range(0, table.size(0), at_once)
        cuts = torch.searchsorted(
            touched, torch.arange(0, table.size(0) + at_once, at_once, device=touched.device)
        ).tolist()

        @torch.no_grad()
        def move(part: int) -> None:
            first, own = starts[part], slice(cuts[part], cuts[part + 1])
            rows, mean, square = (place[first : first + at_once] for place in (table, self._mean, self._square))
            here, gradients = touched[own] - first, given[own]
            if self._weight_decay:
                everywhere = rows * self._weight_decay
                everywhere[here] += gradients
                _remember(everywhere, mean, square)
            else:
                mean.mul_(_BETA1)[here] += gradients * (1 - _BETA1)
                square.mul_(_BETA2)[here] += gradients * gradients * (1 - _BETA2)
            _descend(rows, mean, square, lr, self._steps)

        if len(starts) < _PARTS_WORTH_THREADS:
            for part in range(len(starts)):
                move(part)
            return
        with ThreadPoolExecutor(torch.get_num_threads(), "rows") as pool:
            for _ in pool.map(move, range(len(starts))):
                pass


def _move(values: Tensor, gradients: Tensor, mean: Tensor, square: Tensor, lr: float, steps: int) -> None:
    """Step number `steps`, in place."""
    _remember(gradients, mean, square)
    _descend(values, mean, square, lr, steps)


def _remember(gradients: Tensor, mean: Tensor, square: Tensor) -> None:
    mean.lerp_(gradients, 1 - _BETA1)
    square.mul_(_BETA2).addcmul_(gradients, gradients, value=1 - _BETA2)


def _descend(values: Tensor, mean: Tensor, square: Tensor, lr: float, steps: int) -> None:
    scale = (1 - _BETA2**steps) ** 0.5  # of the root of the square; taken out of the division for one pass less
    step_size = lr * scale / (1 - _BETA1**steps)
    values.addcdiv_(mean, square.sqrt().add_(_EPSILON * scale), value=-step_size)

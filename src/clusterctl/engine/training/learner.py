"""One training step: the parameters, their optimizers (Adam), and the update from a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.sharded_table import ShardedTable
from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.progress import QueuedStep
from clusterctl.engine.training.state import PartState, Sharded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Objective
    from clusterctl.engine.training.state import Stateful
    from clusterctl.shared.spec import LoopTrain


class Learner:
    """The trained state: all parameters in one vector, the rows of sharded tables, and an optimizer for each."""

    def __init__(self, objective: Objective[Any], train: LoopTrain, task: Task) -> None:
        self.objective = objective
        self.flat = FlatModel(objective.model, task.clock, task.events.heart)
        self.flat.broadcast()
        self.optimizer = Adam(self.flat.values, self.flat.gradients, train.lr, train.weight_decay)
        self.tables = [module for module in objective.model.modules() if isinstance(module, ShardedTable)]
        self.table_optimizers = [TableAdam(table, train.lr, train.weight_decay) for table in self.tables]
        self.clock, self.stop = task.clock, task.stop
        self._max_norm = train.clip_norm

    def train_step(self, batch: Batch, prepared: Any, lr_scale: float, checkpoint_due: bool) -> QueuedStep:
        """Train on one batch: forward, backward, all-reduce, clip, update. A collective.

        The reading is the mean loss over the seeds of all ranks, and whether any rank was asked to stop.
        """
        self.clock.enter("compute", "forward")
        reading = self.flat.backward(self.objective.loss(batch, prepared), self.stop, checkpoint_due)
        for table_optimizer in self.table_optimizers:
            table_optimizer.collect()
        lap = self.clock.lap("compute", "optimizer")
        self.clip()
        self.optimizer.step(lr_scale)
        for table_optimizer in self.table_optimizers:
            table_optimizer.step(lr_scale)
        return QueuedStep(reading, lap)

    def clip(self) -> None:
        """Bound the norm of all gradients by `train.clip_norm`, if it is set. A collective if there are tables."""
        if self._max_norm:
            clip_norm(self.flat.gradients, self._max_norm, [table.gradients for table in self.table_optimizers])

    def parts(self) -> dict[str, Stateful]:
        """The parts that a checkpoint saves, by name."""
        parts: dict[str, Stateful] = {"model": self.flat, "optimizer": self.optimizer}
        parts |= {f"table{number}": optimizer for number, optimizer in enumerate(self.table_optimizers)}
        own_training = self.objective.own_training
        return parts | ({"objective": own_training} if own_training else {})


def clip_norm(gradients: Tensor, bound: float, sharded: Sequence[Tensor] = ()) -> None:
    """Scale the gradients of all parameters together to a Euclidean norm of at most `bound`.

    For `sharded` gradients every rank has its own rows; with any of them, this is a collective.
    """
    square = gradients.square().sum()
    if sharded:
        own = torch.stack([rows.square().sum() for rows in sharded]).sum()
        dist.all_reduce(own)
        square = square + own
    factor = (bound / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for part in (gradients, *sharded):
        part.mul_(factor)


# Adam for one vector, and for the rows of a table that is sharded over the ranks.


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
        lr = lr_scale * self._lr
        if self._table.lazy:
            places = (self._table.rows, self._mean, self._square)
            rows, mean, square = (place[self._touched] for place in places)
            adam_step(rows, self.gradients, mean, square, lr, self._weight_decay, self._steps)
            for place, new in zip(places, (rows, mean, square), strict=True):
                place[self._touched] = new
            return
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


# One in-place Adam step on a tensor: torch's fused kernel if available, otherwise the same arithmetic.


_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8
_ARGUMENTS = (
    *("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    *("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize", "grad_scale", "found_inf"),
)


def _kernel_is_known() -> bool:
    """Whether this torch has the kernel, with the arguments that `adam_step` passes (torch 2.6 to 2.13 do)."""
    schemas = torch._C._jit_get_schemas_for_operator("aten::_fused_adam_")  # noqa: SLF001 - there is no public API
    known = [tuple(part.name for part in schema.arguments) for schema in schemas if not schema.overload_name]
    return known == [_ARGUMENTS]


FUSED = _kernel_is_known()


@torch.no_grad()
def adam_step(
    values: Tensor,
    gradients: Tensor,
    mean: Tensor,
    square: Tensor,
    lr: float | Tensor,
    weight_decay: float,
    steps: int | Tensor,
) -> None:
    """Step number `steps` (from 1) of Adam (Kingma and Ba, 2015) with L2 weight decay and torch's default betas.

    All tensors have one shape, dtype (float32 or float64) and device. `values` and their moments `mean` and `square`
    are contiguous and updated in place; the gradients do not change. If FUSED, `lr` and `steps` may be 0-dimensional
    float32 tensors.
    """
    if not FUSED:
        lr, steps = float(lr), int(steps)
        if weight_decay:
            gradients = gradients.add(values, alpha=weight_decay)
        mean.lerp_(gradients, 1 - _BETA1)
        square.mul_(_BETA2).addcmul_(gradients, gradients, value=1 - _BETA2)
        scale = (1 - _BETA2**steps) ** 0.5  # of the root of the square; factored out of the division to save a pass
        step_size = lr * scale / (1 - _BETA1**steps)
        values.addcdiv_(mean, square.sqrt().add_(_EPSILON * scale), value=-step_size)
        return
    if isinstance(steps, torch.Tensor):
        count = steps
    else:
        count = torch.full((), steps, dtype=torch.float32, device=values.device)
    torch._fused_adam_(
        [values], [gradients.contiguous()], [mean], [square], [], [count],
        lr=cast("float", lr), beta1=_BETA1, beta2=_BETA2, weight_decay=weight_decay, eps=_EPSILON,
        amsgrad=False, maximize=False,
    )  # fmt: skip

"""One training step: the parameters, their optimizers, and the update from a batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.embeddings import ShardedTable
from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.optimizer import OwnOptimizer, RunningMean
from clusterctl.engine.training.progress import QueuedStep
from clusterctl.engine.training.state import PartState, Sharded
from clusterctl.shared.spec import OPTIMIZERS, AdamOptions, Learning, SgdOptions, from_record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from torch import nn

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
        self.optimizer = optimizer_of(objective.model, self.flat, train)
        left_out = getattr(self.optimizer, "left_out", ())
        if left_out and task.place.rank == 0:
            print(f"train.optimizer leaves out, so nothing changes: {', '.join(left_out)}", flush=True)
        decay = train.ema if isinstance(train, Learning) else 0.0
        self.mean = RunningMean(self.flat.values, decay) if decay else None
        self.tables = [module for module in objective.model.modules() if isinstance(module, ShardedTable)]
        self.table_optimizers = [TableAdam(table, train.lr, train.weight_decay) for table in self.tables]
        self.clock, self.stop = task.clock, task.stop
        self._max_norm = train.clip_norm
        self._has_part = False  # of the gradients of a step

    @property
    def measured(self) -> Tensor:
        """The weights to evaluate and keep: their running mean, if there is one."""
        return self.mean.mean if self.mean else self.flat.values

    def evaluating(self) -> AbstractContextManager[None]:
        """The model has the `measured` weights within this context."""
        return self.mean.in_place() if self.mean else nullcontext()

    def add(self, batch: Batch, prepared: Any) -> None:
        """Add the gradients of a part of a step to those of the parts before it."""
        self.clock.enter("compute", "forward")
        loss = self.objective.loss(batch, prepared)
        self.clock.enter("compute", "backward")
        self.flat.differentiate(loss, further=self._has_part)
        self._has_part = True

    def train_step(self, batch: Batch, prepared: Any, lr_scale: float, checkpoint_due: bool) -> QueuedStep:
        """Train on one batch, or on the last part of one: forward, backward, all-reduce, clip, update. A collective.

        The reading is the mean loss over the seeds of all ranks, and whether any rank was asked to stop.
        """
        self.clock.enter("compute", "forward")
        loss = self.objective.loss(batch, prepared)
        reading = self.flat.backward(loss, self.stop, checkpoint_due, further=self._has_part)
        self._has_part = False
        for table_optimizer in self.table_optimizers:
            table_optimizer.collect()
        lap = self.clock.lap("compute", "optimizer")
        self.clip()
        self.optimizer.step(lr_scale)
        for table_optimizer in self.table_optimizers:
            table_optimizer.step(lr_scale)
        if self.mean:
            self.mean.update()
        return QueuedStep(reading, lap)

    def clip(self) -> None:
        """Bound the norm of all gradients by `train.clip_norm`, if it is set. A collective if there are tables."""
        if self._max_norm:
            clip_norm(self.flat.gradients, self._max_norm, [table.gradients for table in self.table_optimizers])

    def parts(self) -> dict[str, Stateful]:
        """The parts that a checkpoint saves, by name."""
        parts: dict[str, Stateful] = {"model": self.flat, "optimizer": self.optimizer}
        parts |= {f"table{number}": optimizer for number, optimizer in enumerate(self.table_optimizers)}
        if self.mean:
            parts["mean"] = self.mean
        own_training = self.objective.own_training
        return parts | ({"objective": own_training} if own_training else {})


def clip_norm(gradients: Tensor, bound: float, sharded: Sequence[Tensor] = ()) -> None:
    """Scale the gradients of all parameters together to a Euclidean norm of at most `bound`.

    For `sharded` gradients every rank has its own rows; with any of them, this is a collective.
    """
    square = gradients.square().sum()  # the same on all ranks, as these gradients are their sum already
    if sharded:
        own = torch.stack([rows.square().sum() for rows in sharded]).sum()
        dist.all_reduce(own)
        square = square + own
    factor = (bound / (square.sqrt() + 1e-6)).clamp(max=1.0)  # as in torch.nn.utils.clip_grad_norm_
    for part in (gradients, *sharded):
        part.mul_(factor)


# Optimizers of one vector, and Adam for the rows of a table that is sharded over the ranks.


def optimizer_of(model: nn.Module, flat: FlatModel, train: LoopTrain) -> Adam | Sgd | OwnOptimizer:
    """The optimizer `train.optimizer` of the parameters of `model`, which are in `flat`. Raises TaskError."""
    if not isinstance(train, Learning):
        return Adam(flat.values, flat.gradients, train.lr, train.weight_decay)
    if ":" in train.optimizer:
        scaled = train.schedule != "constant" or train.warmup > 0
        return OwnOptimizer(model, train.optimizer, train.optimizer_options, train.seed, scaled=scaled)
    options: Any = from_record(OPTIMIZERS[train.optimizer], train.optimizer_options)
    if isinstance(options, SgdOptions):
        return Sgd(flat.values, flat.gradients, train.lr, train.weight_decay, options)
    is_decoupled = train.optimizer == "adamw"
    return Adam(flat.values, flat.gradients, train.lr, train.weight_decay, options, decoupled=is_decoupled)


class Sgd:
    """Stochastic gradient descent with L2 weight decay, like torch.optim.SGD."""

    def __init__(self, values: Tensor, gradients: Tensor, lr: float, weight_decay: float, options: SgdOptions) -> None:
        self._values, self._gradients = values, gradients
        self._lr, self._weight_decay, self._options = lr, weight_decay, options
        self._momentum = torch.zeros_like(values if options.momentum else values[:0])

    def state(self) -> PartState:
        return PartState({"momentum": self._momentum} if self._options.momentum else {})

    def load(self, state: PartState) -> None:
        if self._options.momentum:
            self._momentum.copy_(state.same["momentum"])

    @torch.no_grad()
    def step(self, lr_scale: float = 1.0) -> None:
        """Update the values, with the learning rate scaled by `lr_scale`."""
        change, momentum = self._gradients, self._options.momentum
        if self._weight_decay:
            change = change.add(self._values, alpha=self._weight_decay)
        if momentum:
            self._momentum.mul_(momentum).add_(change)
            change = change.add(self._momentum, alpha=momentum) if self._options.nesterov else self._momentum
        self._values.add_(change, alpha=-lr_scale * self._lr)


_DEFAULTS = AdamOptions()
_NUMBERS_AT_ONCE = 1 << 20  # of a table on the CPU, to fit in its caches; on a GPU, chunking would synchronize


class Adam:
    """Adam (Kingma and Ba, 2015) with L2 weight decay, like torch.optim.Adam; `decoupled`, like torch.optim.AdamW.

    torch.optim imports torch's compiler, which delays the start of every rank by 1.8 s (torch 2.13). This class calls
    the same kernel on a flat vector of parameters.
    """

    def __init__(
        self,
        values: Tensor,
        gradients: Tensor,
        lr: float,
        weight_decay: float,
        options: AdamOptions = _DEFAULTS,
        *,
        decoupled: bool = False,
    ) -> None:
        self._values, self._gradients = values, gradients
        self._lr, self._weight_decay = lr, weight_decay
        self._options, self._is_decoupled = options, decoupled
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
        lr, weight_decay = lr_scale * self._lr, self._weight_decay
        if self._is_decoupled:
            self._values.mul_(1 - lr * weight_decay)
            weight_decay = 0.0
        moments = self._mean, self._square
        adam_step(self._values, self._gradients, *moments, lr, weight_decay, self._steps, self._options)

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


_ARGUMENTS = (
    *("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"),
    *("lr", "beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize", "grad_scale", "found_inf"),
)


# Whether this torch has the kernel, with the arguments that `adam_step` passes (torch 2.6 to 2.13 do).
_SCHEMAS = torch._C._jit_get_schemas_for_operator("aten::_fused_adam_")  # noqa: SLF001 - there is no public API
FUSED = [tuple(part.name for part in one.arguments) for one in _SCHEMAS if not one.overload_name] == [_ARGUMENTS]


@torch.no_grad()
def adam_step(
    values: Tensor,
    gradients: Tensor,
    mean: Tensor,
    square: Tensor,
    lr: float | Tensor,
    weight_decay: float,
    steps: int | Tensor,
    options: AdamOptions = _DEFAULTS,
) -> None:
    """Step number `steps` (from 1) of Adam (Kingma and Ba, 2015) with L2 weight decay.

    All tensors have one shape, dtype (float32 or float64) and device. `values` and their moments `mean` and `square`
    are contiguous and updated in place; the gradients do not change. If FUSED, `lr` and `steps` may be 0-dimensional
    float32 tensors.
    """
    beta1, beta2, epsilon = options.beta1, options.beta2, options.eps
    if not FUSED:
        lr, steps = float(lr), int(steps)
        if weight_decay:
            gradients = gradients.add(values, alpha=weight_decay)
        mean.lerp_(gradients, 1 - beta1)
        square.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        scale = (1 - beta2**steps) ** 0.5  # of the root of the square; factored out of the division to save a pass
        step_size = lr * scale / (1 - beta1**steps)
        values.addcdiv_(mean, square.sqrt().add_(epsilon * scale), value=-step_size)
        return
    if isinstance(steps, torch.Tensor):
        count = steps
    else:
        count = torch.full((), steps, dtype=torch.float32, device=values.device)
    torch._fused_adam_(
        [values], [gradients.contiguous()], [mean], [square], [], [count],
        lr=cast("float", lr), beta1=beta1, beta2=beta2, weight_decay=weight_decay, eps=epsilon,
        amsgrad=False, maximize=False,
    )  # fmt: skip

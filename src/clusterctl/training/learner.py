"""One training step: the parameters, their optimizers, and the update from a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from clusterctl.graph.sharded_table import ShardedTable
from clusterctl.training.adam import Adam, TableAdam
from clusterctl.training.flat import FlatModel
from clusterctl.training.progress import QueuedStep
from clusterctl.training.state import Stateful

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from clusterctl.spec import LoopTrain
    from clusterctl.task.task import Task
    from clusterctl.training.epoch_plan import Batch
    from clusterctl.training.objective import Objective


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
        return parts | ({"objective": self.objective} if isinstance(self.objective, Stateful) else {})


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

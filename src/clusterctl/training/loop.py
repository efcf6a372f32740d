"""Training: epochs of steps, exact evaluation in between, the same numbers for any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.errors import TaskError
from clusterctl.graph.table import ShardedTable
from clusterctl.runs.signals import EXIT_TERMINATED
from clusterctl.runs.stages import Stage
from clusterctl.training.adam import Adam, TableAdam
from clusterctl.training.epoch_plan import EpochPlan
from clusterctl.training.flat import FlatModel
from clusterctl.training.prefetch import prefetched
from clusterctl.training.progress import Fold, Progress
from clusterctl.training.schedule import clip_norm, rate
from clusterctl.training.selection import Best

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.spec import LoopTrain
    from clusterctl.task.task import Task
    from clusterctl.training.objective import Objective, Score


def fit(objective: Objective[Any], train: LoopTrain, task: Task, fold: Fold | None = None) -> Score:
    """Train for `train.epochs` epochs; the score on the test split, evaluated once, at the end.

    With `train.patience`, training ends when the validation score no longer rises, and the best weights are tested.
    """
    plan = EpochPlan(objective.seeds, train.batch_size, train.seed, task.place.rank, task.place.world_size)
    if plan.steps == 0:
        raise TaskError("the training split is empty")
    flat = FlatModel(objective.model)
    flat.broadcast()
    optimizer = Adam(flat.values, flat.gradients, train.lr, train.weight_decay)
    tables = [module for module in objective.model.modules() if isinstance(module, ShardedTable)]
    movers = [TableAdam(table, train.lr, train.weight_decay) for table in tables]
    best = Best([flat.values, *(table.rows for table in tables)], train.patience)
    progress = Progress(task, train, plan.steps, objective.unit, fold)
    warned = False

    for epoch in range(1, train.epochs + 1):
        progress.epoch(epoch)
        epoch_loss = 0.0
        objective.model.train()
        for batch, prepared in prefetched(plan.batches(epoch), objective.prepare):
            loss, stop = flat.backward(objective.loss(batch, prepared), task.stop)
            for mover in movers:
                mover.collect()
            if train.clip_norm:
                clip_norm(flat.gradients, train.clip_norm, [mover.gradients for mover in movers])
            done = (epoch - 1) * plan.steps + batch.step
            now = rate(train.schedule, train.warmup, done, train.epochs * plan.steps)
            optimizer.step(now)
            for mover in movers:
                mover.step(now)
            progress.step(loss)
            epoch_loss += loss * batch.total / plan.seeds.numel()
            if stop.terminated:
                raise SystemExit(EXIT_TERMINATED)
            if stop.warned and not warned:
                warned = True
                task.events.stage(Stage.TRAINING, epoch=epoch, warned=True)

        scores: Mapping[str, Score] = {}
        last = epoch == train.epochs
        if last or (train.evaluate_every and epoch % train.evaluate_every == 0):
            scores = _evaluated(objective, ("val", "test") if last and not train.patience else ("val",), progress)
        progress.tell(f"epoch {epoch}/{train.epochs}  loss {epoch_loss:.4f}", scores)
        if train.patience and scores and best.offer(scores["val"]):
            break

    if train.patience:
        best.restore()
        scores = _evaluated(objective, ("val", "test"), progress)
        progress.tell("best weights", scores)
    return scores["test"]


def _evaluated(objective: Objective[Any], splits: Sequence[str], progress: Progress) -> Mapping[str, Score]:
    progress.evaluating()
    objective.model.eval()
    scores = objective.evaluate(splits)
    progress.scores(scores)
    return scores

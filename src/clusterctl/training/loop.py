"""Training: epochs of steps, exact evaluation in between, the same numbers for any number of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.table import ShardedTable, whole_weights
from clusterctl.training.adam import Adam, TableAdam
from clusterctl.training.checkpoint import Checkpoints
from clusterctl.training.epoch_plan import EpochPlan
from clusterctl.training.flat import FlatModel
from clusterctl.training.prefetch import prefetched
from clusterctl.training.progress import Fold, Progress
from clusterctl.training.schedule import clip_norm, rate
from clusterctl.training.selection import Best
from clusterctl.training.state import Stateful
from clusterctl.training.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.spec import LoopTrain
    from clusterctl.task.task import Task
    from clusterctl.training.objective import Objective, Score


def fit(
    objective: Objective[Any],
    train: LoopTrain,
    task: Task,
    fold: Fold | None = None,
    checkpoints: Checkpoints | None = None,
) -> Score:
    """Train for `train.epochs` epochs; the score on the test split, evaluated once, at the end.

    With `train.patience`, training ends when the validation score no longer rises, and the best weights are tested.
    A run that was interrupted goes on from its last checkpoint. Folds share theirs: give all the same `checkpoints`.
    """
    plan = EpochPlan(objective.seeds, train.batch_size, train.seed, task.place.rank, task.place.world_size)
    if plan.steps == 0:
        raise TaskError("the training split is empty", cause=Cause.DATA)
    clock = task.clock
    flat = FlatModel(objective.model, clock, task.events.heart)
    flat.broadcast()
    optimizer = Adam(flat.values, flat.gradients, train.lr, train.weight_decay)
    tables = [module for module in objective.model.modules() if isinstance(module, ShardedTable)]
    movers = [TableAdam(table, train.lr, train.weight_decay) for table in tables]
    best = Best(flat.values, train.patience, tables)
    saved = checkpoints or Checkpoints(task, train)
    progress = Progress(task, train, plan.steps, objective, fold, saved.metrics)
    parts: dict[str, Stateful] = {"model": flat, "optimizer": optimizer, "best": best}
    parts |= {f"table{number}": mover for number, mover in enumerate(movers)}
    if isinstance(objective, Stateful):
        parts["objective"] = objective
    at = saved.restore(parts, fold.number if fold else 1)
    if at.epoch > train.epochs:  # it was resumed with fewer
        at = at._replace(epoch=train.epochs, seeds=plan.seeds.numel())
    if at.step:
        progress.resume(at.epoch, plan.steps_after(at.seeds), saved.metrics)

    left = (train.epochs + 1 - at.epoch) * plan.steps - plan.steps_after(at.seeds)
    trace = Trace(task, train.profile, progress.steps_done, left)
    prepare = trace.named("sample", objective.prepare)

    for epoch in range(at.epoch, train.epochs + 1):
        progress.epoch(epoch)
        objective.model.train()
        clock.restart("sampling")
        batches = prefetched(plan.batches(epoch, at.seeds), prepare)
        for batch, prepared in trace.steps(batches, plan.steps - plan.steps_after(at.seeds)):
            clock.enter("compute", "forward")
            loss, stop = flat.backward(objective.loss(batch, prepared), task.stop, saved.due)
            for mover in movers:
                mover.collect()
            seconds = clock.lap("compute", "optimizer")
            if train.clip_norm:
                clip_norm(flat.gradients, train.clip_norm, [mover.gradients for mover in movers])
            done = (epoch - 1) * plan.steps + batch.step
            now = rate(train.schedule, train.warmup, done, train.epochs * plan.steps)
            optimizer.step(now)
            for mover in movers:
                mover.step(now)
            progress.step(loss, seconds)
            so_far = at.loss + loss * batch.total / plan.seeds.numel()
            at = at._replace(seeds=at.seeds + batch.total, step=progress.steps_done, loss=so_far)
            saved.boundary(stop, at, parts)
            clock.enter("sampling")

        scores: Mapping[str, Score] = {}
        last = epoch == train.epochs
        if last or (train.evaluate_every and epoch % train.evaluate_every == 0):
            scores = _evaluated(objective, ("val", "test") if last and not train.patience else ("val",), progress)
        progress.tell(f"epoch {epoch}/{train.epochs}  loss {at.loss:.4f}", scores)
        if train.patience and scores and best.offer(scores["val"]):
            break
        at = at._replace(epoch=epoch + 1, seeds=0, loss=0.0)
        if scores and not last:  # an evaluation may take long: whoever was asked to stop in it is heard now
            saved.boundary(flat.agree(task.stop, saved.due), at, parts)

    if train.patience:
        best.restore()
        scores = _evaluated(objective, ("val", "test"), progress)
        progress.tell("best weights", scores)
    trace.close()
    saved.finish()
    if fold is None:
        saved.keep_weights(whole_weights(objective.model))
    return scores["test"]


def _evaluated(objective: Objective[Any], splits: Sequence[str], progress: Progress) -> Mapping[str, Score]:
    progress.evaluating()
    objective.model.eval()
    scores = objective.evaluate(splits)
    progress.scores(scores)
    return scores

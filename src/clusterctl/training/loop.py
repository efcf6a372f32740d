"""Training: epochs of steps, exact evaluation in between, the same numbers for any number of ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterctl.errors import TaskError
from clusterctl.runs.signals import EXIT_TERMINATED
from clusterctl.runs.stages import Stage
from clusterctl.training.adam import Adam
from clusterctl.training.epoch_plan import EpochPlan
from clusterctl.training.flat import FlatModel

if TYPE_CHECKING:
    from clusterctl.spec import LoopTrain
    from clusterctl.task.task import Task
    from clusterctl.training.objective import Accuracy, Objective


def fit(objective: Objective, train: LoopTrain, task: Task) -> Accuracy:
    """Train for `train.epochs` epochs; the accuracy on the test split, evaluated once, at the end."""
    plan = EpochPlan(objective.seeds, train.batch_size, train.seed, task.place.rank, task.place.world_size)
    if plan.steps == 0:
        raise TaskError("the training split is empty")
    flat = FlatModel(objective.model)
    flat.broadcast()
    optimizer = Adam(flat.values, flat.gradients, train.lr, train.weight_decay)
    warned = False

    for epoch in range(1, train.epochs + 1):
        began, epoch_loss = time.monotonic(), 0.0
        progress = {"steps": train.epochs * plan.steps, "epoch": epoch, "epochs": train.epochs}
        task.events.stage(Stage.TRAINING, epoch=epoch)
        objective.model.train()
        for step, batch in enumerate(plan.batches(epoch), start=(epoch - 1) * plan.steps + 1):
            loss, stop = flat.backward(objective.loss(batch), task.stop)
            optimizer.step()
            task.metrics.write(step=step, **progress, loss=loss)
            epoch_loss += loss * batch.total / plan.seeds.numel()
            if stop.terminated:
                raise SystemExit(EXIT_TERMINATED)
            if stop.warned and not warned:
                warned = True
                task.events.stage(Stage.TRAINING, epoch=epoch, warned=True)

        scores: dict[str, Accuracy] = {}
        last = epoch == train.epochs
        if last or (train.evaluate_every and epoch % train.evaluate_every == 0):
            task.events.stage(Stage.EVALUATING, epoch=epoch)
            objective.model.eval()
            scores = objective.evaluate(("val", "test") if last else ("val",))
            task.metrics.write(step=epoch * plan.steps, **progress, **_named(scores))
        if task.place.rank == 0:
            told = "".join(f"  {split} accuracy {score.share:.4f}" for split, score in scores.items())
            seconds = time.monotonic() - began
            print(f"epoch {epoch}/{train.epochs}  loss {epoch_loss:.4f}{told}  {seconds:.2f} s", flush=True)

    return scores["test"]


def _named(scores: dict[str, Accuracy]) -> dict[str, float]:
    """The scores by the names of the metrics, without splits that have no nodes."""
    named: dict[str, float] = {f"{split}_accuracy": score.share for split, score in scores.items() if score.total}
    if "test" in scores:
        named["test_nodes"] = scores["test"].total
    return named

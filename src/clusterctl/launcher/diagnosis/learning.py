"""Whether a training is learning: a pure function of the trend of its loss and, if there is one, its score.

False alarms are worse than missed ones: the rule compares means of many steps and gives the training the benefit of
their uncertainty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.attempt import LEAST_STEPS
from clusterctl.shared.record.vocabulary import number
from clusterctl.shared.spec import Batches, LoopTrain

if TYPE_CHECKING:
    from clusterctl.launcher.observe.attempt import LossTrend
    from clusterctl.launcher.observe.state import Status

SAME_LOSS = 0.02  # relative; losses that differ by less count as equal
SCORE_MARGIN = 0.15  # of chance * (1 - chance): an accuracy of 0.11 is still chance for ten classes, 0.53 for two
_OF_CHANCE = ("accuracy", "auc", "f1_micro", "f1_macro")  # at most 1 / classes for a guess; of others, it is unknown
_ERRORS = 2  # standard errors by which a mean may be off


@dataclass(frozen=True)
class NotLearning:
    """The problem in a few words for a table, as a sentence for `why`, and what to try."""

    note: str
    text: str
    hint: str


def not_learning(trend: LossTrend | None) -> NotLearning | None:
    """Why the training of `trend` is not learning; None if it is, if it is too early to tell, or in doubt."""
    if trend is None:
        return None
    if trend.broken:
        since = f" since step {trend.broken_since}" if trend.broken_since is not None else ""
        hint = "lower train.lr, or limit the gradients: train.clip_norm=1.0"
        if trend.broken_since is not None and trend.broken_since <= 1:  # no step has changed the weights before it
            hint = "check the data for NaN and infinity, and the model's first outputs: no step came before"
        return _finding(f"loss is {trend.broken}", f"the loss is {trend.broken}{since}", hint)
    if trend.newest is None:
        return None
    now, error_now = trend.newest
    if trend.classes is not None:
        # The loss and score of guessing, log(classes) and 1 / classes, depend on neither data nor model.
        guess, chance = math.log(trend.classes), 1 / trend.classes
        text = f"the loss of {number(now)} is that of a guess among {trend.classes} classes"
        at_chance = abs(now - guess) + _ERRORS * error_now <= SAME_LOSS * guess
        if at_chance and trend.score is not None:
            metric, score = trend.score
            if metric.name.endswith("auc"):  # of a guess, 1 / 2 for any number of classes
                chance = 0.5
            at_chance = metric.name.endswith(_OF_CHANCE) and score <= chance + SCORE_MARGIN * chance * (1 - chance)
            text += f", and so is the {metric.label} of {metric.text(score)}"
        if at_chance:
            hint = "check that the labels depend on what the model sees; try another train.lr"
            return _finding("loss at chance", text, hint)
    if trend.first is not None and trend.steps >= 2 * LEAST_STEPS:
        before, error_before = trend.first
        if abs(now - before) + _ERRORS * (error_before + error_now) < SAME_LOSS * abs(before):
            text = f"the loss is {number(now)} at step {trend.steps}, and was {number(before)} at the start"
            hint = "check that the optimizer updates the model's weights; try another train.lr"
            return _finding("loss is flat", text, hint)
    return None


def _finding(note: str, text: str, hint: str) -> NotLearning:
    return NotLearning(f"not learning: {note}", f"the training is not learning: {text}", hint)


def single_steps(status: Status) -> str:
    """The problem that the ranks' batches together cover the whole training set; empty if they do not."""
    train, ranks = status.record.job.train, status.record.job.resources.nodes * status.record.tasks_per_node
    if not isinstance(train, LoopTrain) or train.global_batch_size or ranks == 1:
        return ""
    steps, epochs, folds = (status.metrics.get(name) for name in ("steps", "epochs", "folds"))
    if steps is None or epochs is None or steps != epochs * (folds or 1):
        return ""
    batch = Batches(train, ranks).size
    return f"each epoch is a single step: the {ranks:,} ranks share a batch of {batch:,}, the whole training set"

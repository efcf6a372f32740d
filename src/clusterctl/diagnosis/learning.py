"""Whether a training learns: a pure rule over the course of its loss, and over its score where there is one.

The rule would rather miss a training that does not learn than blame one that does: it compares means of many steps and
counts their uncertainty in favour of the training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.observe.course import LEAST_STEPS
from clusterctl.runs.vocabulary import number
from clusterctl.spec import Batches, LoopTrain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.course import Course
    from clusterctl.observe.stage import Status

LEAST_LOSSES = 20  # at either end; fewer say little about their mean
LEAST_BROKEN = 3  # in a row: mixed precision skips a step whose loss overflows, and continues
SAME_LOSS = 0.02  # relative; two losses that differ by less are the same
SCORE_MARGIN = 0.15  # of chance * (1 - chance): an accuracy of 0.11 is still chance for ten classes, 0.53 for two
_UNCERTAINTY = 2  # standard errors
_LARGEST = 1e100  # beyond it, sums overflow


@dataclass(frozen=True)
class NotLearning:
    """What is wrong: a few words for a table, a sentence for `why`, and what to try."""

    note: str
    text: str
    hint: str


def not_learning(course: Course | None) -> NotLearning | None:
    """Why the training of `course` does not learn; None if it does, if it is too early to tell, or if in doubt."""
    return (_broken(course) or _at_chance(course) or _flat(course)) if course else None


def single_steps(status: Status) -> str:
    """What is wrong where the batches of several ranks grew until each epoch is one step; empty if nothing is."""
    train, ranks = status.record.job.train, status.record.job.resources.nodes * status.record.tasks_per_node
    if not isinstance(train, LoopTrain) or train.global_batch_size or ranks == 1:
        return ""
    steps, epochs, folds = (status.metrics.get(name) for name in ("steps", "epochs", "folds"))
    if steps is None or epochs is None or steps != epochs * (folds or 1):
        return ""
    batch = Batches(train, ranks).size
    return f"each epoch is a single step: the {ranks:,} ranks share a batch of {batch:,}, the whole training set"


def _broken(course: Course) -> NotLearning | None:
    last = course.newest[:LEAST_BROKEN]
    if len(last) < LEAST_BROKEN or any(map(math.isfinite, last)):
        return None
    what = "NaN" if math.isnan(last[0]) else "infinite"
    since = f" since step {course.broken_since}" if course.broken_since is not None else ""
    hint = "lower train.lr, or limit the gradients: --set train.clip_norm=1.0"
    return _finding(f"loss is {what}", f"the loss is {what}{since}", hint)


def _at_chance(course: Course) -> NotLearning | None:
    """Loss and score are those of a guess, log(classes) and 1 / classes, whatever the data and the model."""
    newest = _mean(course.newest)
    if course.classes is None or newest is None:
        return None
    (loss, uncertainty), guess, chance = newest, math.log(course.classes), 1 / course.classes
    if abs(loss - guess) + uncertainty > SAME_LOSS * guess:
        return None
    text = f"the loss of {number(loss)} is that of a guess among {course.classes} classes"
    if course.score is not None:
        metric, score = course.score
        if not score <= chance + SCORE_MARGIN * chance * (1 - chance):
            return None
        text += f", and so is the {metric.label} of {metric.text(score)}"
    return _finding("loss at chance", text, "check that the model sees what the labels depend on; try another train.lr")


def _flat(course: Course) -> NotLearning | None:
    """The loss is still what it was in the first steps."""
    first, newest = _mean(course.first), _mean(course.newest)
    if course.steps < 2 * LEAST_STEPS or first is None or newest is None:
        return None
    (before, uncertainty_before), (now, uncertainty_now) = first, newest
    if abs(now - before) + uncertainty_before + uncertainty_now >= SAME_LOSS * abs(before):
        return None
    text = f"the loss is {number(now)} at step {course.steps}, and was {number(before)} at the start"
    return _finding("loss is flat", text, "check that the optimizer updates the model's weights; try another train.lr")


def _finding(note: str, text: str, hint: str) -> NotLearning:
    return NotLearning(f"not learning: {note}", f"the training does not learn: {text}", hint)


def _mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The mean of independent values and its uncertainty; None for few ones, and for absurd ones."""
    if len(values) < LEAST_LOSSES or not all(abs(value) < _LARGEST for value in values):
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) * (value - mean) for value in values) / (len(values) - 1)
    return mean, _UNCERTAINTY * math.sqrt(variance / len(values))

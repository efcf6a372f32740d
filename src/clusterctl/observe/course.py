"""The course of a training's loss, from both ends of its metrics, as judged by `diagnosis.learning`.

Only a few blocks of a file are read and a few numbers kept, since `status` does this for every run it lists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

from clusterctl.observe.measurements import measurements_in
from clusterctl.runs.files import read_regular, status_of
from clusterctl.runs.vocabulary import score_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from clusterctl.runs.vocabulary import Metric, Number

LEAST_STEPS = 100  # of a training or fold: too few to draw conclusions below this
_LEAST_LOSSES = 20  # at either end, for a meaningful mean
_LEAST_BROKEN = 3  # in a row: mixed precision skips a step whose loss overflows, and continues
_LARGEST = 1e100  # beyond it, sums overflow
_LEAST_SHARE = 0.1  # of the planned steps: a warm-up of the learning rate takes time
_ENOUGH_STEPS = 1000  # if a tenth is more, or the planned number is unknown
_NEWEST = 100  # losses
_HEAD_BYTES = 8192  # about 30 steps
_BLOCK_BYTES = 65536
_LINE_BYTES = 4096  # hardly any is longer
_MOST_CLASSES = 10**9
_CLEARLY_LEARNT = 0.9  # of the loss of guessing: clearly below it, there is no need to look closer


class Mean(NamedTuple):
    """The mean of several losses."""

    value: float
    error: float  # standard error, assuming independence


@dataclass(frozen=True)
class Course:
    """The mean loss of the first steps and of the newest ones, and the newest score.

    `steps`: completed so far, in this fold if there are folds. `first` is None if the beginning is unknown: the program
    logs no steps, or continued from another run. `broken`: the newest losses are "NaN" or "infinite", since the step
    `broken_since`.
    """

    steps: int
    first: Mean | None = None
    newest: Mean | None = None
    classes: int | None = None
    score: tuple[Metric, float] | None = None
    broken: str = ""
    broken_since: int | None = None


def mean_of(losses: Sequence[float]) -> Mean | None:
    """The mean of `losses`; None for too few or absurd values."""
    if len(losses) < _LEAST_LOSSES or not all(abs(loss) < _LARGEST for loss in losses):
        return None
    mean = math.fsum(losses) / len(losses)
    variance = math.fsum((loss - mean) * (loss - mean) for loss in losses) / (len(losses) - 1)
    return Mean(mean, math.sqrt(variance / len(losses)))


def broken(newest: Sequence[float]) -> str:
    """Whether the newest losses, newest first, are "NaN" or "infinite"; empty if they are numbers."""
    last = newest[:_LEAST_BROKEN]
    if len(last) < _LEAST_BROKEN or any(map(math.isfinite, last)):
        return ""
    return "NaN" if math.isnan(last[0]) else "infinite"


def read_course(files: Sequence[Path], lines: list[bytes], numbers: Mapping[str, Number]) -> Course | None:
    """The course of the run whose attempts wrote `files`; None if it is too short or the training is clearly learning.

    `lines` are the last lines of the last file, and `numbers` the newest value of each name in them.
    """
    if "loss" not in numbers:
        return None
    steps = _own_steps(numbers)
    classes = int(numbers["classes"]) if 2 <= numbers.get("classes", 0) < _MOST_CLASSES else None
    if not math.isfinite(numbers["loss"]):
        return Course(steps, broken=broken(_newest_losses(lines, numbers)), broken_since=_broken_since(files))
    if steps < _least_steps(numbers) or (classes and numbers["loss"] < _CLEARLY_LEARNT * math.log(classes)):
        return None
    first = None if "fold" in numbers else mean_of(_first_losses(files))
    newest = mean_of([*filter(math.isfinite, _newest_losses(lines, numbers))])
    return Course(steps, first, newest, classes, score_of(numbers, "val") or score_of(numbers, "test"))


def _own_steps(numbers: Mapping[str, Number]) -> int:
    """The completed steps; in a cross-validation, those of the current fold."""
    step, steps, folds = (float(numbers.get(name, 0)) for name in ("step", "steps", "folds"))
    own = step - (float(numbers.get("fold", 1)) - 1) * (steps / folds) if folds else step
    return int(own) if math.isfinite(own) else 0


def _least_steps(numbers: Mapping[str, Number]) -> float:
    """The number of steps a training or fold must complete before it can be judged."""
    planned = float(numbers.get("steps", math.inf)) / max(1.0, float(numbers.get("folds", 1)))
    return max(LEAST_STEPS, min(_LEAST_SHARE * planned, _ENOUGH_STEPS))


def _newest_losses(lines: list[bytes], numbers: Mapping[str, Number]) -> list[float]:
    """The last losses of the current fold, newest first."""
    fold, found = numbers.get("fold"), list[float]()
    for measured in measurements_in(reversed(lines)):
        if measured.values.get("fold", fold) != fold or len(found) == _NEWEST:
            break
        found += _loss(measured.values)
    return found


def _first_losses(files: Sequence[Path]) -> list[float]:
    """The losses of the run's first steps; none if it started at a later step."""
    for path in files:
        records = _records(path, 0, _HEAD_BYTES)
        steps = [record["step"] for record in records if type(record.get("step")) is int]
        if steps:
            return [loss for record in records for loss in _loss(record)] if steps[0] <= LEAST_STEPS else []
    return []


def _broken_since(files: Sequence[Path]) -> int | None:
    """The step of the first non-finite loss after the last finite one.

    Found by bisection: a loss that has become NaN stays NaN, and the file may be long.
    """
    since = None
    for path in reversed(files):
        low, high = 0, _size(path)
        while high - low > _BLOCK_BYTES:
            middle = (low + high) // 2
            losses = [loss for record in _records(path, middle, _BLOCK_BYTES) for loss in _loss(record)]
            low, high = (middle, high) if losses and math.isfinite(losses[0]) else (low, middle)
        records = [record for record in _records(path, low, high - low + _LINE_BYTES) if _loss(record)]
        finite = [index for index, record in enumerate(records) if math.isfinite(record["loss"])]
        broken = records[finite[-1] + 1 :] if finite else records
        since = broken[0].get("step") if broken else since
        if finite:
            break
    return since if type(since) is int else None


def _loss(values: Mapping[str, Number]) -> list[float]:
    return [float(values["loss"])] if "loss" in values else []


def _records(path: Path, offset: int, size: int) -> list[dict[str, Number]]:
    """The values in the complete lines of a block, without a first partial line."""

    def read(file: IO[bytes]) -> bytes:
        file.seek(offset)
        return file.read(size)

    try:
        lines = read_regular(path, read).split(b"\n")[:-1]
    except OSError:
        return []
    return [measured.values for measured in measurements_in(lines[offset > 0 :])]


def _size(path: Path) -> int:
    try:
        return status_of(path).st_size
    except OSError:
        return 0

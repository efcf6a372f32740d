"""How the loss of a training has gone, from both ends of its metrics: what `diagnosis.learning` judges.

Never more than a few blocks of a file are read, and a few numbers kept: `status` does this for every run that it lists.
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

LEAST_STEPS = 100  # of a training, or of a fold: nothing is concluded from fewer
_LEAST_LOSSES = 20  # at either end; fewer say little about their mean
_LEAST_BROKEN = 3  # in a row: mixed precision skips a step whose loss overflows, and continues
_LARGEST = 1e100  # beyond it, sums overflow
_LEAST_SHARE = 0.1  # of the planned steps: a warm-up of the learning rate takes time
_ENOUGH_STEPS = 1000  # where a tenth is more, or nobody knows how many are planned
_NEWEST = 100  # losses
_HEAD_BYTES = 8192  # about 30 steps
_BLOCK_BYTES = 65536
_LINE_BYTES = 4096  # hardly any is longer
_MOST_CLASSES = 10**9
_CLEARLY_LEARNT = 0.9  # of the loss of a guess: no need to look closer


class Mean(NamedTuple):
    """Of several losses."""

    value: float
    error: float  # standard error, as if they were independent


@dataclass(frozen=True)
class Course:
    """The mean loss of the first steps and of the newest ones, and the newest score.

    `steps`: done so far, of this fold if there are folds. `first` is None where the beginning is not known: the
    program logs no steps, or went on from another run. `broken`: the newest losses are "NaN" or "infinite", from the
    step `broken_since` on.
    """

    steps: int
    first: Mean | None = None
    newest: Mean | None = None
    classes: int | None = None
    score: tuple[Metric, float] | None = None
    broken: str = ""
    broken_since: int | None = None


def mean_of(losses: Sequence[float]) -> Mean | None:
    """Their mean; None for few ones, and for absurd ones."""
    if len(losses) < _LEAST_LOSSES or not all(abs(loss) < _LARGEST for loss in losses):
        return None
    mean = math.fsum(losses) / len(losses)
    variance = math.fsum((loss - mean) * (loss - mean) for loss in losses) / (len(losses) - 1)
    return Mean(mean, math.sqrt(variance / len(losses)))


def broken(newest: Sequence[float]) -> str:
    """What the newest losses, the newest first, are in place of numbers; empty where they are numbers."""
    last = newest[:_LEAST_BROKEN]
    if len(last) < _LEAST_BROKEN or any(map(math.isfinite, last)):
        return ""
    return "NaN" if math.isnan(last[0]) else "infinite"


def read_course(files: Sequence[Path], lines: list[bytes], numbers: Mapping[str, Number]) -> Course | None:
    """The course of the run whose attempts wrote `files`; None where it is too short, or the training clearly learns.

    `lines` are the last ones of the last file, and `numbers` the newest of each name in them.
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
    """The steps that are done; in a cross-validation, those of the present fold."""
    step, steps, folds = (float(numbers.get(name, 0)) for name in ("step", "steps", "folds"))
    own = step - (float(numbers.get("fold", 1)) - 1) * (steps / folds) if folds else step
    return int(own) if math.isfinite(own) else 0


def _least_steps(numbers: Mapping[str, Number]) -> float:
    """How many steps a training, or a fold, must have done before anything can be said."""
    planned = float(numbers.get("steps", math.inf)) / max(1.0, float(numbers.get("folds", 1)))
    return max(LEAST_STEPS, min(_LEAST_SHARE * planned, _ENOUGH_STEPS))


def _newest_losses(lines: list[bytes], numbers: Mapping[str, Number]) -> list[float]:
    """The last losses of the present fold, the newest first."""
    fold, found = numbers.get("fold"), list[float]()
    for measured in measurements_in(reversed(lines)):
        if measured.values.get("fold", fold) != fold or len(found) == _NEWEST:
            break
        found += _loss(measured.values)
    return found


def _first_losses(files: Sequence[Path]) -> list[float]:
    """The losses of the run's first steps; none where it began with a later one."""
    for path in files:
        records = _records(path, 0, _HEAD_BYTES)
        steps = [record["step"] for record in records if type(record.get("step")) is int]
        if steps:
            return [loss for record in records for loss in _loss(record)] if steps[0] <= LEAST_STEPS else []
    return []


def _broken_since(files: Sequence[Path]) -> int | None:
    """The step of the first loss that is not finite, of those after the last finite one.

    Found by bisection: a loss that has become nan stays so, and the file may be long.
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
    """The values in the whole lines of a block; the first may be cut where it does not begin at 0."""

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

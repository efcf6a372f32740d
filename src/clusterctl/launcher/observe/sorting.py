"""Runs in the order of a column of their table, or of any metric that they have logged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.measurements import progress
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.states import State
from clusterctl.shared.record.vocabulary import Better, metric_of, score_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.launcher.observe.state import Status

    Key = Callable[[Status, float], float | None]

_PLACES = {state: place for place, state in enumerate(State)}


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _score(split: str) -> Key:
    def key(status: Status, now: float) -> float | None:  # noqa: ARG001 - as of the others
        found = score_of(status.metrics, split)
        return None if found is None else found[1] * (1 if found[0].better is Better.LOWER else -1)

    return key


# Column -> what is compared; the lowest comes first.
COLUMNS: dict[str, Key] = {
    "age": lambda status, now: now - status.record.created,
    "state": lambda status, _: _PLACES[status.state],
    "progress": lambda status, _: _negative(progress(status.metrics)),
    "eta": lambda status, now: status.seconds_left(now),
    "val": _score("val"),
    "test": _score("test"),
    "gpu": lambda status, _: _negative(status.attempt.gpu if status.attempt and not status.state.ended else None),
    "gpu-h": lambda status, now: _negative(status.gpu_hours(now)),
    "ran": lambda status, now: _negative(status.ran(now)),
    "tasks": lambda status, _: -status.record.job.resources.nodes * status.record.tasks_per_node,
}


def in_order(statuses: Iterable[Status], column: str, now: float, *, reverse: bool = False) -> list[Status]:
    """`statuses` by `column`, a name in `COLUMNS`, "run", or a metric: the best, newest or largest first.

    With `reverse`, the worst, oldest or smallest first. Runs without a value come last. Raises UsageError for a name
    that is neither a column nor logged by any run.
    """
    found = list(statuses)
    if column == "run":
        return sorted(found, key=lambda status: status.record.run.id, reverse=reverse)
    key = COLUMNS.get(column) or _metric(column, found)
    values = {status.record.run: key(status, now) for status in found}

    def place(status: Status) -> tuple[bool, float]:
        value = values[status.record.run]
        missing = value is None or math.isnan(value)
        return missing, 0.0 if value is None or missing else -value if reverse else value

    return sorted(found, key=place)


def _metric(name: str, statuses: list[Status]) -> Key:
    if statuses and not any(name in status.metrics for status in statuses):
        known = ["run", *COLUMNS, *sorted({one for status in statuses for one in status.metrics})]
        raise UsageError(f"nothing to sort by: {name}", f"one of {', '.join(known)}")
    sign = 1 if metric_of(name).better is Better.LOWER else -1
    return lambda status, _: sign * status.metrics[name] if name in status.metrics else None

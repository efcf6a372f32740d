"""The numbers of a run as plain records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.errors import UsageError
from clusterctl.runs.files import read_lines

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.runs.layout import RunDir


class MetricRecords(list[dict[str, Any]]):
    """One dict a record: `attempt`, `time` (seconds since the epoch), `step`, and whatever was logged."""

    def to_pandas(self) -> Any:
        """The records as a pandas DataFrame, one row each. Raises UsageError where pandas is not installed."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise UsageError("to_pandas needs pandas", "pip install pandas") from None
        return pandas.DataFrame(list(self))


def metric_records(run: RunDir) -> MetricRecords:
    """The records of all attempts. Steps that a later attempt did again, from a checkpoint on, count once."""
    found: list[dict[str, Any]] = []
    for attempt in run.attempts():
        records = [{"attempt": attempt.number, **record} for record in _records(attempt.metrics)]
        steps = [record["step"] for record in records if type(record.get("step")) is int]
        if steps:
            found = [record for record in found if not _is_from(record, steps[0])]
        found += records
    return MetricRecords(found)


def _records(path: Path) -> list[dict[str, Any]]:
    """As they were logged: names and types are the user's own. None where the file cannot be read."""
    try:
        return list(read_lines(path))
    except OSError:
        return []


def _is_from(record: dict[str, Any], step: int) -> bool:
    return type(record.get("step")) is int and record["step"] >= step

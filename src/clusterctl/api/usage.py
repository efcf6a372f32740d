"""The GPU and CPU hours used by runs, grouped by user, job or week."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.api.find import age_seconds, query
from clusterctl.errors import UsageError
from clusterctl.observe.usage import NAMES, row_of, stretches_of, summed, within

if TYPE_CHECKING:
    from clusterctl.errors import ClusterctlError
    from clusterctl.observe.usage import Stretch
    from clusterctl.observe.usage import UsageRow as UsageRow

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class UsageReport:
    """The usage of a folder's runs from `since` (None: all time) until `as_of`, in seconds since the epoch."""

    as_of: float
    since: float | None
    by: str
    rows: tuple[UsageRow, ...]
    total: UsageRow
    problems: tuple[ClusterctlError, ...] = ()


def usage(cluster: str | None = None, *, by: str = "user", since: str | float | None = None) -> UsageReport:
    """The hours of all attempts of the runs of `cluster`, including active ones; works without Slurm's accounting.

    `by` is "user", "job" or "week"; `since` ("30d", or seconds) limits the period. Raises UsageError.
    """
    if by not in NAMES:
        raise UsageError(f"no such grouping: {by}", f"one of {', '.join(NAMES)}")
    seconds = age_seconds("--since", since)
    found = query(cluster=cluster).look()
    first = None if seconds is None else found.as_of - seconds
    stretches: list[Stretch] = []
    for status in found.statuses:
        with suppress(FileNotFoundError):  # the run is being removed
            stretches += stretches_of(status, found.as_of, first)
    total = row_of("total", within(stretches, first))
    return UsageReport(found.as_of, first, by, tuple(summed(stretches, by, first)), total, found.problems)


def to_json(found: UsageReport) -> dict[str, Any]:
    """The output of `usage -o json`, described by `schemas/usage.json`."""
    rows, total = [asdict(row) for row in found.rows], asdict(found.total)
    return {
        "schema_version": SCHEMA_VERSION,
        "as_of": found.as_of,
        "since": found.since,
        "by": found.by,
        "rows": rows,
        "total": total,
    }

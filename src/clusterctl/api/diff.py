"""Compares two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.api.find import as_run
from clusterctl.errors import UsageError
from clusterctl.observe.comparison import compare
from clusterctl.observe.comparison import to_json as to_json

if TYPE_CHECKING:
    from clusterctl.api.run import Run
    from clusterctl.observe.comparison import Comparison as Comparison


def diff(first: Run | str, second: Run | str, cluster: str | None = None) -> Comparison:
    """The differences of two runs, given as runs or names: configuration, code, versions, image, results.

    Runs in any stage can be compared; `line_differences()` of the result returns unified diffs of the code. Raises
    NotFoundError, UsageError if both are the same run, and ConfigError if a record cannot be read.
    """
    before, after = (as_run(run, cluster) for run in (first, second))
    if before == after:
        raise UsageError(f"both names refer to the same run: {before.id}", "list run IDs with: clusterctl status -a")
    return compare(before.directory, after.directory)

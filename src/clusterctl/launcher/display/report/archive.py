"""Pack a run into an archive together with its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.api.export import write_archive
from clusterctl.launcher.api.find import as_run
from clusterctl.launcher.display.report.page import examine, page

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.launcher.api.run import Run
    from clusterctl.shared.errors import ClusterctlError


class Exported(NamedTuple):
    """An archive, and the problems found while creating its report."""

    path: Path
    problems: tuple[ClusterctlError, ...]


def export(
    run: Run | str,
    output: str | Path | None = None,
    *,
    cluster: str | None = None,
    weights: bool = True,
    work: bool = False,
    force: bool = False,
) -> Path:
    """Write `output`, by default RUN.tar.gz in the current folder, and return its path.

    The archive contains the run's record, metrics (also as CSV), report, logs, uncommitted changes and, unless
    `weights` is False, the trained weights; with `work`, also the files the program wrote to its working directory. A
    running run is exported in its current state. Raises NotFoundError, ConfigError, and UsageError if `output` exists
    and `force` is not set.
    """
    return export_run(as_run(run, cluster), output, weights=weights, work=work, force=force).path


def export_run(run: Run, output: str | Path | None, *, weights: bool, work: bool, force: bool) -> Exported:
    """`export` that also returns the problems found."""
    examined = examine(run.directory, run.path)
    pages = {"report.html": page(examined)}
    path = write_archive(run.directory, output, weights=weights, work=work, force=force, pages=pages)
    return Exported(path, tuple(examined.problems))

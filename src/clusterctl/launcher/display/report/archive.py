"""Write reports to files, and pack a run into an archive together with its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.api.export import check_output, write_archive
from clusterctl.launcher.api.find import as_run, find
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.api.sweeps import Sweep, sweep_meant
from clusterctl.launcher.display.report.markup import write_text
from clusterctl.launcher.display.report.page import examine, page
from clusterctl.launcher.display.report.several import page as page_on_several
from clusterctl.launcher.observe.comparison import examine_runs, examine_sweep
from clusterctl.launcher.observe.sweeps import one_run
from clusterctl.shared.errors import HostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.shared.errors import ClusterctlError


def report(
    *of: Run | Sweep | str,
    output: str | Path | None = None,
    metric: str | None = None,
    cluster: str | None = None,
) -> Path:
    """Write an HTML report on a run, a sweep or several runs, and return its path.

    `output` is by default report.html in the run's or sweep's directory; a report on several runs needs it. `metric`
    ranks several runs. Raises NotFoundError, ConfigError, UsageError for a metric that none of them has logged, and
    HostError for runs on another machine.
    """
    named = [find_sweep_or_run(one, cluster) if isinstance(one, str) else one for one in of]
    written = render(named, metric, None if output is None else Path(output))
    check_output(written.path, "report.html")
    write_text(written.path, written.text)
    return written.path


def find_sweep_or_run(name: str, cluster: str | None = None) -> Run | Sweep:
    """What `name` refers to. Raises NotFoundError."""
    return sweep_meant(name, cluster) or find(name, cluster)


class Rendered(NamedTuple):
    """A report, the file that it belongs in, and the problems found while making it."""

    path: Path
    text: str
    problems: tuple[ClusterctlError, ...]


def render(named: Sequence[Run | Sweep], metric: str | None = None, output: Path | None = None) -> Rendered:
    """The report on a run, on a sweep, or on several runs."""
    runs = [one for one in named if isinstance(one, Run)]
    if len(runs) < len(named) and len(named) > 1:
        raise one_run(next(one for one in named if isinstance(one, Sweep)).directory)
    if far := next((one for one in named if one.place), None):
        hint = f"in a terminal: clusterctl report {far.id} --cluster {far.place.cluster.name}" if far.place else ""
        raise HostError(f"its files are on another machine: {far.id}", hint)
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise UsageError(f"run named twice: {twice.id}", "name each run once")
    if not named:
        raise UsageError("no run named", "name a run, a sweep, or several runs")
    if len(runs) == 1 and metric is not None:
        raise UsageError("`metric=` needs several runs", "leave it out, or name more runs")
    if len(runs) > 1 and output is None:
        raise UsageError("a report on several runs needs `output=`", 'for example `output="report.html"`')
    path = output or named[0].directory.report
    if len(runs) == 1:
        examined = examine(runs[0].directory, path.parent.resolve())
        return Rendered(path, page(examined), tuple(examined.problems))
    found = named[0]
    if isinstance(found, Sweep):
        group = examine_sweep(found.directory, metric)
    else:
        group = examine_runs([run.directory for run in runs], metric)
    return Rendered(path, page_on_several(group), group.problems)


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

"""`submit` and `resume` for a sweep."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import options
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.api.sweeps import Sweep


def submit_sweep(
    job: str | None, cluster: str | None, output: str, dry_run: str | None, **arguments: Any
) -> Sweep | None:
    """Submit a sweep and print it; a dry run prints the settings of each run instead."""
    from clusterctl.api import sweep as api
    from clusterctl.api.submit import find_waited_for
    from clusterctl.display.build_progress import shown
    from clusterctl.display.plain import plain

    if dry_run:
        chosen = {name: arguments[name] for name in ("program", "axes", "file", "samples", "seed", "overrides")}
        wanted = api.load_sweep(job, cluster, **chosen)
        after, after_any, after_start = (arguments[name] for name in ("after", "after_any", "after_start"))
        if waited_for := find_waited_for(wanted.jobs[0], after, after_any, after_start, None):
            waited_for.check(wanted.jobs[0].job.resources)
        for place, row in enumerate(api.shown_rows(wanted)):
            click.echo(plain(f"{place:>5}  {' '.join(row)}"))
        click.echo(
            f"{len(wanted.jobs)} runs; to see the script of one: clusterctl submit --dry-run --set ...", err=True
        )
        return None
    with shown() as progress:
        sweep = api.sweep(job, cluster, **arguments, progress=progress)
    options.show_batches(sweep.runs[0].batches)
    announce(sweep, output)
    return sweep


def resume_sweep(sweep: Sweep, cluster: str | None, axes: tuple[str, ...], *, hold: bool) -> None:
    """Submit the unfinished runs again and print the sweep."""
    from clusterctl.api.resume_sweep import resume_sweep as start_again
    from clusterctl.display.build_progress import shown

    with shown() as progress:
        announce(start_again(sweep, cluster, axes=axes, hold=hold, progress=progress))


def announce(sweep: Sweep, output: str = "id") -> None:
    """Print the sweep and, at a terminal, the next command to type."""
    options.warn_of(sweep.warnings)
    runs = sweep.runs
    record = {"schema_version": 1, "id": sweep.id, "runs": [run.id for run in runs], "directory": str(sweep.path)}
    click.echo(json.dumps(record) if output == "json" else sweep.id)
    if sys.stderr.isatty():
        click.echo(f"{len(runs)} runs\nnext: clusterctl status {sweep.id}", err=True)


def check_sweep(
    *, follow: bool, in_allocation: str | None = None, profile: bool = False, stage: str | None = None
) -> None:
    """Raise UsageError for options of `submit` that do not apply to a sweep."""
    if follow:
        raise UsageError("--follow shows a single run", "watch the sweep with: clusterctl status --watch SWEEP")
    if in_allocation:
        raise UsageError("--sweep cannot be combined with --in-allocation", "leave one of them out")
    if profile:
        raise UsageError("--profile cannot be combined with --sweep", "profile a single run")
    if stage:
        raise UsageError("--stage cannot be combined with --sweep", "leave one of them out")

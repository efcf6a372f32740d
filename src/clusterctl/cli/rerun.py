"""`clusterctl rerun`: submit a new run with the code and settings of an earlier one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from clusterctl.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.spec.differences import Difference


@click.command(short_help="Submit a new run with the code and settings of an earlier one")
@click.argument("name", metavar="RUN")
@click.option("--cluster", metavar="NAME", help="Where to run; default: RUN's cluster.")
@options.resource_options
@click.option("--name", "new_name", metavar="NAME", help="The new run's name; default: RUN's.")
@click.option("--dry-run", is_flag=True, help="Print the script and submit nothing.")
@click.option(
    "--in-allocation", metavar="JOBID", help="Start immediately on the nodes of this allocation (clusterctl alloc)."
)
@options.waiting_options
@click.option("-o", "output", type=click.Choice(["id", "json"]), default="id", help="Output format.")
def rerun(
    name: str,
    cluster: str | None,
    settings: tuple[str, ...],
    new_name: str | None,
    dry_run: bool,
    in_allocation: str | None,
    hold: bool,
    follow: bool,
    wait: bool,
    timeout: float | None,
    output: str,
    **shortcuts: str | None,
) -> None:
    """Submit a new run with RUN's code and configuration, and the given changes.

    RUN may be running, finished or failed. The code is the copy submitted with RUN, even if the project has changed
    since or no longer exists; training starts at step 0. Secrets are not recorded: export them as you did for RUN.

    \b
    Examples:
      clusterctl rerun cora --set train.lr=3e-3
      clusterctl rerun @last --set train.seed=1 --name cora-seed-1
      clusterctl rerun cora --nodes 4 --dry-run
    """
    options.check_waiting(hold, follow, wait, timeout, dry_run=dry_run)
    from clusterctl.api import rerun as api
    from clusterctl.api.find import find
    from clusterctl.display.build_progress import shown

    earlier = find(name, cluster)
    given = options.typed_settings(settings, {"name": new_name, **shortcuts})
    if dry_run:
        from clusterctl.cli.submit import show_plan

        plan = api.plan(earlier, cluster, overrides=given, in_allocation=in_allocation)
        show_plan(plan, ask_slurm=False)
        _show_changes(earlier.id, plan.changes)
        return
    with shown() as progress:
        run = api.rerun(earlier, cluster, overrides=given, in_allocation=in_allocation, hold=hold, progress=progress)
    changes = api.changes(run)
    _show_changes(earlier.id, changes)
    options.show_batches(run.batches)
    options.warn_of(run.warnings)
    record = {"schema_version": 1, "id": run.id, "job_id": run.job_id, "directory": str(run.path)}
    record |= {"rerun_of": earlier.id, "changes": [change._asdict() for change in changes]}
    click.echo(json.dumps(record) if output == "json" else run.id)
    if not (follow or wait):
        options.echo_next(run, f"job {run.job_id}", hold=hold, also=f"\n      clusterctl diff {earlier.id} {run.id}")
    options.await_end(run, follow, wait, timeout)


def _show_changes(earlier: str, changes: Sequence[Difference]) -> None:
    from clusterctl.display.comparison import change_line

    for line in map(change_line, changes):
        click.echo(line, err=True)
    if not changes:
        click.echo(f"no changes from {earlier}", err=True)

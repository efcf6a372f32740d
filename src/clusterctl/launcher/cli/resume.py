"""`clusterctl resume`, `rerun`, `cancel`, `release`: what happens next to a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from clusterctl.launcher.api.cancel import cancel as cancel_all
from clusterctl.launcher.api.find import find, find_all, living
from clusterctl.launcher.api.jobs import cancel_jobs, plain_job
from clusterctl.launcher.api.sweeps import sweep_meant
from clusterctl.launcher.cli import options
from clusterctl.launcher.cli.options import cluster_option, confirmed, warn_of
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.shared.spec.keys import Difference


# `clusterctl rerun`: submit a new run with the code and settings of an earlier one.


@dataclass(frozen=True, kw_only=True)
class RerunRequest(options.Starting):
    """The command line of `rerun`."""

    name: str
    dry_run: bool
    in_allocation: str | None
    output: str


@click.command(short_help="Submit a new run with the code and settings of an earlier one")
@click.argument("name", metavar="RUN")
@click.option("--cluster", metavar="NAME", help="Where to run; default: RUN's cluster.")
@options.resource_options
@options.shorthand("--name", "new_name", key="name", metavar="NAME", help="The new run's name; default: RUN's.")
@options.label_options
@click.option("--dry-run", is_flag=True, help="Print the script and submit nothing.")
@click.option(
    "--in-allocation", metavar="JOBID", help="Start immediately on the nodes of this allocation (clusterctl alloc)."
)
@options.waiting_options
@click.option("-o", "output", type=click.Choice(["id", "json"]), default="id", help="Output format.")
@remotely(changes=True, restarts=True)
def rerun(**typed: Any) -> None:
    """Submit a new run with RUN's code and configuration, and the given changes.

    RUN may be running, finished or failed. The code is the copy submitted with RUN, even if the project has changed
    since or no longer exists; training starts at step 0. Secrets are not recorded: export them as you did for RUN.

    \b
    Examples:
      clusterctl rerun cora --set train.lr=3e-3
      clusterctl rerun @last --set train.seed=1 --name cora-seed-1
      clusterctl rerun cora --nodes 4 --dry-run
    """
    from clusterctl.launcher.api.submitting import rerun as api
    from clusterctl.launcher.display.terminal import shown

    request = RerunRequest.of(typed)
    request.check_waiting(dry_run=request.dry_run)
    cluster, changed = request.cluster, request.settings
    earlier = find(request.name, cluster)
    if request.dry_run:
        from clusterctl.launcher.cli.submit import show_plan

        plan = api.plan(earlier.directory, cluster, overrides=changed, in_allocation=request.in_allocation)
        show_plan(plan, ask_slurm=False)
        _show_changes(earlier.id, plan.changes)
        return
    with shown() as progress:
        run = earlier.rerun(
            cluster, overrides=changed, in_allocation=request.in_allocation, hold=request.hold, progress=progress
        )
    changes = api.changes(run.directory)
    _show_changes(earlier.id, changes)
    options.show_batches(run.batches)
    options.warn_of(run.warnings)
    if request.output == "json":
        from clusterctl.launcher.api import json_output

        click.echo(json.dumps(json_output.submitted_again(run, earlier, changes)))
    else:
        click.echo(run.id)
    request.await_run(run, f"job {run.job_id}", also=f"\n      clusterctl diff {earlier.id} {run.id}")


def _show_changes(earlier: str, changes: Sequence[Difference]) -> None:
    from clusterctl.launcher.display.comparison import change_line

    for line in map(change_line, changes):
        click.echo(line, err=True)
    if not changes:
        click.echo(f"no changes from {earlier}", err=True)


# `clusterctl cancel`: cancel queued or running runs.


_MOST_NAMED = 20


@click.command(short_help="Cancel queued or running runs and jobs")
@click.argument("names", metavar="RUN|SWEEP|JOBID...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation when cancelling several runs.")
@cluster_option
@remotely(changes=True, asks=True)
def cancel(names: tuple[str, ...], yes: bool, cluster: str | None) -> None:
    """Cancel queued or running RUNs, all runs of a SWEEP, and any Slurm job of yours, by its JOBID.

    A job's name means the newest of its runs that has not ended. Runs and jobs that have ended are left alone.

    \b
    Examples:
      clusterctl cancel cora
      clusterctl cancel @last
      clusterctl cancel 123
    """
    job_ids = {name: job_id for name in names if (job_id := plain_job(name, cluster))}
    runs = [
        run.directory for run in find_all((living(name, cluster) for name in names if name not in job_ids), cluster)
    ]
    if job_ids:
        several = len(runs) + len(job_ids)
        if several > 1 and not confirmed(f"Cancel {several} runs or jobs?", yes=yes):
            return
        jobs = cancel_jobs([*job_ids.values()], cluster)
        for job in jobs.ended:
            click.echo(f"job {job.job_id} has already ended: {job.state.value.lower()}", err=True)
        for job_id in jobs.cancelled:
            click.echo(f"cancelled job {job_id}", err=True)

    def agreed(count: int) -> bool:
        return bool(job_ids) or count == 1 or confirmed(f"Cancel {count} runs?", yes=yes)

    done = cancel_all(runs, agreed)
    warn_of(done.problems)
    if len(done.ended) + len(done.cancelled) > _MOST_NAMED:
        click.echo(f"cancelled {len(done.cancelled)} runs; {len(done.ended)} had already ended", err=True)
        return
    for status in done.ended:
        click.echo(f"{status.record.run.id} has already ended: {status.state}", err=True)
    for status in done.cancelled:
        click.echo(f"cancelled {status.record.run.id}", err=True)


# `clusterctl release`: release a run submitted with --hold.


@click.command(short_help="Release a run submitted with --hold")
@click.argument("name", metavar="RUN|SWEEP")
@cluster_option
@remotely(changes=True)
def release(name: str, cluster: str | None) -> None:
    """Release RUN, or all runs of SWEEP, submitted with --hold.

    \b
    Example:
      clusterctl release @last
    """
    name = living(name, cluster)
    held = sweep_meant(name, cluster) or find(name, cluster)
    held.release()
    click.echo(f"released {held.id}", err=True)


# `clusterctl resume`: restart an unfinished run, or those of a sweep.


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(options.Starting):
    """The command line of `resume`."""

    name: str
    axes: tuple[str, ...]


@click.command(short_help="Restart an unfinished run from its last checkpoint")
@click.argument("name", metavar="RUN|SWEEP")
@click.option("--cluster", metavar="NAME", help="Where to run; default: where it ran before.")
@options.resource_options
@options.sweep_options
@options.waiting_options
@remotely(changes=True, restarts=True)
def resume(**typed: Any) -> None:
    """Restart RUN from its last checkpoint after it failed, timed out, or was cancelled, preempted or lost.

    This starts a new attempt of the same run with the same code; resources and most training settings may be changed.
    Secrets are not recorded: export them as you did when submitting.

    Later stages that were cancelled with RUN are submitted again. For a SWEEP, all unfinished runs are restarted;
    --sweep adds runs for more values.

    \b
    Examples:
      clusterctl resume cora --follow
      clusterctl resume @last --nodes 4 --time 8h
      clusterctl resume cora-20260131-120000-1a2b --sweep train.seed=0..9
    """
    from clusterctl.launcher.api.submitting.resume import resume_alone, resume_later
    from clusterctl.launcher.display.terminal import shown

    request = ResumeRequest.of(typed)
    request.check_waiting()
    name, cluster, changes = request.name, request.cluster, request.settings
    if sweep := sweep_meant(name, cluster):
        from clusterctl.launcher.cli.submit import announce

        if changes or request.follow:
            raise UsageError(
                "a sweep cannot be changed or followed when resumed", f"resume one run: clusterctl resume {sweep.id}.0"
            )
        with shown() as progress:
            sweep = sweep.resume(cluster, axes=request.axes, hold=request.hold, progress=progress)
        announce(sweep)
        request.await_end([sweep])
        return
    if request.axes:
        raise UsageError(
            f"--sweep: {name} is not a sweep", "submit it as one: clusterctl submit JOB --sweep KEY=VALUES"
        )
    with shown() as progress:
        run = find(name, cluster)
        again = resume_alone(run.directory, cluster, overrides=changes, hold=request.hold, progress=progress)
        later = resume_later(run.directory, progress)
    options.show_batches(run.batches)
    options.warn_of(again.warnings)
    click.echo("\n".join([run.id, *(one.id for one in later)]))
    request.await_run(run, f"attempt {len(run.directory.attempts())}")

"""`clusterctl resume`: restart an unfinished run from its last checkpoint."""

from __future__ import annotations

import click

from clusterctl.cli import options
from clusterctl.errors import UsageError


@click.command(short_help="Restart an unfinished run from its last checkpoint")
@click.argument("name", metavar="RUN|SWEEP")
@click.option("--cluster", metavar="NAME", help="Where to run; default: where it ran before.")
@options.resource_options
@options.sweep_options
@options.waiting_options
def resume(
    name: str,
    cluster: str | None,
    settings: tuple[str, ...],
    axes: tuple[str, ...],
    hold: bool,
    follow: bool,
    wait: bool,
    timeout: float | None,
    **shortcuts: str | None,
) -> None:
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
    from clusterctl.api.find import find
    from clusterctl.api.resume import resume_alone
    from clusterctl.api.stages import resume_later
    from clusterctl.api.sweeps import sweep_meant
    from clusterctl.display.build_progress import shown

    options.check_waiting(hold, follow, wait, timeout)
    changes = options.typed_settings(settings, shortcuts)
    if sweep := sweep_meant(name, cluster):
        from clusterctl.cli.sweep import resume_sweep

        if changes or follow:
            raise UsageError(
                "a sweep cannot be changed or followed when resumed", f"resume one run: clusterctl resume {sweep.id}.0"
            )
        resume_sweep(sweep, cluster, axes, hold=hold)
        if wait:
            sweep.wait(timeout)
        return
    if axes:
        raise UsageError(f"--sweep: {name} is not a sweep", "submit it as one: clusterctl submit JOB --sweep ...")
    with shown() as progress:
        run = resume_alone(find(name, cluster), cluster, overrides=changes, hold=hold, progress=progress)
        later = resume_later(run.directory, progress)
    options.show_batches(run.batches)
    options.warn_of(run.warnings)
    click.echo("\n".join(one.id for one in (run, *later)))
    if not (follow or wait):
        options.echo_next(run, f"attempt {len(run.directory.attempts())}", hold=hold)
    options.await_end(run, follow, wait, timeout)

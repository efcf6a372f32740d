"""`clusterctl resume`: start a run again that ended before it was finished."""

from __future__ import annotations

import click

from clusterctl.cli import options
from clusterctl.errors import UsageError


@click.command(short_help="Start a run again that ended before it was finished")
@click.argument("name", metavar="RUN|SWEEP")
@click.option("--cluster", metavar="NAME", help="Where to run now; default: where it ran before.")
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
    """Start RUN again, which failed, timed out, was cancelled, preempted or lost, from its last checkpoint.

    It is the same run with the same code, and a further attempt; resources and most of what it trains with may be
    changed. Secrets are in no file: have them in your environment, as when you submitted it.

    Later stages of its job that were cancelled with it are submitted again. Of a SWEEP those runs are started again
    that have ended unfinished; --sweep adds runs for further values.

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
                "a sweep is resumed as it was, and not followed", f"one run: clusterctl resume {sweep.id}.0"
            )
        resume_sweep(sweep, cluster, axes, hold=hold)
        if wait:
            sweep.wait(timeout)
        return
    if axes:
        raise UsageError(f"--sweep: {name} is no sweep", "submit it as one: clusterctl submit JOB --sweep ...")
    with shown() as progress:
        run = resume_alone(find(name, cluster), cluster, overrides=changes, hold=hold, progress=progress)
        later = resume_later(run.directory, progress)
    options.show_batches(run.batches)
    options.warn_of(run.warnings)
    click.echo("\n".join(one.id for one in (run, *later)))
    if not (follow or wait):
        options.echo_next(run, f"attempt {len(run.directory.attempts())}", hold=hold)
    options.await_end(run, follow, wait, timeout)

"""`clusterctl submit`: send a job to a cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import await_end, check_waiting, resource_options, typed_settings, waiting_options
from clusterctl.config import load_cluster, resolve
from clusterctl.errors import UsageError
from clusterctl.spec import PROFILED_STEPS, LoopTrain

if TYPE_CHECKING:
    from clusterctl.config import Resolved
    from clusterctl.runs.layout import RunDir
    from clusterctl.slurm import Slurm
    from clusterctl.slurm.allocation import Allocation


@click.command(short_help="Send a job to a cluster")
@click.argument("job")
@click.option("--cluster", metavar="NAME", help="Where to run; default: CLUSTERCTL_CLUSTER, your configuration, local.")
@resource_options
@click.option("--name", metavar="NAME", help="The run's name; default: the job's.")
@click.option("--code", metavar="mounted|image", help="Which code runs in an image: this one (default), or its own.")
@click.option(
    "--dry-run",
    type=click.Choice(["script", "slurm"]),
    is_flag=False,
    flag_value="script",
    help="Print the script and submit nothing; =slurm also asks Slurm whether and when it would start.",
)
@click.option(
    "--in-allocation", metavar="JOBID", help="Start it at once on the nodes that this job holds (clusterctl alloc)."
)
@click.option("--profile", is_flag=True, help="Trace some steps on every rank; short for --set train.profile=[10,20].")
@waiting_options
@click.option("-o", "output", type=click.Choice(["id", "json"]), default="id", help="What stdout gets.")
def submit(
    job: str,
    cluster: str | None,
    settings: tuple[str, ...],
    dry_run: str | None,
    in_allocation: str | None,
    profile: bool,
    hold: bool,
    follow: bool,
    wait: bool,
    timeout: float | None,
    output: str,
    **shortcuts: str | None,
) -> None:
    """Send JOB (a name such as cora, or a path to a TOML file) to a cluster.

    \b
    Examples:
      clusterctl submit cora --follow
      clusterctl submit reddit --cluster example-pyxis --nodes 4 --set train.lr=3e-3
      clusterctl submit ./mine.toml --dry-run
    """
    if dry_run and (hold or follow or wait):
        raise UsageError("--dry-run submits nothing to hold, follow or wait for", "leave the other flag out")
    check_waiting(hold, follow, wait, timeout)
    if in_allocation and hold:
        raise UsageError("--hold: a run in an allocation has no queue to wait in", "leave one of them out")
    resolved = resolve(job, load_cluster(cluster), typed_settings(settings, shortcuts))
    resolved = _profiled(resolved) if profile else resolved
    if dry_run:
        _show_plan(resolved, dry_run == "slurm", in_allocation)
        return
    run = _submitted(resolved, hold, in_allocation, output, told_next=follow or wait)
    await_end(run, resolved.cluster, follow, wait, timeout)


def _profiled(resolved: Resolved) -> Resolved:
    """The same with steps to trace: those of the job, if it names any."""
    train = resolved.job.train
    if not isinstance(train, LoopTrain):
        hint = "let the program record its own trace: torch.profiler.profile(), export_chrome_trace()"
        raise UsageError(f'--profile: workload "{resolved.job.workload}" has no training loop of clusterctl\'s', hint)
    if train.profile:
        return resolved
    job = replace(resolved.job, train=replace(train, profile=PROFILED_STEPS))
    return replace(resolved, job=job, origins=resolved.origins | {"train.profile": "--profile"})


def _show_plan(resolved: Resolved, ask_slurm: bool, in_allocation: str | None) -> None:
    from clusterctl.api.submit import planned
    from clusterctl.display.plain import plain_lines
    from clusterctl.launch.script import render

    allocation = _held(resolved, in_allocation) if in_allocation else None
    plan = planned(resolved, allocation)
    script = render(plan)
    script = plain_lines(script) if sys.stdout.isatty() else script
    click.echo(script, nl=False, color=True)  # a file gets the very script: click would drop escape codes from values
    if ask_slurm and allocation is None:
        from clusterctl.launch.sbatch import test_only

        slurm = _slurm(resolved)
        _check_container(resolved, slurm)
        click.echo(test_only(plan, slurm.path_of("sbatch"), slurm.environment), err=True)


def _held(resolved: Resolved, job_id: str) -> Allocation:
    """The allocation with this number, which holds its nodes."""
    from clusterctl.launch.warm import find_allocation

    return find_allocation(_slurm(resolved), job_id)


def _submitted(resolved: Resolved, hold: bool, in_allocation: str | None, output: str, told_next: bool) -> RunDir:
    from clusterctl.api.submit import submit as send
    from clusterctl.api.submit import submit_warm
    from clusterctl.runs.files import read_json

    slurm = _slurm(resolved)
    _check_container(resolved, slurm)
    if in_allocation:
        run = submit_warm(resolved, _held(resolved, in_allocation), slurm.path_of("srun"), slurm.environment)
    else:
        run = send(resolved, slurm.path_of("sbatch"), slurm.environment, hold=hold)
    job_id = read_json(run.submission_json)["job_id"]
    record = {"schema_version": 1, "id": run.id, "job_id": job_id, "directory": str(run.path)}
    click.echo(json.dumps(record) if output == "json" else run.id)
    if sys.stderr.isatty() and not told_next:  # a person is told what to type next; a program reads stdout
        first = f"clusterctl release {run.id}" if hold else f"clusterctl logs -f {run.id}"
        click.echo(f"job {job_id} on {resolved.cluster.name}\nnext: {first}\n      clusterctl status", err=True)
    return run


def _check_container(resolved: Resolved, slurm: Slurm) -> None:
    if resolved.job.container.image:
        from clusterctl.api.submit import planned
        from clusterctl.checks.image import check_container, fetch_image
        from clusterctl.cli.options import warn

        plan = planned(resolved)
        if plan.view and plan.view.image != resolved.job.container.image:
            from clusterctl.display.build_progress import shown

            with shown(verbose=False) as progress:
                fetch_image(plan, resolved, progress)
        for complaint in check_container(plan, resolved, slurm):
            warn(complaint.message, complaint.hint)


def _slurm(resolved: Resolved) -> Slurm:
    from clusterctl.slurm import Slurm

    return Slurm.of(resolved.cluster)

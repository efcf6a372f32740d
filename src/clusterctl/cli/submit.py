"""`clusterctl submit`: send a job to a cluster."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING

import click

from clusterctl.config import load_cluster, resolve
from clusterctl.errors import RunFailed, UsageError

if TYPE_CHECKING:
    from clusterctl.config import Resolved
    from clusterctl.runs.layout import RunDir
    from clusterctl.runs.stages import Stage
    from clusterctl.slurm import Slurm
    from clusterctl.slurm.allocation import Allocation

# Flags for what is changed most often; each is short for --set KEY=VALUE.
_SHORTCUTS = {
    "nodes": "resources.nodes",
    "gpus_per_node": "resources.gpus_per_node",
    "tasks_per_node": "resources.tasks_per_node",
    "time": "resources.time",
    "partition": "resources.partition",
    "account": "resources.account",
    "qos": "resources.qos",
    "name": "name",
    "code": "container.code",
}


@click.command(short_help="Send a job to a cluster")
@click.argument("job")
@click.option("--cluster", metavar="NAME", help="Where to run; default: CLUSTERCTL_CLUSTER, your configuration, local.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change any value, e.g. train.lr=3e-3.")
@click.option("--nodes", metavar="N", help="Short for --set resources.nodes=N.")
@click.option("--gpus-per-node", metavar="N", help="Short for --set resources.gpus_per_node=N.")
@click.option("--tasks-per-node", metavar="N", help="Short for --set resources.tasks_per_node=N.")
@click.option("--time", metavar="TIME", help="Time limit: 90 (minutes), 4h, 1-00:00:00.")
@click.option("--partition", metavar="NAME", help="Slurm's partition.")
@click.option("--account", metavar="NAME", help="Slurm's account.")
@click.option("--qos", metavar="NAME", help="Slurm's quality of service.")
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
@click.option("--hold", is_flag=True, help="Queue it, but do not let it start before `clusterctl release`.")
@click.option("--follow", is_flag=True, help="Show the training until it ends; Ctrl-C leaves the run alone.")
@click.option("--wait", is_flag=True, help="Return when the run has ended: 0 if it finished, else 1.")
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(min=0), help="With --wait: exit 124 after this long."
)
@click.option("-o", "output", type=click.Choice(["id", "json"]), default="id", help="What stdout gets.")
def submit(
    job: str,
    cluster: str | None,
    settings: tuple[str, ...],
    dry_run: str | None,
    in_allocation: str | None,
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
    _check_flags(dry_run, hold, follow, wait, timeout)
    if in_allocation and hold:
        raise UsageError("--hold: a run in an allocation has no queue to wait in", "leave one of them out")
    typed = [f"{_SHORTCUTS[name]}={value}" for name, value in shortcuts.items() if value is not None]
    resolved = resolve(job, load_cluster(cluster), [*settings, *typed])
    if dry_run:
        _show_plan(resolved, dry_run == "slurm", in_allocation)
        return
    run = _submitted(resolved, hold, in_allocation, output, told_next=follow or wait)
    if follow:
        from clusterctl.display.follow import show

        _conclude(run, show(run, resolved.cluster))
    elif wait:
        from clusterctl.observe.follow import wait as wait_for

        _conclude(run, wait_for(run, resolved.cluster, timeout))


def _check_flags(dry_run: str | None, hold: bool, follow: bool, wait: bool, timeout: float | None) -> None:
    if dry_run and (hold or follow or wait):
        raise UsageError("--dry-run submits nothing to hold, follow or wait for", "leave the other flag out")
    if hold and (follow or wait):
        raise UsageError("--hold with --follow or --wait would wait for ever", "leave one of them out")
    if follow and wait:
        raise UsageError("--follow and --wait: only one of them can have the terminal", "leave one of them out")
    if timeout is not None and (not wait or math.isnan(timeout)):
        raise UsageError("--timeout needs --wait, and a number of seconds", "for example --wait --timeout 600")


def _show_plan(resolved: Resolved, ask_slurm: bool, in_allocation: str | None) -> None:
    from clusterctl.display.plain import plain_lines
    from clusterctl.launch.script import render
    from clusterctl.launch.submit import planned

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
    from clusterctl.launch.submit import submit as send
    from clusterctl.launch.submit import submit_warm
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
        from clusterctl.cli.options import warn
        from clusterctl.launch.containers import check_container, fetch_image
        from clusterctl.launch.submit import planned

        plan = planned(resolved)
        if plan.view and plan.view.image != resolved.job.container.image:
            from clusterctl.display.progress import shown

            with shown(verbose=False) as progress:
                fetch_image(plan, resolved, progress)
        for complaint in check_container(plan, resolved, slurm):
            warn(complaint.message, complaint.hint)


def _slurm(resolved: Resolved) -> Slurm:
    from clusterctl.slurm import Slurm

    return Slurm.of(resolved.cluster)


def _conclude(run: RunDir, stage: Stage) -> None:
    from clusterctl.runs.stages import Stage

    if stage is not Stage.FINISHED:
        raise RunFailed(f"run {run.id} ended: {stage}{_cause(run)}", f"clusterctl why {run.id}")


def _cause(run: RunDir) -> str:
    """The first cause in a few words, if the files tell it."""
    from clusterctl.insight.why import explain, headline
    from clusterctl.observe.traces import gather
    from clusterctl.observe.why import status_of

    return f": {headline(explain(gather(status_of(run))))}"

"""`clusterctl submit`: submit a job, its stages, or a sweep to a cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import click

from clusterctl.launcher.cli import options
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.submitting.submit import DryRun
    from clusterctl.launcher.api.sweeps import Sweep


class _After(TypedDict):
    after: tuple[str, ...]
    after_any: tuple[str, ...]
    after_start: tuple[str, ...]


class _One(_After):
    stage: str | None
    program: tuple[str, ...]
    overrides: tuple[str, ...]
    profile: bool
    in_allocation: str | None


class _Swept(TypedDict):
    program: tuple[str, ...]
    axes: tuple[str, ...]
    file: str | None
    samples: int | None
    seed: int
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Request(options.Starting):
    """The command line of `submit`."""

    job: str | None
    program: tuple[str, ...]
    dry_run: str | None
    stage: str | None
    in_allocation: str | None
    axes: tuple[str, ...]
    sweep_file: str | None
    samples: int | None
    sample_seed: int
    at_once: int | None
    stop_early: str | None
    large_code: bool
    profile: bool
    probe: bool
    after: tuple[str, ...]
    after_any: tuple[str, ...]
    after_start: tuple[str, ...]
    output: str

    @property
    def is_sweep(self) -> bool:
        return bool(self.axes or self.sweep_file)

    @property
    def waits_for(self) -> _After:
        return {"after": self.after, "after_any": self.after_any, "after_start": self.after_start}

    @property
    def one(self) -> _One:
        """What a single run is made of, submitted or shown."""
        return {
            "stage": self.stage,
            "program": self.program,
            "overrides": self.settings,
            "profile": self.profile,
            "in_allocation": self.in_allocation,
            **self.waits_for,
        }

    @property
    def swept(self) -> _Swept:
        """What the runs of a sweep are made of."""
        return {
            "program": self.program,
            "axes": self.axes,
            "file": self.sweep_file,
            "samples": self.samples,
            "seed": self.sample_seed,
            "overrides": self.settings,
        }

    def check(self) -> None:
        """Raise UsageError for options that cannot be combined."""
        if self.probe:
            self.check_probe()
        self.check_waiting(dry_run=bool(self.dry_run))
        if self.is_sweep:
            self.check_sweep("--sweep")
        elif self.samples or self.sample_seed or self.at_once or self.stop_early:
            given = "--samples, --sample-seed, --at-once and --stop-early need a sweep"
            raise UsageError(given, "for example --sweep train.lr=1e-3,1e-2")

    def check_probe(self) -> None:
        """Raise UsageError for options that cannot be combined with --probe, which ends its run after a step."""
        others = {"--dry-run": self.dry_run, "--hold": self.hold, "--follow": self.follow, "--wait": self.wait}
        others |= {"--sweep": self.is_sweep, "--in-allocation": self.in_allocation, "--profile": self.profile}
        others |= {"--after": any(self.waits_for.values())}
        if given := next((option for option, value in others.items() if value), None):
            raise UsageError(
                f"--probe ends its run after a step: it cannot be combined with {given}", "leave one of them out"
            )

    def check_sweep(self, option: str) -> None:
        """Raise UsageError for options that apply to a single run: `option` starts several."""
        if self.follow:
            raise UsageError("--follow shows a single run", "watch the sweep with: clusterctl status --watch SWEEP")
        if self.in_allocation:
            raise UsageError(f"{option} cannot be combined with --in-allocation", "leave one of them out")
        if self.profile:
            raise UsageError(f"--profile cannot be combined with {option}", "profile a single run")
        if self.stage:
            raise UsageError(f"--stage cannot be combined with {option}", "leave one of them out")
        if self.sample_seed and not self.samples:
            raise UsageError("--sample-seed needs --samples", "for example --samples 20")

    def check_stages(self) -> None:
        """Raise UsageError for options that apply to a single run: the job has several stages."""
        if self.follow:
            raise UsageError(
                "--follow shows a single run",
                "watch the stages with: clusterctl status --watch; or choose one: --stage NAME",
            )
        single = {"program": self.program, "profile": self.profile, "in-allocation": self.in_allocation}
        if given := next((flag for flag, value in single.items() if value), None):
            raise UsageError(f"--{given}: the job has several stages", "choose one: --stage NAME")


def _predecessor_option(flag: str, text: str) -> Callable[[options.Command], options.Command]:
    return click.option(flag, metavar="RUN|SWEEP", multiple=True, help=text)


class _Submit(options.WithProgram, options.InGroups):
    """A program after `--`, and more options than one list is read for."""


_GROUPS = {
    "Where and when": ("cluster", "partition", "account", "qos", "in_allocation", "dependency", "hold"),
    "Settings": ("settings", "name", "note", "tags", "stage", "code", "profile", "probe", "large_code"),
    "Resources": ("nodes", "gpus_per_node", "tasks_per_node", "ntasks", "cpus_per_task", "memory", "gpus", "time"),
    "Sweeps": ("axes", "sweep_file", "samples", "sample_seed", "at_once", "stop_early"),
    "After other runs": ("after", "after_any", "after_start"),
    "What to show": ("dry_run", "follow", "wait", "timeout", "output"),
}


def choose_cluster(typed: Mapping[str, Any]) -> str:
    """Ask each of several clusters when it would start the job, print the answers, and return the first to start."""
    from clusterctl.launcher.api import several_clusters
    from clusterctl.launcher.display.plain import plain

    request = Request.of(typed)
    request.check()
    if request.in_allocation or any(request.waits_for.values()):
        given = "--in-allocation" if request.in_allocation else "--after"
        raise UsageError(f"{given} refers to one cluster, but several are named", "choose one: --cluster NAME")
    names = several_clusters.names_in(request.cluster or "")
    if len(names) == 1:
        return names[0]
    found = several_clusters.offers(
        names, request.job, stage=request.stage, program=request.program, overrides=request.settings
    )
    for line in found.lines:
        click.echo(plain(line), err=True)
    return found.best.cluster


@click.command(cls=_Submit, groups=_GROUPS, short_help="Submit a job to a cluster")
@click.argument("job", required=False)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Where to run; of NAME,NAME where it starts first; default: CLUSTERCTL_CLUSTER, your configuration, local.",
)
@options.resource_options
@options.shorthand(
    "-n", "--ntasks", key="resources.sbatch.ntasks", metavar="N", help="Number of tasks of a batch script."
)
@options.shorthand(
    "-a",
    "--array",
    key="resources.sbatch.array",
    metavar="LIST",
    help="Indices of a batch script's array, such as 0-9 or 1,3,7-15:2%4.",
)
@options.shorthand(
    "-D", "--chdir", key="resources.sbatch.chdir", metavar="FOLDER", help="Folder in which a batch script starts."
)
@options.shorthand("-c", "--cpus-per-task", key="resources.cpus_per_task", metavar="N", help="CPU cores for each task.")
@options.shorthand(
    "--mem",
    "--memory",
    "memory",
    key="resources.memory",
    metavar="SIZE",
    help="Memory of each node: 64G, or auto (by past runs).",
)
@options.shorthand(
    "-G", "--gpus", key="resources.sbatch.gpus", metavar="N", help="GPUs of a batch script, on all its nodes together."
)
@options.shorthand(
    "-d", "--dependency", key="resources.dependency", metavar="LIST", help="Jobs to wait for, such as afterok:1234."
)
@options.shorthand("-J", "--name", key="name", metavar="NAME", help="The run's name; default: the job's.")
@options.label_options
@options.shorthand(
    "--code",
    key="container.code",
    metavar="mounted|image",
    help="Code to run in an image: the local code (default) or the image's.",
)
@click.option(
    "--dry-run",
    type=click.Choice(["script", "slurm"]),
    is_flag=False,
    flag_value="script",
    help="Print the script and submit nothing; =slurm also asks Slurm whether and when it would start.",
)
@click.option(
    "--in-allocation", metavar="JOBID", help="Start immediately on the nodes of this allocation (clusterctl alloc)."
)
@click.option("--stage", metavar="NAME", help="Submit only this stage of a job; default: all stages, in order.")
@options.sweep_options
@click.option("--sweep-file", metavar="FILE", help="Start one run per line of FILE, with the settings on that line.")
@click.option("--samples", metavar="N", type=click.IntRange(min=1), help="Sample N random combinations of a sweep.")
@click.option("--sample-seed", metavar="N", type=int, default=0, help="Seed for --samples; default: 0.")
@click.option("--at-once", metavar="N", type=click.IntRange(min=1), help="At most N runs of a sweep at the same time.")
@options.shorthand(
    "--stop-early",
    key="train.stop_early",
    metavar="EPOCH",
    help="Successive halving of a sweep at this epoch, twice it, ...; short for --set train.stop_early=EPOCH.",
)
@click.option("--large-code", is_flag=True, help="Copy the project without asking, however large it is.")
@click.option(
    "--profile", is_flag=True, help="Profile some steps on every rank; short for --set train.profile=[10,20]."
)
@click.option("--probe", is_flag=True, help="Try it on one node until its first step, end it, and show what it used.")
@_predecessor_option("--after", "Start when RUN, or every run of SWEEP, has finished; repeatable.")
@_predecessor_option("--after-any", "Start when RUN, or every run of SWEEP, has ended.")
@_predecessor_option("--after-start", "Start when RUN, or every run of SWEEP, has started.")
@options.waiting_options
@click.option("-o", "output", type=click.Choice(["id", "json"]), default="id", help="Output format.")
@remotely(changes=True, job="job", code=True, chooses=choose_cluster)
def submit(**typed: Any) -> None:
    """Submit JOB (a name such as cora, or the path of a TOML file) to a cluster, or PROGRAM without a job.

    PROGRAM replaces the job's program. Its arguments are passed on unchanged. JOB may also be your own batch script,
    which runs as sbatch would run it; what follows -- are then its arguments.

    \b
    Examples:
      clusterctl submit cora --follow
      clusterctl submit reddit --cluster example-pyxis --nodes 4 --set train.lr=3e-3
      clusterctl submit ./mine.toml --dry-run
      clusterctl submit ./evaluate.toml --after @last
      clusterctl submit cora --sweep train.lr=1e-3,1e-2 --sweep train.seed=0..4
      clusterctl submit --nodes 2 -- python train.py --lr 3e-3
      clusterctl submit ./train.sbatch -N 4 -- --lr 3e-3
    """
    request = Request.of(typed)
    request.check()
    if request.probe:
        _probe(request)
        return
    if request.is_sweep:
        _submit_sweep(request)
        return
    from clusterctl.launcher.api.submitting import submit as api

    try:
        if request.dry_run:
            plan = api.plan(request.job, request.cluster, **request.one)
            ask_slurm = request.dry_run == "slurm" and not request.in_allocation
            show_plan(plan, ask_slurm=ask_slurm, large_code=request.large_code)
            return
        from clusterctl.launcher.api.submitting import start  # a dry run does not need it

        one = partial(start.submit, request.job, request.cluster, **request.one, hold=request.hold)
        run = options.asked_if_large(one, large=request.large_code)
    except api.HasStages:
        request.check_stages()
        _submit_stages(request)
        return
    except api.HasArray:
        request.check_sweep("--array")
        _submit_sweep(request)
        return
    options.show_batches(run.batches)
    options.warn_of(run.warnings)
    echo_run(run, request.output)
    options.show_advice(start.advice_on(run))  # may read many runs, and nobody should wait for the id meanwhile
    request.await_run(run, f"job {run.job_id}", also="\n      clusterctl status")


def _probe(request: Request) -> None:
    """Try the job on one node, and print what it used."""
    from clusterctl.launcher.api import json_output
    from clusterctl.launcher.api.submitting import probe as api
    from clusterctl.launcher.display import tables, terminal

    probe = partial(
        api.probe,
        request.job,
        request.cluster,
        stage=request.stage,
        program=request.program,
        overrides=request.settings,
        started=lambda run: click.echo(f"{run.id}: trying it on one node until its first step", err=True),
    )
    found = options.asked_if_large(probe, large=request.large_code)
    if request.output == "json":
        options.echo_json(json_output.run_usage(found.usage))
    else:
        tables.show_run_usage(terminal.data(), found.usage)
    click.echo(f"used {found.until}, on one node; later steps and evaluations may need more", err=True)
    click.echo(tables.note_on_usage(found.usage), err=True)
    found.check()


def _submit_stages(request: Request) -> None:
    """Submit every stage and print its run; a dry run prints the scripts."""
    assert request.job is not None  # a program has no stages
    from clusterctl.launcher.api.submitting import start
    from clusterctl.launcher.api.submitting import submit as api
    from clusterctl.launcher.display.terminal import shown

    if request.dry_run:
        for plan in api.plan_stages(request.job, request.cluster, overrides=request.settings):
            show_plan(plan, ask_slurm=request.dry_run == "slurm", large_code=request.large_code)
        return
    with shown() as progress:
        runs = start.submit_stages(
            request.job,
            request.cluster,
            overrides=request.settings,
            hold=request.hold,
            **request.waits_for,
            large_code=request.large_code,
            progress=progress,
        )
    for run in runs:
        options.warn_of(run.warnings)
        echo_run(run, request.output)
    request.await_end(runs)


def _submit_sweep(request: Request) -> None:
    """Submit a sweep and print it; a dry run prints the settings of each run instead."""
    from clusterctl.launcher.api.submitting import start
    from clusterctl.launcher.api.submitting import sweep as api
    from clusterctl.launcher.api.submitting.submit import find_waited_for
    from clusterctl.launcher.display.plain import plain
    from clusterctl.launcher.display.terminal import shown

    if request.dry_run:
        wanted = api.load_sweep(request.job, request.cluster, **request.swept)
        if waited_for := find_waited_for(wanted.jobs[0], **request.waits_for, in_allocation=None):
            waited_for.check(wanted.jobs[0].job.resources)
        for place, row in enumerate(api.shown_rows(wanted)):
            click.echo(plain(f"{place:>5}  {' '.join(row)}"))
        click.echo(f"{len(wanted.jobs)} runs; to see the script of one, use --set in place of --sweep", err=True)
        return
    with shown() as progress:
        sweep = start.sweep(
            request.job,
            request.cluster,
            **request.swept,
            at_once=request.at_once,
            hold=request.hold,
            **request.waits_for,
            large_code=request.large_code,
            progress=progress,
        )
    options.show_batches(sweep.runs[0].batches)
    announce(sweep, request.output)
    request.await_end([sweep])


def echo_run(run: Run, output: str) -> None:
    """Print a submitted run for programs to read."""
    if output == "json":
        from clusterctl.launcher.api import json_output

        click.echo(json.dumps(json_output.submitted(run)))
    else:
        click.echo(run.id)


def show_plan(plan: DryRun, *, ask_slurm: bool, large_code: bool = False) -> None:
    """Print the script, and to stderr what can be determined without submitting."""
    from clusterctl.launcher.display.plain import plain, plain_lines

    script = plain_lines(plan.script) if sys.stdout.isatty() else plan.script
    if plan.command or plan.waiting:
        click.echo(plain(f"{plan.command or 'sbatch'} {' '.join(plan.waiting)}".strip()), err=True)
    click.echo(script, nl=False, color=True)  # verbatim: click would drop escape codes from values
    if plan.unseen:
        click.echo(plain(plan.unseen), err=True)
    if plan.programs:
        click.echo(plain(plan.programs), err=True)
    if plan.environment:
        click.echo(plain(plan.environment), err=True)
    for line in plan.roles:
        click.echo(plain(line), err=True)
    if plan.idle:
        click.echo(plan.idle, err=True)
    if plan.restarts:
        click.echo(plain(plan.restarts), err=True)
    if plan.launcher:
        click.echo(plain_lines(plan.launcher), err=True)
    options.show_batches(plan.batches)
    if plan.memory_line:
        click.echo(plan.memory_line, err=True)
    options.show_advice(plan.advice)
    options.warn_of(plan.verify(large_code=large_code) if ask_slurm else plan.warnings)
    if ask_slurm:
        click.echo(plan.ask_slurm(), err=True)


def announce(sweep: Sweep, output: str = "id") -> None:
    """Print the sweep and, at a terminal, the next command to type."""
    options.warn_of(sweep.warnings)
    if output == "json":
        from clusterctl.launcher.api import json_output

        click.echo(json.dumps(json_output.submitted_sweep(sweep)))
    else:
        click.echo(sweep.id)
    if sys.stderr.isatty():
        click.echo(options.with_flags(f"{len(sweep.runs)} runs\nnext: clusterctl status {sweep.id}"), err=True)

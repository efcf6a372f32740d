"""`clusterctl status`: show runs."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from clusterctl.launcher.api import json_output
from clusterctl.launcher.api.find import Listing, State, in_order, query
from clusterctl.launcher.api.jobs import jobs, jobs_named, plain_job
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.api.sweeps import sweep_meant
from clusterctl.launcher.cli.options import echo_csv, echo_json, warn_of, with_flags
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clusterctl.launcher.api.find import Query, RunStatuses
    from clusterctl.launcher.api.sweeps import Sweep
    from clusterctl.launcher.display.explanation import Causes

Look = TypeVar("Look")
LOOK_SECONDS = 2.0
_DEFAULT_COUNT = 10
_TABLES = ("table", "wide")
_OUTPUTS = [*_TABLES, "json", "jsonl", "csv"]
_ENDED_BADLY = (State.FAILED, State.TIMED_OUT, State.LOST, State.CANCELLED)


class _Filters(TypedDict):
    name: tuple[str, ...]
    state: tuple[str, ...]
    tag: tuple[str, ...]
    since: str | None
    count: int | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `status`."""

    names: tuple[str, ...]
    count: int | None
    everything: bool
    all_jobs: bool
    name: tuple[str, ...]
    state: tuple[str, ...]
    tag: tuple[str, ...]
    since: str | None
    metric: str | None
    sort: str | None
    roles: bool
    watch: bool
    output: str
    cluster: str | None

    @property
    def narrowed(self) -> bool:
        """Whether only some runs are to be shown, but not by their names."""
        return bool(self.name or self.state or self.since or self.tag)

    @property
    def has_several_clusters(self) -> bool:
        return "," in (self.cluster or "")

    @property
    def filters(self) -> _Filters:
        most = None if self.everything else self.count or _DEFAULT_COUNT
        return {"name": self.name, "state": self.state, "tag": self.tag, "since": self.since, "count": most}

    def query(self, names: Iterable[str]) -> Query:
        """The runs called `names`, else those that the options select."""
        return query(names, **self.filters, cluster=self.cluster, counted=self.watch)

    def check(self) -> None:
        """Raise UsageError for options that cannot be combined."""
        if self.names and (self.narrowed or self.everything or self.count):
            raise UsageError(
                "RUN cannot be combined with -n, -a, --name, --state, --tag or --since", "leave one of them out"
            )
        if self.roles and (not self.names or self.watch or self.all_jobs or self.output not in _TABLES):
            raise UsageError(
                "--roles shows named runs once, as a table", "for example: clusterctl status @last --roles"
            )

    def check_once(self, of_jobs: bool) -> None:
        """Raise UsageError for options that do not go with what is shown: Slurm jobs, changes, several clusters."""
        once = bool(self.watch or self.metric or self.sort or self.output in ("jsonl", "csv"))
        if of_jobs and (once or self.has_several_clusters):
            raise UsageError("Slurm jobs can only be shown once, as a table or json", "leave out the other options")
        if self.watch and self.output in ("json", "csv"):
            hint = "use -o jsonl, which prints a line whenever a run changes"
            raise UsageError(f"--watch cannot write {self.output}", hint)
        if self.has_several_clusters and (once or self.names):
            hint = "choose one: --cluster NAME"
            raise UsageError("several clusters can only be shown once, as a table or json", hint)


@click.command(short_help="Show runs: state, progress, accuracy")
@click.argument("names", metavar="[RUN|SWEEP|JOBID]...", nargs=-1)
@click.option("-n", "count", metavar="N", type=click.IntRange(min=1), help="Show the newest N runs; default: 10.")
@click.option("-a", "--all", "everything", is_flag=True, help="Show all runs.")
@click.option("--all-jobs", is_flag=True, help="Also show your Slurm jobs that clusterctl did not submit.")
@click.option("--name", metavar="GLOB", multiple=True, help="Only runs whose job or id matches, e.g. 'cora*'.")
@click.option(
    "--state", "state", metavar="STATE", multiple=True, help="Only runs in this state, or: alive, running, ended."
)
@click.option("--tag", metavar="WORD", multiple=True, help="Only runs submitted with --tag WORD; of several, with all.")
@click.option("--since", metavar="AGE", help="Only runs submitted within this time: 90m, 8h, 2d.")
@click.option("--metric", metavar="NAME", help="For a sweep: metric that decides the best run; default: its score.")
@click.option(
    "--sort", metavar="COLUMN", help="Sort single runs by a column or metric, the best, newest or largest first."
)
@click.option("--roles", is_flag=True, help="Also show the roles of each RUN whose job has several programs.")
@click.option("-w", "--watch", is_flag=True, help="Refresh every 2 seconds until Ctrl-C.")
@click.option("-o", "output", type=click.Choice(_OUTPUTS), default="table", help="Output format.")
@click.option("--cluster", metavar="NAME", help="Cluster whose runs to show; several: NAME,NAME.")
@remotely(watch="watch", several=True)
def status(**typed: Any) -> None:
    """Show RUNs, or the newest runs: state, progress, time left, loss, accuracy, throughput.

    A sweep is listed on one line. To see its runs and their settings, name it. JOBID is a Slurm job of yours that
    clusterctl did not submit; --all-jobs shows all of those that squeue shows.

    \b
    Examples:
      clusterctl status
      clusterctl status --watch
      clusterctl status --state running --since 2d
      clusterctl status @last -o json
      clusterctl status --all-jobs
    """
    request = Request(**typed)
    request.check()
    job_ids = {name: job_id for name in request.names if (job_id := plain_job(name, request.cluster))}
    of_jobs = bool(request.all_jobs or job_ids)
    request.check_once(of_jobs)
    if of_jobs:
        _show_jobs(request, job_ids)
    elif request.has_several_clusters:
        _show_clusters(request)
    else:
        _show_runs(request)


def _show_runs(request: Request) -> None:
    """Show the runs once, or repeatedly with --watch."""
    wanted = request.query(request.names)
    sweep = sweep_meant(request.names[0], request.cluster) if len(request.names) == 1 else None
    if request.metric and sweep is None:
        raise UsageError("--metric ranks the runs of a sweep", "name one: clusterctl status SWEEP --metric NAME")
    look = _Looking(wanted, sweep, request.metric, request.sort.lower() if request.sort else None)
    if request.watch:
        _watch(look, request.output)
        return
    if request.output in _TABLES:
        from clusterctl.launcher.display import runs_table, terminal  # rich: for people only

        listing = look.listing()
        any_found, problems = bool(listing.rows), listing.problems
        if listing.rows:
            runs_table.show_runs(terminal.data(), listing, wide=request.output == "wide")
            if request.roles:
                from clusterctl.launcher.display import tables

                runs = [Run(wanted.folder / row.run) for row in listing.rows]
                roles = [(run.id, run.roles()) for run in runs if run.path.is_dir()]
                if not tables.show_roles(terminal.data(), roles):
                    click.echo("no roles: each of these runs has a single program", err=True)
            if sweep is None:
                _count_older(request, listing.more)
                _show_cause(wanted, listing)
        elif not problems:
            none_yet = "no runs yet; try: clusterctl submit cora --follow"
            click.echo("no matching runs" if request.narrowed else with_flags(none_yet), err=True)
    else:
        found = look.statuses()
        any_found, problems = bool(found.statuses), found.problems
        if request.output == "json":
            echo_json(json_output.status(found))
        elif request.output == "jsonl":
            for run in json_output.runs(found):
                click.echo(json.dumps(run))
        else:
            echo_csv(*json_output.flat(json_output.runs(found)))
        _count_older(request, found.more)
    if request.names and not any_found:
        raise problems[0]
    warn_of(problems)


def _show_jobs(request: Request, job_ids: Mapping[str, str]) -> None:
    """Show Slurm jobs that are not runs: those in `job_ids`, by the name typed, or all. The other names are runs."""
    names = [name for name in request.names if name not in job_ids]
    wanted = request.query(names) if names or not request.names else None
    named = jobs_named([*job_ids.values()], request.cluster) if job_ids else []
    known = {job.job_id for job in named}
    others = jobs(request.cluster) if request.all_jobs else ()
    shown = [*named, *(job for job in others if job.job_id not in known)]
    if request.output == "json":
        looked = wanted.look() if wanted else None
        echo_json(json_output.with_jobs(looked, shown, time.time()))
        warn_of(looked.problems if looked else ())
        return
    from clusterctl.launcher.display import runs_table, tables, terminal

    console = terminal.data()
    if wanted and (listing := _Looking(wanted).listing()).rows:
        runs_table.show_runs(console, listing, wide=request.output == "wide")
        warn_of(listing.problems)
        if shown:
            console.print()
    if shown:
        tables.show_jobs(console, shown, time.time())
    elif request.all_jobs:
        click.echo("no other jobs", err=True)


def _show_clusters(request: Request) -> None:
    """Show the runs of several clusters, each with the age of its data."""
    from clusterctl.launcher.api.several_clusters import look_at
    from clusterctl.launcher.display import tables, terminal

    clusters = [*dict.fromkeys(filter(None, (request.cluster or "").split(",")))]
    if not clusters:
        raise UsageError("no cluster named", "for example --cluster NAME,NAME")
    found = [tables.if_shown(one) for one in look_at(clusters, **request.filters)]
    if request.output == "json":
        echo_json(json_output.clusters(found))
    else:
        tables.show(terminal.data(), found, wide=request.output == "wide")
    warn_of(
        problem for one in found for problem in (one.problem, *(one.found.problems if one.found else ())) if problem
    )
    problem = found[0].problem
    if problem and not any(one.found for one in found):
        raise problem


@dataclass
class _Looking:
    """What is shown, once or repeatedly: the runs of `wanted`, or a sweep's ranked by `metric`, in the order `sort`."""

    wanted: Query
    sweep: Sweep | None = None
    metric: str | None = None
    sort: str | None = None

    @cached_property
    def _causes(self) -> Causes:
        from clusterctl.launcher.display.explanation import Causes

        return Causes(self.wanted.folder)

    def statuses(self) -> RunStatuses:
        """The runs, sorted."""
        found = self.wanted.look()
        if self.sort is None:
            return found
        return replace(found, statuses=tuple(in_order(found.statuses, self.sort, found.as_of)))

    def listing(self) -> Listing:
        """The table to show: one row per sweep, but every run if sorted, or if a sweep or a state was asked for."""
        from clusterctl.launcher.display import runs_table

        if self.sweep:
            looked = self.statuses()
            found = runs_table.listing(self.sweep.summary(looked, self.metric), looked, ranks=self.sort is None)
        elif self.sort:
            looked = self.statuses()
            rows = tuple(runs_table.row_of(status, looked.as_of) for status in looked.statuses)
            found = Listing(
                looked.as_of, rows, looked.problems, looked.statuses, more=looked.more, is_whole=not looked.more
            )
        else:
            together = iter if self.wanted.wanted.states else runs_table.together
            found = self.wanted.rows(runs_table.row_of, together)
        found = runs_table.with_column(found, self.sort) if self.sort else found
        return self._causes.added_to(found) if any(row.state in _ENDED_BADLY for row in found.rows) else found


def _count_older(request: Request, more: int) -> None:
    if more:
        click.echo(f"{more:,} older not shown: add -a{'' if request.state else ', or --state alive'}", err=True)


def _show_cause(wanted: Query, found: Listing) -> None:
    """Show on one line why the newest run ended, unless it finished."""
    newest = found.rows[0]
    run = Run(wanted.folder / newest.run)
    if newest.state not in _ENDED_BADLY or not run.path.is_dir():  # a sweep
        return
    from clusterctl.launcher.display import terminal
    from clusterctl.launcher.display.explanation import first_cause

    known = (one for one in found.looked if one.record.run.id == newest.run)
    status = next(known, None) or run.status()
    if status.state is not State.CANCELLED or status.reason:  # cancelled before it started
        lines = (f"{status.state}: {first_cause(status)}", with_flags(f"next: clusterctl why {newest.run}"))
        click.echo("\n".join(terminal.fitted(lines, sys.stderr)), err=True)


def _watch(look: _Looking, output: str) -> None:
    if output != "jsonl":
        from clusterctl.launcher.display import runs_table, terminal

        listings = _again_and_again(look.listing)
        runs_table.watch_runs(listings, terminal.data(), wide=output == "wide")
        return
    printed: dict[str, object] = {}
    for found in _again_and_again(look.statuses):
        for run in json_output.runs(found):
            news = {name: value for name, value in run.items() if name != "seconds_left"}
            if printed.get(run["id"]) != news:
                printed[run["id"]] = news
                click.echo(json.dumps(run))


def _again_and_again(look: Callable[[], Look]) -> Iterator[Look]:
    while True:
        yield look()
        time.sleep(LOOK_SECONDS)

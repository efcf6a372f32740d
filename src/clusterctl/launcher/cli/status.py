"""`clusterctl status`: show runs."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clusterctl.launcher.api import json_output
from clusterctl.launcher.api.find import Listing, State, in_order, query
from clusterctl.launcher.api.jobs import jobs, jobs_named, plain_job
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.api.sweeps import sweep_meant
from clusterctl.launcher.cli.options import echo_json, warn_of, with_flags
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.launcher.api.find import Query, RunStatuses
    from clusterctl.launcher.api.sweeps import Sweep
    from clusterctl.launcher.display.explanation import Causes
    from clusterctl.shared.errors import ConfigError, SlurmError

    Problems = tuple[ConfigError | SlurmError, ...]

Look = TypeVar("Look")
LOOK_SECONDS = 2.0
_DEFAULT_COUNT = 10
_OUTPUTS = ["table", "wide", "json", "jsonl", "csv"]
_ENDED_BADLY = (State.FAILED, State.TIMED_OUT, State.LOST, State.CANCELLED)


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
@remotely(watch="watch")
def status(
    names: tuple[str, ...],
    count: int | None,
    everything: bool,
    all_jobs: bool,
    watch: bool,
    output: str,
    metric: str | None,
    sort: str | None,
    roles: bool,
    **chosen: Any,
) -> None:
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
    narrowed = bool(chosen["name"] or chosen["state"] or chosen["since"] or chosen["tag"])
    if names and (narrowed or everything or count):
        raise UsageError(
            "RUN cannot be combined with -n, -a, --name, --state, --tag or --since", "leave one of them out"
        )
    if roles and (not names or watch or all_jobs or output not in ("table", "wide")):
        raise UsageError("--roles shows named runs once, as a table", "for example: clusterctl status @last --roles")
    job_ids = {name: job_id for name in names if (job_id := plain_job(name, chosen["cluster"]))}
    if all_jobs or job_ids:
        if watch or metric or sort or output in ("jsonl", "csv") or "," in (chosen["cluster"] or ""):
            raise UsageError("Slurm jobs can only be shown once, as a table or json", "leave out the other options")
        runs = [name for name in names if name not in job_ids]
        wanted = query(runs, **chosen, count=None if everything else count or _DEFAULT_COUNT)
        _show_jobs(
            wanted if runs or not names else None, [*job_ids.values()], chosen["cluster"], output, all_jobs=all_jobs
        )
        return
    if watch and output in ("json", "csv"):
        raise UsageError(f"--watch cannot write {output}", "use -o jsonl, which prints a line whenever a run changes")
    most = None if everything else count or _DEFAULT_COUNT
    if chosen["cluster"] and "," in chosen["cluster"]:
        if names or watch or metric or sort or output in ("jsonl", "csv"):
            raise UsageError(
                "several clusters can only be shown once, as a table or json", "choose one: --cluster NAME"
            )
        _show_clusters(chosen.pop("cluster").split(","), output, count=most, **chosen)
        return
    wanted = query(names, **chosen, count=most, counted=watch)
    sweep = sweep_meant(names[0], chosen["cluster"]) if len(names) == 1 else None
    if metric and sweep is None:
        raise UsageError("--metric ranks the runs of a sweep", "name one: clusterctl status SWEEP --metric NAME")
    look = _Looking(wanted, sweep, metric, sort.lower() if sort else None)
    if watch:
        _watch(look, output)
        return
    if output in ("table", "wide"):
        from clusterctl.launcher.display import runs_table, terminal  # rich: for people only

        listing = look.listing()
        any_found, problems = bool(listing.rows), listing.problems
        if listing.rows:
            runs_table.show_runs(terminal.data(), listing, wide=output == "wide")
            if roles:
                _show_roles(wanted, listing)
            if sweep is None:
                _show_cause(wanted, listing)
        if not any_found and not problems:
            none_yet = "no runs yet; try: clusterctl submit cora --follow"
            click.echo("no matching runs" if narrowed else with_flags(none_yet), err=True)
    else:
        any_found, problems = _show_data(look.statuses(), output)
    if names and not any_found:
        raise problems[0]
    warn_of(problems)


def _show_jobs(wanted: Query | None, job_ids: list[str], cluster: str | None, output: str, *, all_jobs: bool) -> None:
    """Show the runs of `wanted`, if any, and jobs that are not runs: those named, or all of this user."""
    named = jobs_named(job_ids, cluster) if job_ids else []
    known = {job.job_id for job in named}
    shown = [*named, *(job for job in (jobs(cluster) if all_jobs else ()) if job.job_id not in known)]
    if output == "json":
        looked = wanted.look() if wanted else None
        echo_json(json_output.with_jobs(looked, shown, time.time()))
        warn_of(looked.problems if looked else ())
        return
    from clusterctl.launcher.display import runs_table, tables, terminal

    console = terminal.data()
    if wanted and (listing := _Looking(wanted).listing()).rows:
        runs_table.show_runs(console, listing, wide=output == "wide")
        warn_of(listing.problems)
        if shown:
            console.print()
    if shown:
        tables.show_jobs(console, shown, time.time())
    elif all_jobs:
        click.echo("no other jobs", err=True)


def _show_clusters(clusters: list[str], output: str, **wanted: Any) -> None:
    """Show the runs of several clusters, each with the age of its data."""
    from clusterctl.launcher.api.several_clusters import look_at
    from clusterctl.launcher.display import tables, terminal

    named = [*dict.fromkeys(filter(None, clusters))]
    if not named:
        raise UsageError("no cluster named", "for example --cluster NAME,NAME")
    found = [tables.if_shown(one) for one in look_at(named, **wanted)]
    if output == "json":
        echo_json(json_output.clusters(found))
    else:
        tables.show(terminal.data(), found, wide=output == "wide")
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
            partly = not self.wanted.named and self.wanted.count is not None
            found = Listing(looked.as_of, rows, looked.problems, looked.statuses, is_whole=not partly)
        else:
            together = iter if self.wanted.wanted.states else runs_table.together
            found = self.wanted.rows(runs_table.row_of, together)
        found = runs_table.with_column(found, self.sort) if self.sort else found
        return self._causes.added_to(found) if any(row.state in _ENDED_BADLY for row in found.rows) else found


def _show_roles(wanted: Query, found: Listing) -> None:
    """Show a line for each role of the runs."""
    from clusterctl.launcher.display import tables, terminal

    folders = [(row.run, wanted.folder / row.run) for row in found.rows]
    if not tables.show_roles(terminal.data(), [(name, Run(path).roles()) for name, path in folders if path.is_dir()]):
        click.echo("no roles: each of these runs has a single program", err=True)


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


def _show_data(found: RunStatuses, output: str) -> tuple[bool, Problems]:
    if output == "json":
        echo_json(json_output.status(found))
    elif output == "jsonl":
        for run in json_output.runs(found):
            click.echo(json.dumps(run))
    else:
        import csv

        columns, rows = json_output.flat(json_output.runs(found))
        writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return bool(found.statuses), found.problems


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

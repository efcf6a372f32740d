"""`clusterctl why`, `logs`, `diff`: what happened in a run, and what differs between two."""

from __future__ import annotations

import sys
from typing import Any

import click

from clusterctl.launcher.api import find as api
from clusterctl.launcher.api import jobs, json_output
from clusterctl.launcher.cli.options import cluster_option, echo_json, output_option, warn_of
from clusterctl.launcher.cli.remote import remotely
from clusterctl.launcher.display import terminal
from clusterctl.launcher.display.explanation import explanation
from clusterctl.launcher.display.logs import follow as show_growing
from clusterctl.launcher.display.logs import show, show_errors, show_job
from clusterctl.shared.errors import UsageError


@click.command(short_help="Explain why a run or any job is waiting or has failed")
@click.argument("names", metavar="RUN|JOBID|FILE", nargs=-1, required=True)
@output_option
@cluster_option
@remotely(files="names")
def why(names: tuple[str, ...], output: str, cluster: str | None) -> None:
    """Explain why RUN failed: the first cause, its rank and node, what followed from it, and what to type next.

    For a queued run: why it is waiting, what it requests compared with what is free, Slurm's start estimate, and the
    smallest change that would let it start now. For a running run: whether all ranks are making progress, which rank is
    stuck, and which ranks slow the others down.

    JOBID is any Slurm job, such as 123 or 123_4, no matter how it was submitted, or by whom. FILE is a job's output
    file, with a slash or a dot in its name; name two if stderr has its own. Files need no Slurm.

    \b
    Examples:
      clusterctl why @last
      clusterctl why 123 -o json
      clusterctl why slurm-123.out
    """
    if len(names) > 2:
        raise UsageError("more than two names", "clusterctl why RUN, or the files of one job: stdout and stderr")
    found = jobs.why(names[0], names[1] if len(names) > 1 else None, cluster)
    if output == "json":
        echo_json(json_output.why(found))
        return
    for line in terminal.fitted(explanation(found), sys.stdout):
        click.echo(line)


@click.command(short_help="Show the logs of a run's ranks, or of any job")
@click.argument("name", metavar="RUN|JOBID")
@click.option(
    "-f", "--follow", is_flag=True, help="Follow the logs until the run ends; Ctrl-C does not affect the run."
)
@click.option(
    "--rank",
    metavar="N",
    type=click.IntRange(min=0),
    help="Only this rank, of ROLE if given; default: all, each line labelled with its rank.",
)
@click.option(
    "--worker",
    metavar="N",
    type=click.IntRange(min=0),
    help="Only this worker of torchrun, accelerate or mpirun, by its rank in the world, if its lines name it.",
)
@click.option("--role", metavar="ROLE", help="Only the ranks of this role, in a job with several programs.")
@click.option("--node", metavar="NAME", help="Only the ranks of this node.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=0), help="Only this attempt; default: all.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="Only the last N lines of each file.")
@click.option(
    "--since", metavar="TIME", help='Only lines since an age (90s, 20m, 4h) or a local time ("2026-01-31 12:00:00").'
)
@click.option("--grep", metavar="REGEX", help="Only lines that match.")
@click.option("--errors", is_flag=True, help="Show the first traceback and its ranks, then the other errors.")
@click.option("--stdout", "stream", flag_value="out", help="Only standard output.")
@click.option("--stderr", "stream", flag_value="err", help="Only standard error.")
@click.option("--host", is_flag=True, help="Include the batch script's log.")
@click.option("-t", "--times", is_flag=True, help="Prefix each line with its local time and offset.")
@click.option("--no-collapse", is_flag=True, help="Show identical lines from several ranks separately.")
@cluster_option
@remotely(watch="follow", lines=True)
def logs(
    name: str, follow: bool, errors: bool, times: bool, no_collapse: bool, cluster: str | None, **chosen: Any
) -> None:
    """Show the logs of RUN's ranks, merged by time. Identical lines from several ranks are shown once, with a count.

    For a Slurm job that clusterctl did not submit: the output of its batch script, with --follow, --tail, --grep,
    --stdout and --stderr.

    \b
    Examples:
      clusterctl logs cora -f
      clusterctl logs @last --rank 0 --tail 20
      clusterctl logs @last --role trainer -f
      clusterctl logs @last --worker 5
      clusterctl logs @last --errors
      clusterctl logs 123 -f
    """
    if errors and (follow or chosen["grep"] or chosen["tail"] is not None):
        raise UsageError("--errors cannot be combined with --follow, --grep or --tail", "leave one of them out")
    if job_id := jobs.plain_job(name, cluster):
        of_runs = {**chosen, "errors": errors, "times": times}
        kept = {key: of_runs.pop(key) for key in ("tail", "grep", "stream")}
        if unknown := [key for key, value in of_runs.items() if value]:
            hint = f"its output is one stream: clusterctl logs {job_id}"
            raise UsageError(f"--{unknown[0]} is for runs: clusterctl did not submit job {job_id}", hint)
        show_job(jobs.job_log(job_id, cluster, **kept), follow=follow)
        return
    reading = api.find(name, cluster).logs(**chosen)
    if errors:
        show_errors(reading)
    elif follow:
        show_growing(reading, times=times, collapse=not no_collapse)
    else:
        show(reading, times=times, collapse=not no_collapse)


@click.command(short_help="Show what differs between two runs")
@click.argument("first", metavar="RUN1")
@click.argument("second", metavar="RUN2")
@click.option("--code", is_flag=True, help="Also show a line-by-line diff of the code.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@cluster_option
def diff(first: str, second: str, code: bool, output: str, cluster: str | None) -> None:
    """Show where RUN1 and RUN2 differ: configuration, code, versions, image, and their results.

    The code compared is what each run was submitted with. The exit code is 0 whether or not the runs differ.

    \b
    Examples:
      clusterctl diff cora-20260102 @last
      clusterctl diff cora-20260102 @last --code
      clusterctl diff cora-20260102 @last -o json
    """
    found = api.diff(first, second, cluster)
    lines = found.line_differences() if code else None
    if output == "json":
        echo_json(json_output.differences(found, lines))
    else:
        from clusterctl.launcher.display import comparison, terminal  # rich: for people only

        comparison.show(terminal.data(), found, lines or ())
    warn_of(found.problems)

"""`clusterctl init`, `config`, `doctor`: first files, which values apply, and whether everything works."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import click

from clusterctl.launcher.api import init as first_files
from clusterctl.launcher.api import json_output
from clusterctl.launcher.api import settings as api
from clusterctl.launcher.api.submitting.submit import load
from clusterctl.launcher.api.submitting.verify import doctor as examine
from clusterctl.launcher.api.submitting.verify import full_folder as full_folder
from clusterctl.launcher.cli.options import WithProgram, echo_json, output_option, with_flags
from clusterctl.launcher.cli.remote import remotely
from clusterctl.launcher.display import terminal
from clusterctl.launcher.display.explanation import lines_of_checks
from clusterctl.launcher.display.plain import plain
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec.keys import SCHEMAS, as_toml


@click.group(short_help="Show jobs, clusters and where values come from")
def config() -> None:
    """Show jobs, clusters and where values come from.

    \b
    Examples:
      clusterctl config show cora
      clusterctl config keys
    """


@config.command(cls=WithProgram, short_help="Print a resolved job and the origin of every value")
@click.argument("job", required=False)
@click.option("--cluster", metavar="NAME", help="The cluster to resolve it for.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override any setting, as in submit.")
@output_option
@remotely(here=True)
def show(
    job: str | None, program: tuple[str, ...], cluster: str | None, settings: tuple[str, ...], output: str
) -> None:
    """Print JOB, or PROGRAM without a job, as it would be submitted, with the origin of every value.

    \b
    Example:
      clusterctl config show cora --set train.lr=3e-3
    """
    resolved = load(job, cluster, program=program, overrides=settings)
    if output == "json":
        echo_json(json_output.job(resolved))
        return
    rows = list(api.values(resolved))
    key_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    value_width = min(value_width, 60)
    if sys.stdout.isatty():  # a longer value pushes only its own origin aside
        room = shutil.get_terminal_size().columns - key_width - 4
        ends = [(len(value), len(origin)) for _, value, origin in rows]
        too_wide = {
            width: sum(max(width, one) + origin > room for one, origin in ends) for width in range(value_width + 1)
        }
        value_width = min(too_wide, key=lambda width: (too_wide[width] - sum(one <= width for one, _ in ends), -width))
    for key, value, origin in rows:
        click.echo(plain(f"{key:<{key_width}}  {value:<{value_width}}  {origin}"))


@config.command(short_help="List every key of job and cluster files")
def keys() -> None:
    """List every key of job and cluster files with its type, default and description.

    \b
    Example:
      clusterctl config keys | grep -A1 train
    """
    click.echo('A duration is a number in the unit shown, or "90s", "20m", "4h", "2d", "1-00:00:00".')
    for title, listed in api.key_tables():
        click.echo(f"\n# {title}")
        for key in listed:
            click.echo(f"{key.path:<28} {key.kind:<28} {as_toml(key.default)}".rstrip())
            click.echo(f"    {key.description}")


@config.command(short_help="Print the JSON schema of job or cluster files")
@click.argument("file", type=click.Choice(list(SCHEMAS)))
def schema(file: str) -> None:
    """Print the JSON schema of job or cluster files, for completion and validation in an editor.

    \b
    Example:
      clusterctl config schema job > jobs/job.schema.json
    """
    echo_json(SCHEMAS[file]())


@config.command(name="list", short_help="List available jobs and clusters")
def list_() -> None:
    """List the jobs and clusters available here, and the folders in use.

    \b
    Example:
      clusterctl config list
    """
    for kind, name, path in api.places():
        click.echo(plain(f"{kind:<8} {name:<16} {path}"))


@click.command(short_help="Check this machine and a cluster")
@click.option("--cluster", metavar="NAME", help="The cluster to check; default: as in submit.")
@output_option
def doctor(cluster: str | None, output: str) -> int:
    """Check this machine and a cluster, with a hint for every problem. The exit code is 1 if a check fails.

    \b
    Examples:
      clusterctl doctor
      clusterctl doctor --cluster sandbox
    """
    found = examine(cluster)
    if output == "json":
        echo_json(json_output.checks(found.cluster, found.checks))
    else:
        lines = map(with_flags, lines_of_checks(found.checks))
        message = len("WARN    ") + max((len(check.name) for check in found.checks), default=0)
        for line in terminal.fitted(lines, sys.stdout, indent=message):
            click.echo(line)
    return int(not found.ok)


_WIDEST = 44


@click.command(short_help="Write a first cluster file and job from Slurm's configuration")
@click.argument("name", required=False)
@click.option(
    "--from", "script", metavar="FILE", type=click.Path(path_type=Path), help="Convert a batch script to a job."
)
@click.option("--yes", is_flag=True, help="Ask nothing and accept the proposed values.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def init(name: str | None, script: Path | None, yes: bool, force: bool) -> None:
    """Query Slurm, and write cluster/NAME.toml and a first job file in this folder.

    Four Slurm commands are run; what they do not report is listed at the end. With --from, the job is converted from a
    batch script, which is read but not executed; a job file is written only if it does all that the script does.

    \b
    Examples:
      clusterctl init
      clusterctl init mycluster --yes
      clusterctl init --from train.sbatch
    """

    def choose(site: first_files.Site, choices: first_files.ClusterChoices) -> first_files.ClusterChoices:
        return choices if yes else _asked(site, choices, named=bool(name))

    files = first_files.init(name, script=script, force=force, choose=choose)
    for row in files.rows:  # each line of the script next to what it was converted to
        shown = plain(" ".join(row.text.split()))
        shown = shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 3]}..."
        number = str(row.number or "")
        results = [plain(" ".join(result.split())) for result in row.became]
        results += [f"{'note' if results else 'not converted'}: {plain(row.problem)}"] if row.problem else []
        for result in results or ["unchanged"]:
            click.echo(f"{number:>4}  {shown:<{_WIDEST}}  {result}", err=True)
            number = shown = ""
    for path in files.texts:
        click.echo(plain(str(path)))
    for sentence in files.unknown:
        click.echo(plain(f"could not find out {sentence}"), err=True)
    clusters, jobs_written = (
        [path.stem for path in files.texts if path.parts[0] == kind] for kind in ("cluster", "jobs")
    )
    steps = [f"export CLUSTERCTL_CLUSTER={cluster}" for cluster in clusters]
    if jobs_written:
        steps += ["clusterctl doctor", f"clusterctl submit {jobs_written[0]}" + (" --dry-run" if script else " --wait")]
    else:
        click.echo("a job cannot do all that the script does: submit the script itself, as it is", err=True)
        steps += [shlex.join(["clusterctl", "submit", str(script) if "/" in str(script) else f"./{script}"])]
    click.echo("next: " + "\n      ".join(steps), err=True)


def _asked(site: first_files.Site, choices: first_files.ClusterChoices, *, named: bool) -> first_files.ClusterChoices:
    """The user's choices; Enter accepts the proposed value."""
    try:
        if not named:
            choices = replace(choices, name=click.prompt("Name of the cluster", choices.name, err=True))
        partitions = click.Choice(list(site.inventory.partitions))
        partition = click.prompt("Partition", choices.partition, type=partitions, err=True)
        runs = click.prompt("Folder for runs, visible on all nodes", choices.runs, err=True)
        account, qos = _one_of("Account", site.accounts, choices.account), _one_of("QOS", site.qos, choices.qos)
        return replace(choices, partition=partition, runs=runs, account=account, qos=qos)
    except click.Abort:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        click.echo(err=True)  # the prompt has no newline
        raise UsageError("no answer on stdin", "accept the proposed values with: --yes") from None


def _one_of(what: str, known: tuple[str, ...], proposed: str) -> str:
    """One of several values, or nothing for Slurm's default; not asked if there is no choice."""
    if len(known) < 2:
        return proposed
    answer: str = click.prompt(f"{what} ({', '.join(known)}; empty: your default)", proposed, err=True)
    return answer.strip()

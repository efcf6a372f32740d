"""`clusterctl config`, `doctor`: which values apply, and whether everything works."""

from __future__ import annotations

import click

from clusterctl.launcher.api import config as api
from clusterctl.launcher.api import json_output
from clusterctl.launcher.api.submitting.submit import load
from clusterctl.launcher.api.submitting.verify import doctor as examine
from clusterctl.launcher.api.submitting.verify import full_folder as full_folder
from clusterctl.launcher.cli.flags import with_flags
from clusterctl.launcher.cli.options import WithProgram, echo_json, output_option
from clusterctl.launcher.cli.remote import remotely
from clusterctl.launcher.display.explanation import lines_of_checks
from clusterctl.launcher.display.plain import plain
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
    for key, value, origin in rows:
        click.echo(plain(f"{key:<{key_width}}  {value:<{min(value_width, 60)}}  {origin}"))


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
        for line in lines_of_checks(found.checks):
            click.echo(with_flags(line))
    return int(not found.ok)

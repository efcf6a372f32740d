"""`clusterctl config`: show jobs, clusters, and where values come from."""

from __future__ import annotations

import json
from pathlib import Path

import click

from clusterctl.config import chosen_runs_folder, load_cluster, names, resolve, state_folder
from clusterctl.display.plain import plain
from clusterctl.spec import WORKLOADS, Cluster, Job, to_record
from clusterctl.spec.cluster import UserConfiguration
from clusterctl.spec.keys import as_toml, keys_of, leaves_as_written
from clusterctl.spec.schema import SCHEMAS


@click.group(short_help="Show jobs, clusters and where values come from")
def config() -> None:
    """Show jobs, clusters and where values come from.

    \b
    Examples:
      clusterctl config show cora
      clusterctl config keys
    """


@config.command(short_help="Print a resolved job, every value with its origin")
@click.argument("job")
@click.option("--cluster", metavar="NAME", help="The cluster to resolve it for.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change any value, as in submit.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="What stdout gets.")
def show(job: str, cluster: str | None, settings: tuple[str, ...], output: str) -> None:
    """Print JOB as it would be submitted, every value with its origin.

    \b
    Example:
      clusterctl config show cora --set train.lr=3e-3
    """
    resolved = resolve(job, load_cluster(cluster), settings)
    record = to_record(resolved.secrets.hide_in(resolved.job))
    if output == "json":
        click.echo(json.dumps({"schema_version": 1, "job": record, "origins": resolved.origins}, indent=1))
        return
    leaves = [(".".join(key), value) for key, value in leaves_as_written(record)]
    rows = [(key, as_toml(value), resolved.origins.get(key, "default")) for key, value in leaves]
    rows = [row for row in rows if row[1] or row[2] != "default"]
    key_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for key, value, origin in rows:
        click.echo(plain(f"{key:<{key_width}}  {value:<{min(value_width, 60)}}  {origin}"))


@config.command(short_help="List every key of job and cluster files")
def keys() -> None:
    """List every key of job files, then of cluster files, with its type, default and description.

    \b
    Example:
      clusterctl config keys | grep -A1 train
    """
    tables: list[tuple[str, type, str]] = [("Job files", Job, "")]
    tables += [(f"Job files, workload {name}", entry.train, "train.") for name, entry in WORKLOADS.items()]
    tables += [("Cluster files", Cluster, ""), ("config.toml in your configuration folder", UserConfiguration, "")]
    click.echo('A duration is a number of the unit shown, or "90s", "20m", "4h", "2d", "1-00:00:00".')
    for title, cls, prefix in tables:
        click.echo(f"\n# {title}")
        for key in keys_of(cls, prefix):
            click.echo(f"{key.path:<28} {key.kind:<28} {as_toml(key.default)}".rstrip())
            click.echo(f"    {key.description}")


@config.command(short_help="Print the JSON schema of job or cluster files")
@click.argument("file", type=click.Choice(list(SCHEMAS)))
def schema(file: str) -> None:
    """Print the JSON schema of job or cluster files, which lets an editor complete, explain and check them.

    \b
    Example:
      clusterctl config schema job > jobs/job.schema.json
    """
    click.echo(json.dumps(SCHEMAS[file](), indent=1))


@config.command(name="list", short_help="List the jobs and clusters that can be named here")
def list_() -> None:
    """List the jobs and clusters that can be named from here, and the folders in use.

    \b
    Example:
      clusterctl config list
    """
    cwd = Path.cwd()
    for kind in ("jobs", "cluster"):
        for name, path in sorted(names(kind, cwd).items()):
            click.echo(plain(f"{kind.removesuffix('s'):<8} {name:<16} {path}"))
    click.echo(f"{'runs':<8} {'':<16} {chosen_runs_folder(None)}")
    click.echo(f"{'state':<8} {'':<16} {state_folder()}")

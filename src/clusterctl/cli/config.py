"""`clusterctl config`: show jobs, clusters, and where values come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.config import load_cluster, names, resolve, runs_folder, state_folder
from clusterctl.spec import WORKLOADS, Cluster, Job, to_record
from clusterctl.spec.record import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    record = to_record(resolved.job)
    if output == "json":
        click.echo(json.dumps({"schema_version": 1, "job": record, "origins": resolved.origins}, indent=1))
        return
    rows = [(key, _toml(value), resolved.origins.get(key, "default")) for key, value in _leaves(record)]
    rows = [row for row in rows if row[1] or row[2] != "default"]
    key_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for key, value, origin in rows:
        click.echo(f"{key:<{key_width}}  {value:<{min(value_width, 60)}}  {origin}")


@config.command(short_help="List every key of job and cluster files")
def keys() -> None:
    """List every key of job files, then of cluster files, with its type and default.

    \b
    Example:
      clusterctl config keys | grep train
    """
    click.echo("# Job files")
    for key, kind, default in _keys(Job):
        click.echo(f"{key:<28} {kind:<18} {default}")
    for name, workload in WORKLOADS.items():
        for key, kind, default in _keys(workload.train, "train."):
            click.echo(f"{key:<28} {kind:<18} {default:<12} # {name}")
    click.echo("\n# Cluster files")
    for key, kind, default in _keys(Cluster):
        click.echo(f"{key:<28} {kind:<18} {default}")


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
            click.echo(f"{kind.removesuffix('s'):<8} {name:<16} {path}")
    click.echo(f"{'runs':<8} {'':<16} {runs_folder(Cluster(name='local'))}")
    click.echo(f"{'state':<8} {'':<16} {state_folder()}")


def _leaves(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _toml(value: Any) -> str:
    """`value` as it would stand in a job file; nothing for what is not set."""
    if value is None or value == []:
        return ""
    return json.dumps(value, ensure_ascii=False)


def _keys(cls: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    import dataclasses

    hints = fields_of(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _keys(hint, f"{prefix}{field.name}.")
        else:
            default = "" if field.default is dataclasses.MISSING else _toml(to_record(field.default))
            yield f"{prefix}{field.name}", _kind(hint), default


def _kind(hint: Any) -> str:
    import typing

    from clusterctl.spec.values import Duration

    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Duration):
            return "minutes" if extra.unit == 60 else "seconds"
    arguments = [a for a in typing.get_args(hint) if a is not type(None)]
    if arguments and typing.get_origin(hint) not in (tuple, dict):
        return _kind(arguments[0])
    plain = typing.get_origin(hint) or hint
    return {"tuple": "list", "dict": "table", "str": "string", "int": "integer", "float": "number", "bool": "true/false"}[
        plain.__name__
    ]

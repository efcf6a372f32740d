"""`clusterctl init`: write a first cluster file and a first job."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from clusterctl.api import init as api
from clusterctl.display.plain import plain
from clusterctl.errors import UsageError


@click.command(short_help="Write a first cluster file and job, from what Slurm says")
@click.argument("name", required=False)
@click.option("--yes", is_flag=True, help="Ask nothing: take what is proposed.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def init(name: str | None, yes: bool, force: bool) -> None:
    """Ask Slurm what there is, and write cluster/NAME.toml and jobs/first.toml here.

    Slurm is asked four questions; what it does not say is listed in the end.

    \b
    Examples:
      clusterctl init
      clusterctl init mycluster --yes
    """
    site = api.survey()
    choices = api.proposed(site)
    choices = replace(choices, name=name) if name else choices
    files = api.first_files(site, choices if yes else _asked(site, choices, named=bool(name)))
    files.write(force=force)
    for path in files.texts:
        click.echo(plain(str(path)))
    for sentence in files.unknown:
        click.echo(plain(f"could not find out {sentence}"), err=True)
    cluster, job = (path.stem for path in files.texts)
    click.echo(f"next: export CLUSTERCTL_CLUSTER={cluster}\n      clusterctl doctor", err=True)
    click.echo(f"      clusterctl submit {job} --wait", err=True)


def _asked(site: api.Site, choices: api.Choices, *, named: bool) -> api.Choices:
    """What a person answers; Enter takes what is proposed."""
    try:
        if not named:
            choices = replace(choices, name=click.prompt("Name of the cluster", choices.name, err=True))
        partitions = click.Choice(list(site.inventory.partitions))
        partition = click.prompt("Partition", choices.partition, type=partitions, err=True)
        runs = click.prompt("Folder for runs, which all nodes see", choices.runs, err=True)
        account = _one_of("Account", site.accounts, choices.account)
        return replace(choices, partition=partition, runs=runs, account=account, qos=_one_of("QOS", site.qos, ""))
    except click.Abort:
        if sys.stdin is not None and sys.stdin.isatty():
            raise
        click.echo(err=True)  # the question has no newline
        raise UsageError("nobody answered", "add --yes to take what is proposed") from None


def _one_of(what: str, known: tuple[str, ...], proposed: str) -> str:
    """One of several, or nothing for Slurm's default; not asked where there is no choice."""
    if len(known) < 2:
        return proposed
    answer: str = click.prompt(f"{what} ({', '.join(known)}; nothing: your default)", proposed, err=True)
    return answer.strip()

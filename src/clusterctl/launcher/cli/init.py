"""`clusterctl init`: write a first cluster file and a first job."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import click

from clusterctl.launcher.api import init as api
from clusterctl.launcher.display.plain import plain
from clusterctl.shared.errors import UsageError

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

    def choose(site: api.Site, choices: api.ClusterChoices) -> api.ClusterChoices:
        return choices if yes else _asked(site, choices, named=bool(name))

    files = api.init(name, script=script, force=force, choose=choose)
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


def _asked(site: api.Site, choices: api.ClusterChoices, *, named: bool) -> api.ClusterChoices:
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

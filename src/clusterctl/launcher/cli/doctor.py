"""`clusterctl doctor`: check this machine and a cluster."""

from __future__ import annotations

import click

from clusterctl.launcher.api.submitting.verify import doctor as examine
from clusterctl.launcher.api.submitting.verify import full_folder as full_folder
from clusterctl.launcher.cli.options import echo_json, output_option
from clusterctl.launcher.display.plain import plain

_KEYS = ("name", "verdict", "message", "hint", "fatal")


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
    name, checks = examine(cluster)
    failed = any(check.fatal for check in checks)
    if output == "json":
        records = [{key: getattr(check, key) for key in _KEYS} for check in checks]
        echo_json({"schema_version": 1, "cluster": name, "ok": not failed, "checks": records})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            click.echo(plain(f"{check.verdict:<4}  {check.name:<{width}}  {check.message}"))
            if check.hint:
                click.echo(plain(f"      {'':<{width}}  hint: {check.hint}"))
    return int(failed)

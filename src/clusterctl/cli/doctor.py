"""`clusterctl doctor`: check this machine and a cluster."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from clusterctl.api.doctor import Verdict
from clusterctl.api.doctor import doctor as examine
from clusterctl.display.plain import plain


@click.command(short_help="Check this machine and a cluster")
@click.option("--cluster", metavar="NAME", help="The cluster to check; default: as in submit.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="What stdout gets.")
def doctor(cluster: str | None, output: str) -> int:
    """Check this machine and a cluster, and say what to type where something is wrong. Exit code 1 if anything fails.

    \b
    Examples:
      clusterctl doctor
      clusterctl doctor --cluster sandbox
    """
    name, findings = examine(cluster)
    failed = any(finding.verdict is Verdict.FAIL for finding in findings)
    if output == "json":
        record = {
            "schema_version": 1,
            "cluster": name,
            "ok": not failed,
            "findings": list(map(asdict, findings)),
        }
        click.echo(json.dumps(record, indent=1))
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            click.echo(plain(f"{finding.verdict:<4}  {finding.subject:<{width}}  {finding.message}"))
            if finding.fix:
                click.echo(plain(f"      {'':<{width}}  fix: {finding.fix}"))
    return int(failed)

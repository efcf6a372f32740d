"""`clusterctl alloc`: reserve nodes for warm runs."""

from __future__ import annotations

import click

from clusterctl.api.nodes import allocate, give_back, wait_for_nodes
from clusterctl.cli.options import typed_settings, warn
from clusterctl.errors import UsageError
from clusterctl.spec.values import plural


@click.command(short_help="Reserve nodes to start runs on them in seconds")
@click.argument("job", required=False)
@click.option("--cluster", metavar="NAME", help="Cluster; default: as in submit.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override any setting, as in submit.")
@click.option("--nodes", metavar="N", help="Number of nodes.")
@click.option("--gpus-per-node", metavar="N", help="GPUs per node; default: the cluster's.")
@click.option("--tasks-per-node", metavar="N", help="Maximum number of tasks per node.")
@click.option("--time", metavar="TIME", help="How long to hold them: 90 (minutes), 4h, 1-00:00:00.")
@click.option("--partition", metavar="NAME", help="Slurm partition.")
@click.option("--account", metavar="NAME", help="Slurm account.")
@click.option("--qos", metavar="NAME", help="Slurm quality of service.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the nodes.")
@click.option("--end", metavar="JOBID", help="Give back the nodes of JOBID and remove imported images from them.")
def alloc(
    job: str | None,
    cluster: str | None,
    settings: tuple[str, ...],
    no_wait: bool,
    end: str | None,
    **shortcuts: str | None,
) -> None:
    """Reserve the nodes that JOB or the options request, and print the allocation's number.

    Runs start on them without queueing: clusterctl submit JOB --in-allocation NUMBER. The nodes are held until the time
    limit or --end.

    \b
    Examples:
      clusterctl alloc cora --time 2h
      clusterctl alloc --nodes 2 --gpus-per-node 8 --time 4h
      clusterctl alloc --end 12345
    """
    typed = typed_settings(settings, shortcuts)
    if end:
        if job or typed:
            raise UsageError("--end cannot be combined with JOB or resource options", f"clusterctl alloc --end {end}")
        give_back(end, cluster)
        click.echo(f"gave back {end}", err=True)
        return
    number = allocate(job, cluster, overrides=typed)
    click.echo(number)
    if no_wait:
        click.echo(f"queued; check with: squeue --me -j {number}", err=True)
        return
    try:
        held = wait_for_nodes(number, cluster)
    except KeyboardInterrupt:
        warn(f"allocation {number} is still queued", f"cancel it with: clusterctl alloc --end {number}")
        raise
    flag = f" --cluster {cluster}" if cluster else ""
    click.echo(
        f"{plural(held.nodes, 'node')} held: {held.node_list}\n"
        f"next: clusterctl submit {job or 'JOB'}{flag} --in-allocation {number} --follow\n"
        f"      clusterctl alloc{flag} --end {number}",
        err=True,
    )

"""`clusterctl alloc`: hold nodes for warm runs."""

from __future__ import annotations

import click

from clusterctl.api.allocations import allocate, give_back, wait_for_nodes
from clusterctl.cli.options import typed_settings, warn
from clusterctl.errors import UsageError
from clusterctl.spec.values import plural


@click.command(short_help="Hold nodes, to start runs on them in seconds")
@click.argument("job", required=False)
@click.option("--cluster", metavar="NAME", help="Where; default: as in submit.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change any value, as in submit.")
@click.option("--nodes", metavar="N", help="How many nodes.")
@click.option("--gpus-per-node", metavar="N", help="GPUs on each of them; default: the cluster's.")
@click.option("--tasks-per-node", metavar="N", help="The most tasks that a run will have on one of them.")
@click.option("--time", metavar="TIME", help="For how long: 90 (minutes), 4h, 1-00:00:00.")
@click.option("--partition", metavar="NAME", help="Slurm's partition.")
@click.option("--account", metavar="NAME", help="Slurm's account.")
@click.option("--qos", metavar="NAME", help="Slurm's quality of service.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the nodes are there.")
@click.option("--end", metavar="JOBID", help="Give the nodes of JOBID back, and take imported images off them.")
def alloc(
    job: str | None,
    cluster: str | None,
    settings: tuple[str, ...],
    no_wait: bool,
    end: str | None,
    **shortcuts: str | None,
) -> None:
    """Hold nodes, as many and as large as JOB asks for, or as the options say; print the allocation's number.

    Runs start on them without queueing: clusterctl submit JOB --in-allocation NUMBER. They are held until the time is
    over, or until --end.

    \b
    Examples:
      clusterctl alloc cora --time 2h
      clusterctl alloc --nodes 2 --gpus-per-node 8 --time 4h
      clusterctl alloc --end 12345
    """
    typed = typed_settings(settings, shortcuts)
    if end:
        if job or typed:
            raise UsageError("--end holds no nodes: it gives some back", f"clusterctl alloc --end {end}")
        give_back(end, cluster)
        click.echo(f"gave back {end}", err=True)
        return
    number = allocate(job, cluster, overrides=typed)
    click.echo(number)
    if no_wait:
        click.echo(f"asked for; see: squeue --me -j {number}", err=True)
        return
    try:
        held = wait_for_nodes(number, cluster)
    except KeyboardInterrupt:
        warn(f"allocation {number} stays in the queue", f"give it up with: clusterctl alloc --end {number}")
        raise
    flag = f" --cluster {cluster}" if cluster else ""
    click.echo(
        f"{plural(held.nodes, 'node')} held: {held.node_list}\n"
        f"next: clusterctl submit {job or 'JOB'}{flag} --in-allocation {number} --follow\n"
        f"      clusterctl alloc{flag} --end {number}",
        err=True,
    )

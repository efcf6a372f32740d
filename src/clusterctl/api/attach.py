"""Run a shell or a command beside a rank: a separate step on the rank's node that joins the rank's namespaces.

The rank's view is read from its process, so that this works with pyxis's containers, with ours and without any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.launch.script import part
from clusterctl.observe.rank_events import beginnings
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.api.run import Run


def beside(
    run: Run, rank: int = 0, command: tuple[str, ...] = (), *, terminal: bool = False
) -> tuple[list[str], Mapping[str, str]]:
    """The command line and environment of an srun for `command`, or a shell, in the container of `rank`.

    The run is not interrupted. Raises UsageError if the run is not running or has no such rank; NotFoundError if the
    rank has not started yet.
    """
    status = run.status()
    status.record.require_ours()
    if status.stage.ended or status.attempt is None or status.job_id is None:
        raise UsageError(f"{run.id} is not running: {status.stage}", f"clusterctl status {run.id}")
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    if rank >= tasks:
        raise UsageError(f"no such rank: {rank}", f"choose one of 0 to {tasks - 1}")
    began = beginnings(run.directory.attempt(status.attempt.number)).get(rank)
    if not began or not began.node or began.pid is None:
        raise NotFoundError(f"rank {rank} has not started yet", f"clusterctl status {run.id}")
    slurm = Slurm.of(status.record.cluster)
    flags = [
        f"--jobid={status.attempt.job_id or status.job_id}",
        f"--nodelist={began.node}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--mem=0",
    ]
    flags += ["--mpi=none", "--job-name=attach", *(["--pty"] if terminal else [])]
    words = ["bash", "-c", part("attach.sh"), "attach", str(began.pid), *command]
    return [slurm.path_of("srun"), *flags, *words], slurm.environment

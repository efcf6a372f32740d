"""A shell or a command beside a rank of a run: a step of its own on the rank's node, which enters the rank's process.

What the rank sees is read off its process, so that it is the same for pyxis's containers, for ours and for none.
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
    """The words and the environment of an srun for `command`, or a shell, in the container of `rank`. The run goes on.

    Raises UsageError where the run does not run, or has no such rank; NotFoundError where it has not begun.
    """
    status = run.status()
    status.record.require_ours()
    if status.stage.ended or status.attempt is None or status.job_id is None:
        raise UsageError(f"{run.id} does not run: {status.stage}", f"clusterctl status {run.id}")
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    if rank >= tasks:
        raise UsageError(f"no rank {rank}: the run has {tasks}", f"one of 0 to {tasks - 1}")
    began = beginnings(run.directory.attempt(status.attempt.number)).get(rank)
    if not began or not began.node or began.pid is None:
        raise NotFoundError(f"rank {rank} has not begun yet", f"clusterctl status {run.id}")
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

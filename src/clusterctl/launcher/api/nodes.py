"""Free resources of a cluster, where and when a job would fit, nodes held for warm runs, and a shell beside a rank."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.api.remote.operations import operation, suggesting
from clusterctl.launcher.api.settings import settings
from clusterctl.launcher.config import load_cluster, resolve, runs_folder, shipped_folder
from clusterctl.launcher.observe.rank_events import beginnings
from clusterctl.launcher.observe.status import status_of_run
from clusterctl.launcher.slurm import Inventory, Slurm
from clusterctl.launcher.slurm.nodes import Room, asked_of, room_for
from clusterctl.launcher.submission.script import part
from clusterctl.launcher.submission.warm import CLOSE_SIGNAL, hold, let_go
from clusterctl.shared.errors import NotFoundError, SlurmError, UsageError, WaitTimedOut

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.slurm.queue import Allocation
    from clusterctl.launcher.submission.sbatch import Estimate, SlurmRefused
    from clusterctl.shared.record.layout import RunDir


@operation()
def nodes(cluster: str | None = None) -> Inventory:
    """The partitions and nodes of a cluster, no older than its polling floor. Raises SlurmError."""
    return Slurm.of(load_cluster(cluster)).nodes()


@dataclass(frozen=True)
class Fit:
    """Where a job fits according to sinfo, and Slurm's answer: the expected start, or why it would refuse."""

    resolved: Resolved
    rooms: tuple[Room, ...]
    answer: Estimate | SlurmRefused | None  # None: no estimate


def fit(job: str | os.PathLike[str], cluster: str | None = None, *, overrides: Overrides = ()) -> Fit:
    """Where and when `job` would fit, without submitting it. Raises what `plan` raises, and SlurmError."""
    from clusterctl.launcher.api.submitting.submit import plan
    from clusterctl.launcher.checks.verify import explained
    from clusterctl.launcher.submission.sbatch import SlurmRefused, estimate_start

    planned = plan(job, cluster, overrides=overrides)
    slurm = Slurm.of(planned.resolved.cluster)
    inventory = slurm.nodes()
    asked = asked_of(planned.resolved.job.resources)
    rooms = tuple(room_for(asked, partition, inventory) for partition in inventory.partitions.values())
    answer: Estimate | SlurmRefused | None
    try:
        answer = estimate_start(planned.plan, slurm.path_of("sbatch"), slurm.environment)
    except SlurmRefused as error:
        answer = explained(error, planned.resolved, slurm)
    return Fit(planned.resolved, rooms, answer)


# Hold nodes for warm runs, wait for them, give them back.


_FIRST_PAUSE_SECONDS = 0.2


@operation(changes=True, takes_job=True)
def allocate(job: str | None = None, cluster: str | None = None, *, overrides: Overrides = ()) -> str:
    """Request the nodes that `job` would, or one node changed by `overrides`; returns the Slurm job ID.

    Raises what `load` raises, and SlurmError.
    """
    target, changes = load_cluster(cluster), settings(overrides)
    if job:
        from clusterctl.launcher.api.submitting.past_runs import with_auto

        resolved = with_auto(resolve(job, target, changes))
    else:
        example = str(shipped_folder() / "jobs" / "command.toml")
        plain = ["resources.nodes=1", "resources.time=1h", f"resources.tasks_per_node={int(target.gpus_per_node) or 1}"]
        resolved = resolve(example, target, [*plain, *changes])
        resolved = replace(resolved, job=replace(resolved.job, name="alloc"))
    slurm = Slurm.of(resolved.cluster)
    return hold(resolved, slurm.path_of("sbatch"), slurm.environment)


@suggesting
def alloc(job: str | None = None, cluster: str | None = None, *, overrides: Overrides = (), wait: bool = True) -> str:
    """Reserve the nodes that `job` would use, or one node changed by `overrides`; returns the Slurm job ID.

    That is the `in_allocation` of `submit`; `give_back` ends it. Without `wait`, the nodes may still be queued. Raises
    what `load` raises, and SlurmError.
    """
    job_id = allocate(job, cluster, overrides=overrides)
    if wait:
        try:
            wait_for_nodes(job_id, cluster)
        except KeyboardInterrupt as error:
            error.add_note(f"still queued; to give it back: clusterctl.give_back({job_id!r})")
            raise
    return job_id


@operation(waits=True)
def wait_for_nodes(job_id: str, cluster: str | None = None) -> Allocation:
    """Wait until the nodes are allocated, polling at intervals that grow to the cluster's polling floor."""
    target = load_cluster(cluster)
    slurm, floor, pause = Slurm.of(target), float(target.polling_floor), _FIRST_PAUSE_SECONDS
    while True:
        found = slurm.allocation(job_id)
        if found and found.is_held:
            return found
        if found is None or found.state not in ("PENDING", "CONFIGURING"):
            state = found.state if found else "gone"
            raise SlurmError(f"allocation {job_id} ended before it started: {state}", "squeue --me")
        time.sleep(pause)
        pause = min(2 * pause, max(floor, _FIRST_PAUSE_SECONDS))


@operation(changes=True)
def give_back(job_id: str, cluster: str | None = None) -> None:
    """Release the nodes of `job_id` and remove imported images from them. Raises NotFoundError and SlurmError."""
    target = load_cluster(cluster)
    slurm = Slurm.of(target)
    found = slurm.allocation(job_id) if job_id.isascii() and job_id.isdigit() else None
    if found is None:
        raise NotFoundError(f"you have no job with this ID: {job_id}", "list your jobs: squeue --me")
    if found.is_held and let_go(runs_folder(target), job_id):
        slurm.signal(CLOSE_SIGNAL, [job_id], batch=True)
    else:
        slurm.cancel([job_id])


# Run a shell or a command beside a rank: a separate step on the rank's node that joins the rank's namespaces.


def beside(
    run: RunDir, rank: int = 0, command: Sequence[str] | Callable[[int], Sequence[str]] = (), *, terminal: bool = False
) -> tuple[list[str], Mapping[str, str]]:
    """The command line and environment of an srun for `command`, or a shell, in the container of `rank`.

    `command` may be a function of the PID of the rank's process, whose program is a Python. The run is not
    interrupted. Raises UsageError if the run is not running or has no such rank; NotFoundError if the rank has not
    started yet.
    """
    status = status_of_run(run)
    status.record.require_ours()
    if status.state.ended or status.attempt is None or status.job_id is None:
        raise UsageError(f"{run.id} is not running: {status.state}", f"clusterctl status {run.id}")
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    if rank >= tasks:
        raise UsageError(f"no such rank: {rank}", f"choose one of 0 to {tasks - 1}")
    began = beginnings(run.attempt(status.attempt.number)).get(rank)
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
    flags += ["--mpi=none", "--job-name=attach", "--pty" if terminal else "--unbuffered"]
    command = command(began.pid) if callable(command) else command
    words = ["bash", "-c", part("attach.sh"), "attach", str(began.pid), *command]
    return [slurm.path_of("srun"), *flags, *words], slurm.environment


_MOST_OUTPUT_BYTES = 2**20
_ENDS_SECONDS = 10.0


def output_beside(run: RunDir, rank: int, command: tuple[str, ...], timeout: float | None) -> tuple[int, str, str]:
    """Run `command` beside `rank`, and return its code and what it wrote: see `Run.exec`."""
    if not command:
        raise UsageError("no command to run", 'for example run.exec(["nvidia-smi"])')
    argv, environment = beside(run, rank, command)

    def kept(stream: IO[bytes]) -> str:
        """The beginning of a stream; the rest is read, so that the command does not block, and dropped."""
        content = stream.read(_MOST_OUTPUT_BYTES)
        while stream.read(_MOST_OUTPUT_BYTES):
            pass
        return content.decode(errors="replace")

    try:
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise SlurmError(f"cannot run srun: {error.strerror}", "try it by hand: srun --version") from error
    with process, ThreadPoolExecutor(2) as readers:
        assert process.stdout
        assert process.stderr
        streams = [readers.submit(kept, stream) for stream in (process.stdout, process.stderr)]
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise WaitTimedOut(f"{command[0]} has not ended after {timeout:g} s", "allow more time") from None
        finally:
            if process.poll() is None:  # srun ends its step when it is interrupted twice, or terminated
                process.terminate()
                try:
                    process.wait(_ENDS_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
        return code, streams[0].result(), streams[1].result()

"""Warm runs: the usual script, started as a step of an allocation that an idle batch job holds.

A batch job instead of `salloc`: the login shell may end, and something has to remove the imported images afterwards.
Each run has two steps: `<run>.host` is the script on the allocation's first node, started from the login node and
independent of it; `<run>.ranks` is the image import and then the tasks. `warm.sh` is the additional part of a warm
run's script.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.config import runs_folder
from clusterctl.launcher.containers.runtimes import removing
from clusterctl.launcher.slurm.nodes import asked_of
from clusterctl.launcher.submission.plan import Warm, check_path, gpu_options, make_plan
from clusterctl.launcher.submission.sbatch import SlurmRefused, pipe_to_sbatch, refusal
from clusterctl.launcher.submission.script import part, sbatch_lines
from clusterctl.shared.errors import NotFoundError, UsageError
from clusterctl.shared.record.layout import RunDir, own_place
from clusterctl.shared.record.ownership import make_private, make_runs_folder
from clusterctl.shared.spec.values import GpuCount, plural, slurm_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.launcher.slurm.queue import Allocation
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.spec import Resources

HOST, RANKS, ENDING = "host", "ranks", "ending"  # a step is called <run>.<one of these>
CLOSING_SECONDS = 60  # before the time limit
CLOSE_SIGNAL = "USR1"
_REPLACED = ("signal", "requeue", "no-requeue")
LONGEST_START_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_IMAGE_FLAG = "--container-image="


def render_holder(resolved: Resolved, folder: Path) -> str:
    """The script of a job that holds the nodes of `resolved`; warm runs keep their marks in `folder`."""
    run = RunDir(folder / "allocation")
    _refuse_spares(resolved)
    plan = make_plan(resolved, run, folder / "code", clusterctl.__version__)
    options: list[tuple[str, str | int | None]] = [("job-name", plan.name)]
    options += [option for option in plan.options if option[0] not in _REPLACED]
    options += [("signal", f"B:{CLOSE_SIGNAL}@{CLOSING_SECONDS}"), ("no-requeue", None)]
    options += [("chdir", str(folder)), ("output", f"{folder}/%j.log"), ("open-mode", "append")]
    marks = f"marks={quote(str(folder))}/$SLURM_JOB_ID"
    return "\n".join(["#!/bin/bash", *sbatch_lines(options), part("shell.sh"), marks, part("hold.sh")])


def hold(resolved: Resolved, sbatch: str, environment: Mapping[str, str]) -> str:
    """Request the nodes of `resolved`; returns the job ID. Raises SlurmRefused, or SlurmError without an answer."""
    runs = runs_folder(resolved.cluster)
    check_path(str(runs))
    folder = make_private(warm_folder(make_runs_folder(runs)))
    script = render_holder(resolved, folder)
    done = pipe_to_sbatch([sbatch, "--parsable"], script, environment, "check whether it is queued: squeue --me")
    if done.returncode:
        raise refusal(done.stderr)
    return done.stdout.strip().partition(";")[0]


def let_go(runs: Path, job_id: str) -> bool:
    """Whether this job is one of our holders, ready to clean up on `CLOSE_SIGNAL`."""
    return (warm_folder(runs) / job_id / "held").exists()


def find_allocation(slurm: Slurm, job_id: str) -> Allocation:
    """The running allocation with this job ID. Raises NotFoundError, or UsageError if it is pending or has ended."""
    found = slurm.allocation(job_id) if job_id.isascii() and job_id.isdigit() else None
    if found is None:
        hint = "hold nodes with: clusterctl alloc --nodes 2"
        raise NotFoundError(f"you have no job with this ID: {job_id}", hint)
    if not found.is_held:
        raise UsageError(f"allocation {job_id} holds no nodes: {found.state}", "list your jobs: squeue --me")
    return found


def check_fits(resources: Resources, allocation: Allocation) -> None:
    """Raise UsageError if the allocation is smaller than the job: srun would only notice later, on a node."""
    if resources.nodes > allocation.nodes:
        message = (
            f"the job requests {plural(resources.nodes, 'node')}, allocation {allocation.job_id} has {allocation.nodes}"
        )
        hint = f"add `resources.nodes = {allocation.nodes}`, or hold more: clusterctl alloc --nodes {resources.nodes}"
        raise UsageError(message, hint)
    gpus = GpuCount(resources.gpus_per_node or 0)
    if allocation.gpus_per_node is not None and gpus > allocation.gpus_per_node:
        there = f"allocation {allocation.job_id} has {allocation.gpus_per_node} per node"
        hint = f'add `resources.gpus_per_node = "{gpus.of_same_type(allocation.gpus_per_node)}"`'
        raise UsageError(f"the job requests {gpus.in_words} per node, {there}", hint)
    cpus = resources.nodes * asked_of(resources).cpus
    if allocation.cpus is not None and cpus > allocation.cpus:
        message = f"the job requests {plural(cpus, 'CPU')}, allocation {allocation.job_id} has {allocation.cpus}"
        raise UsageError(message, "request fewer tasks per node or CPUs per task, or hold more: clusterctl alloc JOB")


def _refuse_spares(resolved: Resolved) -> None:
    """A held allocation ends when it loses a node, and its nodes are not this run's to replace."""
    for key, value in (("resources.spare_nodes", 0), ("restart.min_nodes", None)):
        table, name = key.split(".")
        if getattr(getattr(resolved.job, table), name) not in (0, None):
            hint = f"remove {key}" if value is None else f"add `{key} = 0`"
            raise UsageError(f"{key}: not supported in an allocation, which ends when it loses a node", hint)


def warmed(plan: Plan, resolved: Resolved, allocation: Allocation, stamp: str) -> Plan:
    """`plan` as a warm run in `allocation`. `stamp` distinguishes the image from others with the same name."""
    _refuse_spares(resolved)
    if plan.staging:
        hint = "add `resources.local_code = false`"
        raise UsageError("resources.local_code: not supported in an allocation", hint)
    step, flags = f"{plan.run.id}.{RANKS}", plan.flags
    warm = Warm(
        allocation.job_id, allocation.node_list, on_each=_once_a_node(f"{plan.run.id}.{ENDING}", allocation.nodes)
    )
    # The ranks enter a container by its name, so that only an allocation's first run waits for the import.
    if image := next((flag for flag in flags if flag.startswith(_IMAGE_FLAG)), ""):
        digest = hashlib.sha256(f"{image}\0{stamp}".encode()).hexdigest()[:8]
        name = f"clusterctl_{allocation.job_id}_{digest}"
        flags = tuple(f"--container-name={name}" if flag == image else flag for flag in flags)
        mark = warm_folder(plan.run.path.parent) / allocation.job_id / name
        once = _once_a_node(step, allocation.nodes)
        clearing = (*once, *removing(f"_?{name}"))
        importing = (
            image,
            f"--container-name={name}",
            "--no-container-mount-home",
            "--no-container-entrypoint",
            "true",
        )
        warm = replace(warm, image_mark=str(mark), clearing=clearing, importing=(*once, *importing))
    # No restarts: a requeue would end the allocation.
    return replace(
        plan,
        options=(),
        opening=(),
        node_check=(),
        flags=(*_shape(resolved, step), *flags),
        warm=warm,
        restarts=0,
        again=None,
        standby=(),
    )


def _once_a_node(step: str, nodes: int) -> tuple[str, ...]:
    shape = ("--overlap", f"--job-name={step}", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    return (*shape, "--mem=0", "--mpi=none", "--input=none")


def image_stamp(image: str | None) -> str:
    """The image's modification time and size, if it is a file visible from here."""
    if not image or not image.startswith("/"):
        return ""
    try:
        status = Path(image).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"


def _shape(resolved: Resolved, name: str) -> list[str]:
    """The resource request as srun's flags, which shape the step inside an allocation."""
    resources = resolved.job.resources
    options = gpu_options(resources, resolved.cluster)
    shape = [
        f"--job-name={name}",
        f"--nodes={resources.nodes}",
        f"--ntasks={resources.nodes * (resources.tasks_per_node or 1)}",
        f"--time={slurm_time(resources.time)}",
    ]
    if resources.warning:
        options.append(("signal", f"USR2@{resources.warning}"))
    return [*shape, *(f"--{name}={value}" for name, value in options)]


def start_host_step(plan: Plan, time_limit: str, srun: str, environment: Mapping[str, str]) -> None:
    """Start the script of `plan` in its allocation, and wait up to half a minute until it has started.

    srun runs in its own session, independent of terminal and shell. If it is killed on the login node, the step
    continues (seen with 22.05), since its output goes to files. Raises SlurmRefused with srun's message if it ends
    before the script has started.
    """
    assert plan.warm is not None
    # --relative=0 is the allocation's first node, where all its scripts run.
    place = [f"--jobid={plan.warm.job_id}", "--overlap", "--nodes=1", "--ntasks=1", "--relative=0", "--mem=0"]
    step = [f"--job-name={plan.run.id}.{HOST}", f"--time={time_limit}", "--mpi=none", f"--chdir={plan.run.path}"]
    files = ["--input=none", f"--output={plan.slurm_log}", "--open-mode=append"]
    argv = [srun, *place, *step, *files, "/bin/bash", str(plan.run.script)]
    pid = os.posix_spawn(
        srun,
        argv,
        {**environment, **plan.secrets},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, plan.slurm_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    ended, deadline = 0, time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < deadline and not ended and not plan.run.attempts():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended and not plan.run.attempts():
            lines = plan.slurm_log.read_text(errors="replace").strip().splitlines() or [""]
            words = lines[-1].removeprefix("srun: ").removeprefix("error: ")
            words = words or f"exit code {os.waitstatus_to_exitcode(status)}"
            raise SlurmRefused("srun did not start the run", words, "check that the allocation exists: squeue --me")
        time.sleep(_LOOK_SECONDS)
    if not ended:  # avoid a zombie in a long-lived process, such as a notebook's
        Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()


def end_steps(slurm: Slurm, run_id: str, job_id: str) -> None:
    """End the steps of a warm run and nothing else in its allocation: TERM to the ranks, URG to the script."""
    ids = {step.name: step.id for step in slurm.steps(job_id)}
    for name, signal in ((HOST, "URG"), (RANKS, "TERM")):  # the script first: it must know why the ranks end
        if step := ids.get(f"{run_id}.{name}"):
            slurm.signal(signal, [step])


def warm_folder(runs: Path) -> Path:
    """This user's folder with one folder per allocation, named after its job ID."""
    return own_place(runs, ".warm")

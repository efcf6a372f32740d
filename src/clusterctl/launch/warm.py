"""A warm run: the same script as any run's, started as a step of an allocation that is held already.

Two steps a run: `<run>.host` is the script, on the allocation's first node, and `<run>.ranks` are the tasks (and the
import of the image before them). The first is started from the login side and needs nobody there afterwards. What the
script of a warm run has besides is here; `script` puts it in its place.

An srun inside a step takes that step's shape from SLURM_*, one task on one node: all of them but SLURM_JOB_ID go.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.spec.values import slurm_time

if TYPE_CHECKING:
    from clusterctl.config import Resolved
    from clusterctl.launch.plan import Plan
    from clusterctl.slurm import Slurm
    from clusterctl.slurm.allocation import Allocation
    from clusterctl.spec import Resources

HOST, RANKS = "host", "ranks"
_IMAGE_FLAG = "--container-image="


@dataclass(frozen=True)
class Warm:
    """What makes a plan a warm one. `container` is the name under which the image is imported; empty without pyxis."""

    job_id: str
    nodes: int  # of the whole allocation: the image is imported on all of them
    node_list: str
    container: str
    import_flags: tuple[str, ...]


def step_name(run_id: str, part: str) -> str:
    """The name by which squeue shows a step of a warm run."""
    return f"{run_id}.{part}"


def find_allocation(slurm: Slurm, job_id: str) -> Allocation:
    """The allocation with this number, its nodes held. Raises NotFoundError, and UsageError where it waits or ended."""
    found = slurm.allocation(job_id) if job_id.isascii() and job_id.isdigit() else None
    if found is None:
        raise NotFoundError(
            f"you have no job with this number: {job_id}", "hold nodes with: clusterctl alloc --nodes 2"
        )
    if not found.is_held:
        raise UsageError(f"allocation {job_id} holds no nodes: {found.state}", "see your jobs by hand: squeue --me")
    return found


def check_fits(resources: Resources, allocation: Allocation) -> None:
    """Raise UsageError where the allocation is smaller than the job: srun would find out on a node, later."""
    if resources.nodes > allocation.nodes:
        message = f"the job asks for {resources.nodes} nodes, allocation {allocation.job_id} has {allocation.nodes}"
        raise UsageError(message, f"add --nodes {allocation.nodes}, or hold a larger one: clusterctl alloc")
    gpus = resources.gpus_per_node or 0
    if allocation.gpus_per_node is not None and gpus > allocation.gpus_per_node:
        message = (
            f"the job asks for {gpus} GPUs a node, allocation {allocation.job_id} has {allocation.gpus_per_node} a node"
        )
        raise UsageError(message, f"add --gpus-per-node {allocation.gpus_per_node}")


def warmed(plan: Plan, resolved: Resolved, allocation: Allocation, stamp: str) -> Plan:
    """`plan` as a warm run in `allocation`. `stamp` tells the image's content from others under the same name."""
    image = next((flag for flag in plan.flags if flag.startswith(_IMAGE_FLAG)), "")
    name = ""
    if image:
        digest = hashlib.sha256(f"{image}\0{stamp}".encode()).hexdigest()[:8]
        name = f"clusterctl_{allocation.job_id}_{digest}"
    shape = _shape(resolved, step_name(plan.run.id, RANKS))
    flags = [f"--container-name={name}" if flag.startswith(_IMAGE_FLAG) else flag for flag in plan.flags]
    importing = [image, f"--container-name={name}", "--no-container-mount-home", "--no-container-entrypoint"]
    warm = Warm(allocation.job_id, allocation.nodes, allocation.node_list, name, tuple(importing) if image else ())
    return replace(
        plan, options=(), flags=(*shape, *flags), warm=warm, restarts=0
    )  # a requeue would end the allocation


def image_stamp(image: str | None) -> str:
    """When and how large, where the image is a file that can be seen from here."""
    if not image or not image.startswith("/"):
        return ""
    try:
        status = Path(image).stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"


def _shape(resolved: Resolved, name: str) -> list[str]:
    """What sbatch would have been told, as srun's flags: inside an allocation they shape the step."""
    resources = resolved.job.resources
    tasks = resources.tasks_per_node or 1
    shape = [
        "--overlap",
        f"--job-name={name}",
        f"--nodes={resources.nodes}",
        f"--ntasks={resources.nodes * tasks}",
        f"--ntasks-per-node={tasks}",
        "--mem=0",  # all of the allocation's: its steps share
        f"--time={slurm_time(resources.time)}",
    ]
    if resources.gpus_per_node:
        gpus = str(resources.gpus_per_node)
        by_node = resolved.cluster.gpu_request == "gpus-per-node"
        shape.append(f"--gpus-per-node={gpus}" if by_node else f"--gres=gpu:{gpus}")
    if resources.warning:
        shape.append(f"--signal=USR2@{resources.warning}")
    return shape


def end_steps(slurm: Slurm, run_id: str, job_id: str) -> None:
    """End the steps of a warm run, and nothing else in its allocation: TERM to the ranks, URG to the script."""
    ids = {step.name: step.id for step in slurm.steps(job_id)}
    for part, signal in ((HOST, "URG"), (RANKS, "TERM")):  # the script first: it is to know why the ranks end
        if step := ids.get(step_name(run_id, part)):
            slurm.signal(signal, [step])


def head(warm: Warm) -> list[str]:
    """The lines that a warm script begins with, where others have their #SBATCH lines."""
    return [
        f"# A step of allocation {warm.job_id}: what it tells of its own shape is not that of the tasks.",
        "job=$SLURM_JOB_ID conf=$SLURM_CONF",
        'unset "${!SLURM_@}" "${!SRUN_@}" "${!SBATCH_@}"',
        f"SLURM_JOB_NODELIST={quote(warm.node_list)} # not exported: srun would take it for a request",
        'export SLURM_JOB_ID=$job; [ -z "$conf" ] || export SLURM_CONF=$conf',
        "",
    ]


# After the script's own traps. URG is what `cancel` sends to the host step: no srun and no program minds it.
STOPPABLE = r"""
# To cancel this run and not its allocation: the ranks get TERM from outside, this script URG. What stays is ended.
trap 'signal=TERM' URG
stoppable() {
  [ -z "$signal" ] || return 143
  "$@" &
  local child=$! code waited=0
  wait "$child"
  code=$?
  while kill -0 "$child" 2>/dev/null; do # a signal came: it did not end
    sleep 1
    [ $((waited += 1)) -ne 30 ] || kill -TERM "$child"
    kill -0 "$child" 2>/dev/null || { wait "$child"; code=$?; }
  done
  return "$code"
}"""

_IMPORT = r"""
# The image is unpacked once per node and allocation, by whichever run comes first; the others wait for it. All scripts
# of an allocation run on its first node: the number of the owner's process says whether it lives.
imported() { # its mark, then what imports it
  local mark=$1 owner code
  shift
  until [ -e "$mark/ready" ]; do
    mkdir -p "$mark.$$" && echo "$$" >"$mark.$$/owner" || return 73
    if mv -T "$mark.$$" "$mark" 2>/dev/null; then # whole, or not at all: a folder with content is not replaced
      stoppable "$@"
      code=$?
      [ "$code" -ne 0 ] || { touch "$mark/ready" && return 0; }
      rm -r "$mark"
      return "$code"
    fi
    rm -r "$mark.$$"
    owner=$(cat "$mark/owner" 2>/dev/null)
    [ -z "$owner" ] || kill -0 "$owner" 2>/dev/null || rm -r "$mark"
    [ -z "$signal" ] || return 143
    sleep 0.5
  done
}
"""


def import_lines(plan: Plan) -> list[str]:
    """The import of the image, once per node, under a name that has the allocation's number in it."""
    warm = plan.warm
    if warm is None or not warm.container:
        return []
    name = step_name(plan.run.id, RANKS)
    words = ["srun", "--overlap", f"--job-name={name}", f"--nodes={warm.nodes}", f"--ntasks={warm.nodes}"]
    words += ["--ntasks-per-node=1", "--mem=0", "--mpi=none", "--input=none", *warm.import_flags, "true"]
    mark = warm_folder(plan.run.path.parent) / warm.job_id / warm.container
    return [_IMPORT, f"imported {quote(str(mark))} \\", "  " + " ".join(map(quote, words)) + " &&"]


def warm_folder(runs: Path) -> Path:
    """What is kept of allocations: one folder each, by its number."""
    return runs / ".warm"

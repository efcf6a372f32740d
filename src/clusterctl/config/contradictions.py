"""What is wrong with a job although every single value is right, and what is not the user's to set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.spec.records import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.spec import Cluster, Job

# What a run is found, watched and ended by is not the user's to change through [resources] sbatch.
RESERVED_OPTIONS = frozenset(
    {"array", "chdir", "error", "export", "hold", "input", "job-name", "mem", "no-requeue", "ntasks", "ntasks-per-node"}
    | {"open-mode", "output", "parsable", "signal", "test-only", "uid", "wait", "wrap"}
)
# Nor what Slurm and the batch script tell the tasks, and the script's own variables.
RESERVED_PREFIXES = ("CLUSTERCTL_", "SBATCH_", "SLURM_", "SRUN_", "SUBMITIT_")
SCRIPT_VARIABLES = frozenset(
    {"attempt", "closing", "code", "dropped", "end", "exports", "full", "marks", "number", "ranks", "refused"}
    | {"restarts", "run", "setup", "signal", "srun", "start", "task", "text", "try"}
)


def contradictions(job: Job, cluster: Cluster) -> Iterator[Problem]:
    """What no single value shows."""
    resources = job.resources
    if job.workload == "command" and not any(job.argv[:1]):
        yield Problem(("argv",), 'missing: workload "command" needs the program, such as ["python", "train.py"]')
    if job.workload != "command" and job.argv:
        yield Problem(("argv",), f'only workload "command" takes a program, not "{job.workload}"')
    own = {name.replace("_", "-") for name in vars(resources)} | RESERVED_OPTIONS
    for name in sorted(own & set(resources.sbatch)):
        yield Problem(("resources", "sbatch", name), "clusterctl sets this option; use the key of the job file for it")
    for name in job.env:
        if name.startswith(RESERVED_PREFIXES) or name in SCRIPT_VARIABLES:
            yield Problem(("env", name), "Slurm or clusterctl sets this variable; choose another name")
    if resources.warning and resources.warning >= resources.time:
        yield Problem(("resources", "warning"), f"must be shorter than the time of {resources.time} s")
    if getattr(job.train, "device", "auto") == "cuda" and not resources.gpus_per_node:
        yield Problem(("train", "device"), '"cuda" needs resources.gpus_per_node')
    if 0 in getattr(job.train, "fan_out", ()):
        yield Problem(("train", "fan_out"), "needs one number a layer, each above 0, or -1 for all neighbours")
    image = job.container.image
    if job.container.code == "image" and not image:
        yield Problem(("container", "code"), '"image" needs an image; set container.image')
    if job.container.workdir and not job.container.workdir.startswith("/"):
        yield Problem(("container", "workdir"), f"not an absolute path: {job.container.workdir}")
    if image and cluster.has_pyxis and not cluster.is_slurm:
        hint = 'the emulator has no pyxis; set container_runtime = "builtin" in its file'
        yield Problem(("container", "image"), hint)

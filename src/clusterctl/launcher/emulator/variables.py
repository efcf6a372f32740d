"""The variables of a batch script and of a task, as Slurm 22.05 sets them and --export passes them."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator import jobs
from clusterctl.launcher.emulator.jobs import JOB_MARK, EmulatedJob, JobRecord
from clusterctl.launcher.emulator.output import user_name
from clusterctl.launcher.emulator.virtual_cluster import Machine, node_list, node_name, per_node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.launcher.emulator.job_request import JobRequest


EXPORTS = "SLURM_EXPORT_ENV"  # hands the job's choice on to its steps


def exported(environment: Mapping[str, str], wanted: str | None) -> dict[str, str]:
    """`environment` as far as the argument `wanted` of --export takes it; Slurm's own variables always."""
    if wanted is None:
        return dict(environment)
    words = wanted.split(",")
    given = dict(word.split("=", 1) for word in words if "=" in word)
    slurms = {name: value for name, value in environment.items() if name.startswith(("SLURM_", "SPANK_", JOB_MARK))}
    if wanted.upper() == "NONE":  # the user's login environment
        user = pwd.getpwuid(os.getuid())
        given = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell}
        given["PATH"] = os.defpath
    elif "ALL" in map(str.upper, words):
        slurms = dict(environment)
    named = {word: environment[word] for word in words if word in environment}
    return {**slurms, **named, **given}


def batch_environment(
    machine: Machine, job: EmulatedJob, request: JobRequest, record: JobRecord, submitted: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the submission, plus what Slurm adds on the first node."""
    values: dict[str, object] = {
        "ENVIRONMENT": "BATCH",
        "PATH": f"{machine.bin}{os.pathsep}{submitted.get('PATH', os.defpath)}",
        JOB_MARK: job.folder,
        "SLURM_ARRAY_JOB_ID": record.array or None,
        "SLURM_ARRAY_TASK_ID": record.tasks[0] if record.tasks else None,
        **jobs.array_environment(request.array),
        "SLURM_CLUSTER_NAME": "emulator",
        "SLURM_CPUS_ON_NODE": request.cpus_on_each,
        "SLURM_CPUS_PER_TASK": request.cpus_per_task,
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), request.gpus_per_node or None),
        **dict.fromkeys(("SLURM_GTIDS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_PROCID"), 0),
        **dict.fromkeys(("SLURM_JOBID", "SLURM_JOB_ID"), job.id),
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), node_list(record.nodes)),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), request.nodes),
        **dict.fromkeys(("SLURM_NPROCS", "SLURM_NTASKS"), request.tasks),
        "SLURM_JOB_CPUS_PER_NODE": per_node([request.cpus_on_each] * request.nodes),
        "SLURM_JOB_GID": os.getgid(),
        "SLURM_JOB_NAME": request.name,
        "SLURM_JOB_PARTITION": request.partition,
        "SLURM_JOB_UID": os.getuid(),
        "SLURM_JOB_USER": user_name(),
        "SLURM_NTASKS_PER_NODE": request.tasks_per_node,
        "SLURM_OPEN_MODE": "a" if request.append else None,
        "SLURM_RESTART_COUNT": record.restarts or None,
        "SLURM_SUBMIT_DIR": request.submit_folder,
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_TASKS_PER_NODE": per_node(request.tasks_on_nodes),
        "SLURMD_NODENAME": node_name(record.nodes[0]),
        **gpu_environment(record.gpus[0]),
    }
    kept = {name: value for name, value in submitted.items() if name not in values}
    return kept | {name: str(value) for name, value in values.items() if value is not None}


def task_environment(step: int, nodes: Sequence[int], counts: Sequence[int], node: int, local: int) -> dict[str, str]:
    """What srun adds for local rank `local` on node number `node` of the step; `counts` are the tasks per node."""
    first = sum(counts[:node])
    values: dict[str, object] = {
        "SLURMD_NODENAME": node_name(nodes[node]),
        "SLURM_GTIDS": ",".join(str(first + rank) for rank in range(counts[node])),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURM_PROCID": first + local,
        "SLURM_STEP_NODELIST": node_list(nodes),
        **dict.fromkeys(("SLURM_STEPID", "SLURM_STEP_ID"), step),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), len(nodes)),
        **dict.fromkeys(("SLURM_NPROCS", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), sum(counts)),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), per_node(counts)),
    }
    return {name: str(value) for name, value in values.items()}


def gpu_environment(gpus: Sequence[int]) -> dict[str, str]:
    """All of a job's GPUs on a node are visible to each of its tasks there; ranks pick theirs by local rank."""
    indices = ",".join(str(index) for index in gpus)
    names = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS")
    return dict.fromkeys(names, indices) if gpus else {}

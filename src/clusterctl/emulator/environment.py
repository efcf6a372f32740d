"""The SLURM_* variables of a batch script and of a task, as Slurm 22.05 sets them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterctl.emulator.jobs import JOB_MARK
from clusterctl.emulator.machine import node_list, node_name, per_node
from clusterctl.emulator.output import user_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.emulator.jobs import Job, Record
    from clusterctl.emulator.machine import Machine
    from clusterctl.emulator.request import JobRequest

CLUSTER_NAME = "emulator"


def batch_environment(
    machine: Machine, job: Job, request: JobRequest, record: Record, submitted: Mapping[str, str]
) -> dict[str, str]:
    """The environment that the job's command was called in, with what Slurm adds to it on the first node."""
    tasks, nodes = str(request.tasks), str(request.nodes)
    names = node_list(record.nodes)
    values: dict[str, object] = {
        "ENVIRONMENT": "BATCH",
        "PATH": f"{machine.bin}{os.pathsep}{submitted.get('PATH', os.defpath)}",
        JOB_MARK: job.folder,
        "SLURM_CLUSTER_NAME": CLUSTER_NAME,
        "SLURM_CPUS_ON_NODE": request.cpus_on_each,
        "SLURM_CPUS_PER_TASK": request.cpus_per_task,
        "SLURM_GPUS_ON_NODE": request.gpus_per_node or None,
        "SLURM_GPUS_PER_NODE": request.gpus_per_node or None,
        "SLURM_GTIDS": 0,
        "SLURM_JOBID": job.id,
        "SLURM_JOB_CPUS_PER_NODE": per_node([request.cpus_on_each] * request.nodes),
        "SLURM_JOB_GID": os.getgid(),
        "SLURM_JOB_ID": job.id,
        "SLURM_JOB_NAME": request.name,
        "SLURM_JOB_NODELIST": names,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_JOB_PARTITION": request.partition,
        "SLURM_JOB_UID": os.getuid(),
        "SLURM_JOB_USER": user_name(),
        "SLURM_LOCALID": 0,
        "SLURM_NNODES": nodes,
        "SLURM_NODEID": 0,
        "SLURM_NODELIST": names,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS": tasks,
        "SLURM_NTASKS_PER_NODE": request.tasks_per_node,
        "SLURM_OPEN_MODE": "a" if request.append else None,
        "SLURM_PROCID": 0,
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
    """What srun adds for local rank `local` of the step's node number `node`; `counts` are the tasks of each node."""
    first = sum(counts[:node])
    names, tasks, shape = node_list(nodes), sum(counts), per_node(counts)
    values: dict[str, object] = {
        "SLURMD_NODENAME": node_name(nodes[node]),
        "SLURM_GTIDS": ",".join(str(first + rank) for rank in range(counts[node])),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_LOCALID": local,
        "SLURM_NNODES": len(nodes),
        "SLURM_NODEID": node,
        "SLURM_NPROCS": tasks,
        "SLURM_NTASKS": tasks,
        "SLURM_PROCID": first + local,
        "SLURM_STEPID": step,
        "SLURM_STEP_ID": step,
        "SLURM_STEP_NODELIST": names,
        "SLURM_STEP_NUM_NODES": len(nodes),
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_TASKS_PER_NODE": shape,
        "SLURM_TASKS_PER_NODE": shape,
    }
    return {name: str(value) for name, value in values.items()}


def gpu_environment(gpus: Sequence[int]) -> dict[str, str]:
    """All of a job's GPUs on a node are visible to each of its tasks there; ranks pick theirs by local rank."""
    indices = ",".join(str(index) for index in gpus)
    names = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS")
    return dict.fromkeys(names, indices) if gpus else {}

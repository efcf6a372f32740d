"""Which device a rank uses. Only `gpu_identity` queries the machine; everything else is pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clusterctl.errors import TaskError

if TYPE_CHECKING:
    from clusterctl.task.rendezvous import Member


def choose_device(wanted: str, gpus_requested: int, visible: int, local_rank: int) -> torch.device:
    """The device of a rank that wants "auto", "cpu" or "cuda" and sees `visible` GPUs.

    `cuda:local_rank` if the task sees all GPUs of its node, `cuda:0` if Slurm restricts it to one, the CPU if the job
    requests no GPU. Raises TaskError if a GPU is wanted and there is none for this rank.
    """
    if wanted == "cpu" or (wanted == "auto" and gpus_requested == 0):
        return torch.device("cpu")
    if visible == 0:
        raise TaskError(
            f"local rank {local_rank} sees no GPU, but the job needs {gpus_requested or 'one'}",
            "check `nvidia-smi` and `torch.cuda.is_available()` there, or run with train.device=cpu",
        )
    if visible == 1:
        return torch.device("cuda", 0)
    if local_rank >= visible:
        raise TaskError(
            f"local rank {local_rank} has no GPU of its own: {visible} visible",
            "set tasks_per_node to at most gpus_per_node",
        )
    return torch.device("cuda", local_rank)


def check_exclusive(members: list[Member]) -> None:
    """Raise TaskError if two ranks would share a GPU."""
    taken: dict[tuple[int, str], int] = {}
    for rank, member in enumerate(members):
        if member.gpu and (other := taken.setdefault((member.node_rank, member.gpu), rank)) != rank:
            raise TaskError(
                f"ranks {other} and {rank} would share one GPU of node {member.node_rank}: {member.gpu}",
                "set tasks_per_node to at most gpus_per_node",
            )


def gpu_identity(device: torch.device) -> str:
    """The UUID of a GPU; empty for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""

"""The part of a node check that needs torch: a matmul on each GPU, and an all-reduce over all nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

from clusterctl.engine.task.rendezvous import meet

if TYPE_CHECKING:
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place

_ON_GPU, _ON_CPU = 4096, 512  # rows; sums of that many ones are exact
_ELEMENTS = 1 << 20


def product_problem() -> str:
    """Multiply matrices on each GPU, or on the CPU if the job has none. Returns the problem, or an empty string."""
    wanted = int(os.environ.get("SLURM_GPUS_ON_NODE") or 0)
    visible = torch.cuda.device_count()
    if visible < wanted:
        return f"torch sees {visible} of its {wanted} GPUs"
    for device, size in [(f"cuda:{number}", _ON_GPU) for number in range(visible)] or [("cpu", _ON_CPU)]:
        ones = torch.ones(size, size, device=device)
        if not bool((ones @ ones == size).all()):
            return f"a matrix product on {device} is wrong"
    return ""


def all_reduce(place: Place, meeting: Attempt) -> None:
    """Sum over all nodes, one process per node. Raises RuntimeError for a wrong sum, and torch's own errors."""
    store, _ = meet(place, meeting)
    backend, device = ("nccl", "cuda:0") if torch.cuda.is_available() else ("gloo", "cpu")
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size)
    ones = torch.ones(_ELEMENTS, device=device)
    dist.all_reduce(ones)
    if not bool((ones == place.world_size).all()):
        raise RuntimeError("an all-reduce over the nodes is wrong")

"""Tables that all ranks of a node share in memory: what is derived from the graph stands there once."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.task.task import Task


@contextmanager
def shared_table(task: Task, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[Tensor, bool]]:
    """A table of zeros on the task's device, and whether this rank's writes are wanted; ready for all at the end.

    On the CPU the ranks of a node get the same memory, and all may write to it; where a piece is known to more than
    one of them, the one with `True` should. On GPUs each rank has a table of its own. A collective of the node's ranks.
    """
    if task.device.type != "cpu" or task.node.size() == 1:
        yield torch.zeros(shape, dtype=dtype, device=task.device), True
        return
    table = _mapped(task, shape, dtype)
    yield table, task.leads_node
    dist.barrier(task.node)


def _mapped(task: Task, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The table in a file without a name, which goes with its last mapping: no rank has to remove it.

    The others open it through /proc, so containers that mount a /tmp or a small /dev/shm of their own do not matter.
    """
    count = torch.Size(shape).numel()
    where = torch.zeros(2, dtype=torch.int64)
    descriptor = -1
    if task.leads_node:
        descriptor = os.memfd_create("clusterctl-table")
        os.ftruncate(descriptor, max(1, count * dtype.itemsize))
        where = torch.tensor([os.getpid(), descriptor])
    dist.broadcast(where, dist.get_global_rank(task.node, 0), group=task.node)
    process, number = where.tolist()
    table = torch.from_file(f"/proc/{process}/fd/{number}", shared=True, size=count, dtype=dtype).view(shape)
    dist.barrier(task.node)
    if task.leads_node:
        os.close(descriptor)
    return table

"""How much memory a model's forward, or a step of its training, needs: measured on small inputs; how much there is."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clusterctl.engine.task.node_usage import NodeUsage
from clusterctl.shared.node.processes import available_memory

if TYPE_CHECKING:
    from collections.abc import Callable

_MARGIN = 1.25
_FEW, _MANY = 8, 24


class Need(NamedTuple):
    """Bytes of a forward, or of a step, for each row and each edge, at its peak, with its inputs."""

    per_row: float
    per_edge: float

    def bare(self, rows: int, edges: int) -> int:
        """The bytes for this many rows and edges, as measured."""
        return int(self.per_row * rows + self.per_edge * edges)

    def of(self, rows: int, edges: int) -> int:
        """The bytes for this many rows and edges, with a margin."""
        return int(_MARGIN * self.bare(rows, edges))


def measured(forward: Callable[[int], Any], rows: int, edges: int) -> Need:
    """The need of `forward(times)`, which runs on `rows` rows and on `times` copies of `edges` edges.

    It may end with a backward pass. Rows and edges may need most at different moments; the sum is never too small. Many
    edges show their share.
    """
    few, many = (_peak(lambda times=times: forward(times)) for times in (_FEW, _MANY))  # type: ignore[misc]
    per_edge = (many - few) / max(1, (_MANY - _FEW) * edges)
    try:
        of_rows: float = _peak(lambda: forward(0))
    except Exception:  # a user's model may not like a graph without edges
        of_rows = few - per_edge * _FEW * edges
    return Need(max(0, of_rows) / rows, per_edge)


def _peak(work: Callable[[], Any]) -> int:
    with _LiveBytes() as mode, saved_tensors_hooks(mode.saved, lambda tensor: tensor):
        work()
    return int(mode.peak)


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that are alive, among those made within this context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._live = 0
        self._users: dict[int, int] = {}  # of each storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for given in tree_leaves((args, kwargs)):  # views of what was there before are not new
            if isinstance(given, Tensor) and given.layout == torch.strided:
                self._users.setdefault(given.untyped_storage().data_ptr(), 1)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                key, size = storage.data_ptr(), storage.nbytes()
                if not self._users.get(key):
                    self._live += size
                    self.peak = max(self.peak, self._live)
                self._users[key] = self._users.get(key, 0) + 1
                weakref.finalize(tensor, self._dropped, key, size)
        return result

    def saved(self, tensor: Tensor) -> Tensor:
        """Counts what autograd saves for the backward pass, under another object than the forward's."""
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            key, size = storage.data_ptr(), storage.nbytes()
            if self._users.get(key):
                self._users[key] += 1
                weakref.finalize(tensor, self._dropped, key, size)
        return tensor

    def _dropped(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            self._live -= size


def free_memory(device: torch.device) -> int:
    """The bytes that this process can still use on `device`: of the machine, and within the limits of its cgroup."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    found = [available_memory() or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # of a container
        of_all = Path("/sys/fs/cgroup")
        found.append(int((of_all / "memory.max").read_text()) - int((of_all / "memory.current").read_text()))
    with suppress(OSError, ValueError):
        usage = NodeUsage(os.environ).read()
        if usage.memory_limit is not None:
            found.append(usage.memory_limit - usage.memory)
    return max(0, min(found))

"""One rank, connected: everything that a workload needs from its surroundings."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

from clusterctl.runs.layout import Attempt, RunDir
from clusterctl.runs.metrics import MetricsWriter
from clusterctl.runs.stages import Stage
from clusterctl.task.device import check_exclusive, choose_device, gpu_identity, visible_gpus
from clusterctl.task.groups import call_roll, node_group
from clusterctl.task.once import prepared_once
from clusterctl.task.rendezvous import meet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.runs.events import Events
    from clusterctl.runs.place import Place
    from clusterctl.runs.signals import StopRequest
    from clusterctl.spec import Job


@dataclass(frozen=True)
class Task:
    """A rank of a run. The world group is torch.distributed's default one; `node` is the group of this node's ranks."""

    place: Place
    device: torch.device
    node: dist.ProcessGroup
    cache: Path  # prepared data sets, shared by nodes and runs
    events: Events
    metrics: MetricsWriter
    stop: StopRequest

    @property
    def leads_node(self) -> bool:
        return self.node.rank() == 0

    def prepared(
        self, name: str, prepare: Callable[[Path], None], whole: Callable[[Path], bool] = lambda _: True
    ) -> Path:
        """The folder `name` of the cache, filled by one rank of one node on behalf of all (see `once`)."""
        folder = self.cache / name
        if self.leads_node:
            prepared_once(folder, prepare, whole=whole)
        dist.barrier(self.node)
        return folder


@contextmanager
def joined(
    job: Job, wanted_device: str, place: Place, attempt: Attempt | None, events: Events, stop: StopRequest
) -> Iterator[Task]:
    """Meet the other ranks, take a device, and leave together."""
    events.stage(Stage.RENDEZVOUS)
    device = choose_device(wanted_device, job.resources.gpus_per_node or 0, visible_gpus(), place.local_rank)
    store = meet(place, attempt)
    members = call_roll(store, place, gpu_identity(device))
    check_exclusive(members)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size)
    node = node_group(members, place.rank)
    if "OMP_NUM_THREADS" not in os.environ:  # torch would give every rank all cores of the node
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // node.size()))
    metrics, cache = MetricsWriter(attempt, place.rank), _cache_folder(attempt)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache / "numba"))  # its default is beside the code, maybe read-only
    yield Task(place, device, node, cache, events, metrics, stop)
    dist.destroy_process_group()  # not after an error: NCCL would wait for ranks that may never come


def _cache_folder(attempt: Attempt | None) -> Path:
    if attempt is not None:
        return RunDir(attempt.path.parent.parent).data_cache
    folder = os.environ.get("CLUSTERCTL_DATA_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "clusterctl" / "data"

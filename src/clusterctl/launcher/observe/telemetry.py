"""Telemetry of an attempt's nodes: the samples written by their leaders."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.observe.lines import last_lines, records_in
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import names_in
from clusterctl.shared.record.heartbeats import IDLE_SECONDS, idle_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from clusterctl.shared.record.layout import Attempt

_RANK = re.compile("[0-9]{1,9}")
GPU_IDLE_SECONDS = 300.0  # loading a data set takes minutes
_MOST_NODES = 16  # whose current state `status` reads
_LAST_BYTES = 16384  # holds a few samples of a node with sixteen GPUs


@dataclass(frozen=True)
class Gpu:
    """One GPU: its utilisation in percent and its memory in bytes, None if the driver does not report it."""

    index: int = 0
    utilisation: float | None = None
    memory_total: float | None = None


@dataclass(frozen=True)
class RankSample:
    """A rank's last heartbeat; field names as in `clusterctl.shared.record.heartbeats.Beat`."""

    step: float | None = None
    phase: str = ""
    step_seconds: float | None = None
    busy_seconds: float | None = None
    idle: float | None = None


@dataclass(frozen=True)
class Used:
    """The most that an attempt used on any of its nodes: CPU cores, memory in bytes; None if not measured.

    `memory` is what the kernel could not have taken back, `memory_limit` the job's limit on a node; `counted`: the
    kernel counted it in the job's cgroup. `gpu_memory` is that of the fullest GPU, which has `gpu_memory_total`.
    """

    memory: float | None = None
    cpus: float | None = None
    gpu_memory: float | None = None
    gpu_memory_total: float | None = None
    memory_limit: float | None = None
    counted: bool = False

    @classmethod
    def most(cls, found: Iterable[Used]) -> Used:
        """The highest of each."""
        each = list(found)
        names = ("memory", "cpus", "gpu_memory", "gpu_memory_total", "memory_limit")
        highest = {
            name: max((value for one in each if (value := getattr(one, name)) is not None), default=None)
            for name in names
        }
        return cls(**highest, counted=any(one.counted for one in each))


NOT_MEASURED = Used()


@dataclass(frozen=True)
class Sample:
    """One node: CPUs in use and available, memory in bytes. The file has more, which is not used here."""

    time: float
    cpu: float | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_limit: float | None = None
    gpus: tuple[Gpu, ...] = ()
    ranks: Mapping[int, RankSample] = field(default_factory=dict)
    seconds: float | None = None  # duration of the sample
    gpu_idle: float | None = None  # seconds for which all GPUs of the node have been idle
    peak: Used = NOT_MEASURED  # of the attempt so far


def parse_sample(record: Mapping[str, Any]) -> Sample | None:
    """The sample on one line of a telemetry file, without fields of the wrong type; None without a time."""
    fields = Fields(record)
    time = fields.moment("time")
    if time is None:
        return None
    gpus = tuple(
        Gpu(gpu.whole("index") or 0, gpu.number("utilisation"), gpu.number("memory_total"))
        for gpu in fields.tables("gpus")
    )
    ranks = fields.table("ranks")
    of_ranks = {}
    for rank in filter(_RANK.fullmatch, ranks.content):
        one = ranks.table(rank)
        step, step_seconds, busy_seconds, idle = map(one.number, ("step", "step_seconds", "busy_seconds", "idle"))
        of_ranks[int(rank)] = RankSample(step, one.text("phase"), step_seconds, busy_seconds, idle)
    cpu, cpus, memory, memory_limit = map(fields.number, ("cpu", "cpus", "memory", "memory_limit"))
    seconds, gpu_idle = map(fields.number, ("seconds", "gpu_idle"))
    highest = fields.table("peak")
    peak = Used(
        memory=highest.number("memory"),
        cpus=highest.number("cpu"),
        gpu_memory=highest.number("gpu_memory"),
        gpu_memory_total=max((gpu.memory_total for gpu in gpus if gpu.memory_total is not None), default=None),
        memory_limit=memory_limit,
        counted=highest.flag("cgroup"),
    )
    return Sample(time, cpu, cpus, memory, memory_limit, gpus, of_ranks, seconds, gpu_idle, peak)


class NodesNow(NamedTuple):
    """The current state of the nodes, and the most that they `used`.

    `gpu`: mean GPU utilisation in percent; None if no GPU reports it.
    `idle_since`: since when all ranks of a program that logs no steps are idle; None if under a minute.
    `gpus_idle_since`: since when all GPUs are idle; None if under five minutes.
    """

    gpu: float | None = None
    idle_since: float | None = None
    gpus_idle_since: float | None = None
    used: Used = NOT_MEASURED


def nodes_now(attempt: Attempt, tasks: int) -> NodesNow:
    """The current state of the nodes of an attempt with `tasks` ranks.

    If there are many nodes, a few evenly spread ones represent all, so that `status` costs the same for any number.
    The others are only read if all ranks seem idle.
    """
    files = telemetry_files(attempt)
    some = latest_samples(files, list(files)[:: -(-len(files) // _MOST_NODES) or 1])
    idle, gpus_idle = idle_since(some, 0), gpus_idle_since(some)
    if idle is not None or gpus_idle is not None:
        all_samples = some | latest_samples(files, files.keys() - some.keys())
        idle, gpus_idle = idle_since(all_samples, tasks), gpus_idle_since(all_samples)
    return NodesNow(gpu_utilisation(some), idle, gpus_idle, _most(some))


def used_by(attempt: Attempt) -> Used:
    """The most that an attempt used. Of many nodes, a few evenly spread ones represent all."""
    files = telemetry_files(attempt)
    return _most(latest_samples(files, list(files)[:: -(-len(files) // _MOST_NODES) or 1]))


def _most(samples: Mapping[str, Sample]) -> Used:
    return Used.most(sample.peak for sample in samples.values())


def latest_samples(files: Mapping[str, Path], nodes: Iterable[str]) -> dict[str, Sample]:
    """Node -> its last sample, for those of `nodes` that have one."""
    found = {}
    for node in nodes:
        record = next(records_in(reversed(last_lines(files[node], _LAST_BYTES))), {})
        if (sample := parse_sample(record)) is not None:
            found[node] = sample
    return found


def gpu_utilisation(samples: Mapping[str, Sample]) -> float | None:
    """The mean over all GPUs of all nodes, in percent; None if no GPU reports it."""
    known = [gpu.utilisation for sample in samples.values() for gpu in sample.gpus if gpu.utilisation is not None]
    return sum(known) / len(known) if known else None


def idle_since(samples: Mapping[str, Sample], tasks: int) -> float | None:
    """Since when all `tasks` ranks of a program that logs no steps are idle; None if under a minute."""
    ranks = {rank: found for sample in samples.values() for rank, found in sample.ranks.items()}
    idle = idle_together(ranks.values(), tasks)
    if idle is None or idle < IDLE_SECONDS:
        return None
    return max(0.0, max(sample.time for sample in samples.values()) - idle)


def gpus_idle_since(samples: Mapping[str, Sample]) -> float | None:
    """Since when all GPUs on all nodes are idle; None if under GPU_IDLE_SECONDS or unknown."""
    idle = min((sample.gpu_idle or 0.0 for sample in samples.values()), default=0.0)
    if idle < GPU_IDLE_SECONDS:
        return None
    return max(0.0, max(sample.time for sample in samples.values()) - idle)


def telemetry_files(attempt: Attempt) -> dict[str, Path]:
    """Node -> its file, sorted by name."""
    folder, suffix = attempt.telemetry("x").parent, ".jsonl"
    try:
        names = sorted(names_in(folder))  # sorting hundreds of Path objects takes ten times as long
    except OSError:
        return {}
    return {
        name.removesuffix(suffix): folder / name for name in names if name.endswith(suffix) and not name.startswith(".")
    }

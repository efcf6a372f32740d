"""What the nodes of an attempt do: the samples that their leaders write."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.observe.lines import last_lines, records_in
from clusterctl.runs.fields import Fields
from clusterctl.runs.files import names_in
from clusterctl.runs.heartbeats import IDLE_SECONDS, idle_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from clusterctl.runs.layout import Attempt

_RANK = re.compile("[0-9]{1,9}")
GPU_IDLE_SECONDS = 300.0  # loading a data set takes minutes
_MOST_NODES = 16  # of which `status` reads what they do now
_LAST_BYTES = 16384  # holds a few samples of a node with sixteen GPUs


@dataclass(frozen=True)
class Gpu:
    """One GPU: its utilisation in percent, None where its driver does not report it."""

    index: int = 0
    utilisation: float | None = None


@dataclass(frozen=True)
class RankSample:
    """What a rank's last heartbeat said; the names are those of `clusterctl.runs.heartbeats.Beat`."""

    step: float | None = None
    phase: str = ""
    step_seconds: float | None = None
    busy_seconds: float | None = None
    idle: float | None = None


@dataclass(frozen=True)
class Sample:
    """One node: processors in use and given, bytes. The file has more, which nothing here shows."""

    time: float
    cpu: float | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_limit: float | None = None
    gpus: tuple[Gpu, ...] = ()
    ranks: Mapping[int, RankSample] = field(default_factory=dict)
    seconds: float | None = None  # how long it lasted
    gpu_idle: float | None = None  # for how many seconds no GPU of the node has done anything


def parse_sample(record: Mapping[str, Any]) -> Sample | None:
    """The sample in one line of a telemetry file, as far as it has the right types; None without a time."""
    fields = Fields(record)
    time = fields.moment("time")
    if time is None:
        return None
    gpus = tuple(Gpu(gpu.whole("index") or 0, gpu.number("utilisation")) for gpu in fields.tables("gpus"))
    ranks = fields.table("ranks")
    of_ranks = {int(rank): _of_rank(ranks.table(rank)) for rank in ranks.content if _RANK.fullmatch(rank)}
    cpu, cpus, memory, memory_limit = map(fields.number, ("cpu", "cpus", "memory", "memory_limit"))
    seconds, gpu_idle = map(fields.number, ("seconds", "gpu_idle"))
    return Sample(time, cpu, cpus, memory, memory_limit, gpus, of_ranks, seconds, gpu_idle)


def _of_rank(fields: Fields) -> RankSample:
    step, step_seconds, busy_seconds, idle = map(fields.number, ("step", "step_seconds", "busy_seconds", "idle"))
    return RankSample(step, fields.text("phase"), step_seconds, busy_seconds, idle)


class NodesNow(NamedTuple):
    """What the nodes do now. `gpu`: the mean utilisation of their GPUs in percent; None where no GPU reports it.

    `idle_since`: since when all ranks have done nothing, of a program that logs no steps; None for less than a minute.
    `gpus_idle_since`: since when no GPU has done anything; None for less than five minutes.
    """

    gpu: float | None = None
    idle_since: float | None = None
    gpus_idle_since: float | None = None


def nodes_now(attempt: Attempt, tasks: int) -> NodesNow:
    """What the nodes of an attempt of `tasks` ranks do now.

    Of many nodes a few, evenly spread, stand for all: `status` costs the same however many there are. The others are
    read only where it seems that no rank does anything.
    """
    files = telemetry_files(attempt)
    some = latest_samples(files, list(files)[:: -(-len(files) // _MOST_NODES) or 1])
    idle, gpus_idle = idle_since(some, 0), gpus_idle_since(some)
    if idle is not None or gpus_idle is not None:
        all_samples = some | latest_samples(files, files.keys() - some.keys())
        idle, gpus_idle = idle_since(all_samples, tasks), gpus_idle_since(all_samples)
    return NodesNow(gpu_utilisation(some), idle, gpus_idle)


def latest_samples(files: Mapping[str, Path], nodes: Iterable[str]) -> dict[str, Sample]:
    """Node -> its last sample, for those of `nodes` that have any."""
    found = {}
    for node in nodes:
        record = next(records_in(reversed(last_lines(files[node], _LAST_BYTES))), {})
        if (sample := parse_sample(record)) is not None:
            found[node] = sample
    return found


def gpu_utilisation(samples: Mapping[str, Sample]) -> float | None:
    """The mean over all GPUs of all nodes, in percent; None where no GPU tells."""
    told = [gpu.utilisation for sample in samples.values() for gpu in sample.gpus if gpu.utilisation is not None]
    return sum(told) / len(told) if told else None


def idle_since(samples: Mapping[str, Sample], tasks: int) -> float | None:
    """Since when all `tasks` ranks have done nothing, of a program that logs no steps; None for less than a minute."""
    ranks = {rank: found for sample in samples.values() for rank, found in sample.ranks.items()}
    idle = idle_together(ranks.values(), tasks)
    if idle is None or idle < IDLE_SECONDS:
        return None
    return max(0.0, max(sample.time for sample in samples.values()) - idle)


def gpus_idle_since(samples: Mapping[str, Sample]) -> float | None:
    """Since when no GPU of any node has done anything; None for less than GPU_IDLE_SECONDS, or if nobody knows."""
    idle = min((sample.gpu_idle or 0.0 for sample in samples.values()), default=0.0)
    if idle < GPU_IDLE_SECONDS:
        return None
    return max(0.0, max(sample.time for sample in samples.values()) - idle)


def telemetry_files(attempt: Attempt) -> dict[str, Path]:
    """Node -> its file, in the order of names."""
    folder, suffix = attempt.telemetry("x").parent, ".jsonl"
    try:
        names = sorted(names_in(folder))  # hundreds of paths take ten times as long to sort
    except OSError:
        return {}
    return {
        name.removesuffix(suffix): folder / name for name in names if name.endswith(suffix) and not name.startswith(".")
    }

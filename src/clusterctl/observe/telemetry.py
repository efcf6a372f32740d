"""What the nodes of an attempt do: the samples that their leaders write."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.observe.lines import last_lines, records_in
from clusterctl.runs.fields import Fields
from clusterctl.runs.heartbeats import IDLE_SECONDS, idle_together

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.runs.layout import Attempt

_RANK = re.compile("[0-9]{1,9}")
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
    return Sample(time, cpu, cpus, memory, memory_limit, gpus, of_ranks)


def _of_rank(fields: Fields) -> RankSample:
    step, step_seconds, busy_seconds, idle = map(fields.number, ("step", "step_seconds", "busy_seconds", "idle"))
    return RankSample(step, fields.text("phase"), step_seconds, busy_seconds, idle)


def latest_samples(attempt: Attempt) -> dict[str, Sample]:
    """Node -> its last sample."""
    found = {}
    for node, path in telemetry_files(attempt).items():
        record = next(records_in(reversed(last_lines(path, _LAST_BYTES))), {})
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


def telemetry_files(attempt: Attempt) -> dict[str, Path]:
    """Node -> its file, in the order of names."""
    try:
        return {path.stem: path for path in sorted(attempt.telemetry("x").parent.glob("[!.]*.jsonl"))}
    except OSError:
        return {}

"""What the nodes of an attempt do: the samples that their leaders write."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from clusterctl.observe.lines import last_lines
from clusterctl.runs.fields import Fields
from clusterctl.runs.files import parse_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.runs.layout import Attempt

_LAST_BYTES = 16384  # holds a few samples of a node with sixteen GPUs


@dataclass(frozen=True)
class Gpu:
    """One GPU: percent, bytes, watts, degrees Celsius; None where it, or its driver, does not tell."""

    index: int = 0
    name: str = ""
    utilisation: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    power: float | None = None
    temperature: float | None = None
    sm_activity: float | None = None


@dataclass(frozen=True)
class RankSample:
    """What a rank's last heartbeat said; the names are those of `clusterctl.runs.heartbeats.Beat`."""

    step: float | None = None
    phase: str = ""
    step_seconds: float | None = None
    busy_seconds: float | None = None


@dataclass(frozen=True)
class Sample:
    """One node over `seconds` up to `time`: processors in use and given, bytes, bytes a second."""

    time: float
    seconds: float = 0.0
    cpu: float | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_limit: float | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    net_in: float | None = None
    net_out: float | None = None
    gpus: tuple[Gpu, ...] = ()
    ranks: Mapping[int, RankSample] = field(default_factory=dict)


def parse_sample(record: Mapping[str, Any]) -> Sample | None:
    """The sample in one line of a telemetry file, as far as it has the right types; None without a time."""
    fields = Fields(record)
    time = fields.moment("time")
    if time is None:
        return None
    ranks = fields.table("ranks")
    numbers = {name: number for name in _NUMBERS if (number := fields.number(name)) is not None}
    return Sample(
        time,
        **numbers,
        gpus=tuple(_typed(Gpu, gpu) for gpu in fields.tables("gpus")),
        ranks={int(rank): _typed(RankSample, ranks.table(rank)) for rank in ranks.content if _RANK.fullmatch(rank)},
    )


def latest_samples(attempt: Attempt) -> dict[str, Sample]:
    """Node -> its last sample."""
    found = {}
    for node, path in telemetry_files(attempt).items():
        records = map(parse_record, reversed(last_lines(path, _LAST_BYTES)))
        record = next((record for record in records if record is not None), None)
        if record is not None and (sample := parse_sample(record)) is not None:
            found[node] = sample
    return found


def gpu_utilisation(samples: Mapping[str, Sample]) -> float | None:
    """The mean over all GPUs of all nodes, in percent; None where no GPU tells."""
    told = [gpu.utilisation for sample in samples.values() for gpu in sample.gpus if gpu.utilisation is not None]
    return sum(told) / len(told) if told else None


def telemetry_files(attempt: Attempt) -> dict[str, Path]:
    """Node -> its file, in the order of names."""
    try:
        return {path.stem: path for path in sorted(attempt.telemetry("x").parent.glob("[!.]*.jsonl"))}
    except OSError:
        return {}


_RANK = re.compile("[0-9]{1,9}")
_NUMBERS = {entry.name for entry in fields(Sample)} - {"time", "gpus", "ranks"}
_TEXTS = {"name", "phase"}
_NAMES: dict[type, list[str]] = {cls: [entry.name for entry in fields(cls)] for cls in (Gpu, RankSample)}


def _typed(cls: Any, record: Fields) -> Any:
    """`cls` with the fields that have the right types; the others keep their defaults."""
    values: dict[str, Any] = {
        name: record.text(name) if name in _TEXTS else record.number(name) for name in _NAMES[cls]
    }
    return cls(**{name: value for name, value in values.items() if value is not None})

"""One line of a node's telemetry, parsed: `attempts/<n>/telemetry/<node>.jsonl` as the leader of the node writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clusterctl.observe.evidence import numbers_of


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node. `utilisation` and `sm_activity` in percent, memory in bytes, power in watts, °C."""

    index: int
    name: str = ""
    utilisation: float | None = None
    memory: float | None = None
    memory_total: float | None = None
    power: float | None = None
    temperature: float | None = None
    sm_activity: float | None = None


@dataclass(frozen=True)
class Beat:
    """Where a rank stands: its steps, what one takes (seconds), its phase."""

    step: float | None = None
    seconds: float | None = None
    phase: str = ""


@dataclass(frozen=True)
class Sample:
    """A node at one moment. `cpu` in cores, memory in bytes, rates in bytes a second."""

    time: float
    cpu: float | None = None
    cpus: float | None = None
    memory: float | None = None
    memory_limit: float | None = None
    rates: dict[str, float] = field(default_factory=dict)  # disk_read, disk_write, net_in, net_out
    gpus: tuple[Gpu, ...] = ()
    ranks: dict[int, Beat] = field(default_factory=dict)


def parse_sample(record: dict[str, Any]) -> Sample | None:
    """The sample of one line; None where it has no time. What is no number says nothing."""
    time = numbers_of({"value": record.get("time")}).get("value")
    if time is None:
        return None
    numbers = numbers_of(record)
    gpus, ranks = record.get("gpus"), record.get("ranks")
    return Sample(
        time=float(time),
        **{name: numbers.get(name) for name in ("cpu", "cpus", "memory", "memory_limit")},
        rates={name: numbers[name] for name in ("disk_read", "disk_write", "net_in", "net_out") if name in numbers},
        gpus=tuple(_gpu(gpu, position) for position, gpu in enumerate(gpus) if isinstance(gpu, dict))
        if isinstance(gpus, list)
        else (),
        ranks={int(rank): _rank(values) for rank, values in ranks.items() if _is_rank(rank, values)}
        if isinstance(ranks, dict)
        else {},
    )


def _gpu(record: dict[str, Any], position: int) -> Gpu:
    index, name, numbers = record.get("index"), record.get("name"), numbers_of(record)
    known = ("utilisation", "memory", "memory_total", "power", "temperature", "sm_activity")
    return Gpu(
        index=index if type(index) is int else position,
        name=name if isinstance(name, str) else "",
        **{key: numbers.get(key) for key in known},
    )


def _rank(record: dict[str, Any]) -> Beat:
    numbers, phase = numbers_of(record), record.get("phase")
    return Beat(numbers.get("step"), numbers.get("seconds"), phase if isinstance(phase, str) else "")


def _is_rank(rank: str, values: object) -> bool:
    return rank.isascii() and rank.isdigit() and len(rank) < 8 and isinstance(values, dict)

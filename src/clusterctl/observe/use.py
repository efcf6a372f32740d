"""What a run asked for and what it used, summed up from its record and its history: the evidence for advice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.runs.stages import Stage
from clusterctl.spec.values import mebibytes

if TYPE_CHECKING:
    from clusterctl.observe.history import History
    from clusterctl.observe.stage import Status
    from clusterctl.observe.timeline import AttemptTimeline, Span


class GpuUse(NamedTuple):
    """The mean utilisation of one GPU, in percent."""

    node: str
    number: int
    percent: float


@dataclass(frozen=True)
class Use:
    """Asked for and used. Times in seconds, memory in bytes; None where nobody measured."""

    job: str
    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    time_limit: float
    memory_asked: float | None = None  # per node, where the job says
    cpu_busiest: float | None = None  # cores in use on the busiest node, at its busiest
    memory_highest: float | None = None  # of the node with the most
    gpus: tuple[GpuUse, ...] = ()
    split: dict[str, float] = field(default_factory=dict)  # part of a step -> seconds
    queued: float = 0.0
    held: float = 0.0  # by all attempts: what is paid for
    longest: float = 0.0  # the longest attempt
    restarts: int = 0
    undone: float = 0.0  # spent on steps that a restart did again
    restarting: float = 0.0  # spent by attempts after the first before their training
    finished: bool = False

    @property
    def gpu_hours(self) -> float:
        return self.held * self.nodes * self.gpus_per_node / 3600

    @property
    def gpu_percent(self) -> float | None:
        """The mean utilisation of all GPUs."""
        return sum(gpu.percent for gpu in self.gpus) / len(self.gpus) if self.gpus else None


def use_of(status: Status, history: History, now: float) -> Use:
    """The use of a run until `now`, or its end."""
    resources = status.record.job.resources
    phases = {number: timeline.phases(now) for number, timeline in history.attempts.items()}
    held = {number: timeline.held(now) for number, timeline in history.attempts.items()}
    starts = [spans[0].start for spans in phases.values() if spans]
    nodes = history.nodes.values()
    cpus = [highest for node in nodes if (highest := node.cpu.highest()) is not None]
    memory = [highest for node in nodes if (highest := node.memory.highest()) is not None]
    return Use(
        job=status.record.job.name,
        nodes=resources.nodes,
        tasks_per_node=status.record.tasks_per_node,
        cpus_per_task=resources.cpus_per_task,
        gpus_per_node=resources.gpus_per_node or 0,
        time_limit=float(resources.time),
        memory_asked=float(mebibytes(resources.memory) * 2**20) if resources.memory else None,
        cpu_busiest=max(cpus, default=None),
        memory_highest=max(memory, default=None),
        gpus=tuple(
            GpuUse(node.name, number, mean)
            for node in nodes
            for number, curve in sorted(node.gpus.items())
            if (mean := curve.mean()) is not None
        ),
        split=history.split(),
        queued=max(0.0, min(starts) - status.record.created) if starts else 0.0,
        held=sum(held.values()),
        longest=max(held.values(), default=0.0),
        restarts=max(0, len(phases) - 1),
        undone=history.undone_steps * _seconds_a_step(history),
        restarting=sum(_before_training(spans) for spans in list(phases.values())[1:]),
        finished=status.stage is Stage.FINISHED,
    )


def stage_seconds(timeline: AttemptTimeline, now: float) -> dict[Stage, float]:
    """Phase -> the seconds that an attempt has spent in it; of phases that were summed up, exactly."""
    seconds = dict(timeline.seconds)
    phases = timeline.phases(now)
    if phases and phases[0].stage is Stage.STARTING:
        seconds[Stage.STARTING] = _length(phases[:1])
    if timeline.spans and timeline.spans[-1].end is None and phases:
        seconds[phases[-1].stage] = seconds.get(phases[-1].stage, 0.0) + _length(phases[-1:])
    return seconds


def _length(spans: list[Span]) -> float:
    return (spans[-1].end or spans[-1].start) - spans[0].start if spans else 0.0


def _before_training(spans: list[Span]) -> float:
    training = next((span.start for span in spans if span.stage is Stage.TRAINING), None)
    return training - spans[0].start if training is not None else _length(spans)


def _seconds_a_step(history: History) -> float:
    if (known := history.curves.get("seconds")) and (mean := known.mean()):
        return mean
    rate = history.curves.get("steps_per_second")
    return 1 / mean if rate and (mean := rate.mean()) else 0.0

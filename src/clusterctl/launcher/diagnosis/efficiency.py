"""Whether a run is well spent: resources that it requested but did not use, and whether its training is learning.

Each resource comes with what to change next time. For learning, false alarms are worse than missed ones: the rule
compares means of many steps and gives the training the benefit of their uncertainty.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.observe.attempt import LEAST_STEPS
from clusterctl.launcher.observe.needs import (
    HEADROOM,
    enough_memory,
    enough_time,
    memory_requested,
    needs_of,
    written_memory,
)
from clusterctl.launcher.observe.telemetry import NOT_MEASURED
from clusterctl.shared.record.heartbeats import GPU_IDLE_PERCENT
from clusterctl.shared.record.metrics import number
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Batches, Checkpoint, LoopTrain, batch_key
from clusterctl.shared.spec.values import GpuCount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.launcher.observe.attempt import LossTrend
    from clusterctl.launcher.observe.history import History
    from clusterctl.launcher.observe.needs import Needs
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.telemetry import Used
    from clusterctl.launcher.observe.timeline import Span


IDLE_PERCENT = 30.0  # a GPU that is less busy was not needed, or is kept waiting
MUCH = 0.4  # share of a step for its input or for communication
UNUSED_SHARE = 0.5  # of the CPUs or memory requested
WASTE = 0.05  # of the time paid for
SHORT = 0.25  # of the time limit
_SOONEST_SECONDS = 30  # between checkpoints
_SHORTEST_SECONDS = 600  # a shorter run shows little about its needs


class GpuUse(NamedTuple):
    """The mean utilisation of one GPU, in percent."""

    node: str
    number: int
    percent: float


@dataclass(frozen=True)
class Use:
    """Resources requested and used. Times in seconds, memory in bytes; None if not measured."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: GpuCount
    time_limit: float
    memory_asked: float | None = None  # per node, if the job sets it
    cpu_busiest: float | None = None  # peak cores in use, on the busiest node
    memory_highest: float | None = None  # peak, on the node that used the most
    gpus: tuple[GpuUse, ...] = ()
    split: dict[str, float] = field(default_factory=dict)  # part of a step -> seconds
    queued: float = 0.0
    held: float = 0.0  # by all attempts: the time charged
    longest: float = 0.0  # the longest attempt
    restarts: int = 0
    undone: float = 0.0  # spent on steps that were repeated after a restart
    restarting: float = 0.0  # spent by restarted attempts before training
    finished: bool = False
    larger_batch: str = ""  # as a setting; empty for a program that clusterctl gives none
    sooner_checkpoint: str = ""  # likewise
    needs: Needs | None = None

    @property
    def gpu_hours(self) -> float:
        return self.held * self.nodes * self.gpus_per_node / 3600

    @property
    def gpu_percent(self) -> float | None:
        return sum(gpu.percent for gpu in self.gpus) / len(self.gpus) if self.gpus else None


@dataclass(frozen=True)
class Advice:
    """One suggestion. `change` is a setting `KEY=VALUE` for the next submit; empty if no key can change it."""

    subject: str
    text: str
    change: str = ""


def use_of(status: Status, history: History, now: float, used: Used | None = None) -> Use:
    """The resource use of a run until `now` or its end. `used`: the most of all attempts (default: the last)."""
    job, resources = status.record.job, status.record.job.resources
    phases = {number: timeline.phases(now) for number, timeline in history.attempts.items()}
    held = {number: timeline.held(now) for number, timeline in history.attempts.items()}
    starts = [spans[0].start for spans in phases.values() if spans]
    nodes = history.nodes.values()
    cpus = [highest for node in nodes if (highest := node.cpu.highest()) is not None]
    memory = [highest for node in nodes if (highest := node.memory.highest()) is not None]
    used = used or (status.attempt.used if status.attempt else NOT_MEASURED)
    key = batch_key(job.train)
    batch = getattr(job.train, key, None)
    sooner = job.checkpoint.every // 2 or Checkpoint().every
    saves = isinstance(job.train, LoopTrain) and sooner >= _SOONEST_SECONDS  # your own program saves by its own rules
    return Use(
        nodes=resources.nodes,
        tasks_per_node=status.record.tasks_per_node,
        cpus_per_task=resources.cpus_per_task,
        larger_batch=f"train.{key}={2 * batch}" if batch else "",
        sooner_checkpoint=f"checkpoint.every={sooner}s" if saves else "",
        gpus_per_node=GpuCount(resources.gpus_per_node or 0),
        time_limit=float(resources.time),
        memory_asked=memory_requested(resources, status.record.tasks_per_node),
        cpu_busiest=max(cpus, default=None),
        memory_highest=used.memory or max(memory, default=None),
        gpus=tuple(
            GpuUse(node.name, number, mean)
            for node in nodes
            for number, curve in sorted(node.gpus.items())
            if (mean := curve.mean()) is not None
        ),
        split=history.split(),
        queued=max(0.0, min(starts) - status.record.created) if starts else 0.0,
        held=status.ran(now) or 0.0,
        longest=max(held.values(), default=0.0),
        restarts=max(0, len(phases) - 1),
        undone=history.undone_steps * _seconds_a_step(history),
        restarting=sum(_before_training(spans) for spans in list(phases.values())[1:]),
        finished=status.state is State.FINISHED,
        needs=needs_of(status, used, now),
    )


def _before_training(spans: list[Span]) -> float:
    if not spans:
        return 0.0
    training = next((span.start for span in spans if span.state is State.TRAINING), None)
    if training is None:
        training = spans[-1].end or spans[-1].start
    return training - spans[0].start


def _seconds_a_step(history: History) -> float:
    if (known := history.curves.get("seconds")) and (mean := known.mean()):
        return mean
    rate = history.curves.get("steps_per_second")
    return 1 / mean if rate and (mean := rate.mean()) else 0.0


def advise(use: Use) -> list[Advice]:
    """All advice that applies, the most expensive first; none for what was not measured."""
    return [*_gpus(use), *_time_lost(use), *_unused_requests(use)]


def input_share(use: Use) -> float | None:
    """The share of a step spent waiting for its input; None without a split."""
    return _share(use, "sampling", "gathering")


def _gpus(use: Use) -> Iterator[Advice]:
    if (percent := use.gpu_percent) is None:
        return
    unused = [gpu for gpu in use.gpus if gpu.percent < GPU_IDLE_PERCENT]
    if percent < IDLE_PERCENT and len(unused) < len(use.gpus):
        idle = use.gpu_hours * (1 - percent / 100)
        text = f"The GPUs were busy {percent:.0f} % of the time: {idle:.1f} of {use.gpu_hours:.1f} GPU hours were idle."
        change = "" if (input_share(use) or 0) > MUCH else use.larger_batch
        yield Advice("GPUs idle", text, change)
    if unused:
        names = ", ".join(f"{gpu.node} gpu{gpu.number}" for gpu in unused[:8])
        more = f" and {len(unused) - 8} more" if len(unused) > 8 else ""
        busy = Counter(gpu.node for gpu in use.gpus if gpu.percent >= GPU_IDLE_PERCENT)
        needed = max(busy.values(), default=0)
        change = f"resources.gpus_per_node={use.gpus_per_node.of_same_type(needed)}"
        text = f"{len(unused)} of {len(use.gpus)} GPUs were idle: {names}{more}."
        yield Advice("GPUs unused", text, change if needed < use.gpus_per_node else "")


def _time_lost(use: Use) -> Iterator[Advice]:
    """Waiting within a step, and restarts."""
    if (share := input_share(use) or 0) > MUCH:
        text = f"{share:.0%} of a step is spent waiting for input: sampling neighbours and gathering features."
        yield Advice("Input-bound", text, f"resources.cpus_per_task={2 * use.cpus_per_task}")
    if (share := _share(use, "communication") or 0) > MUCH:
        text = f"{share:.0%} of a step is communication between ranks: fewer nodes or a larger batch would cost less."
        yield Advice("Communication", text, use.larger_batch)
    wasted = use.undone + use.restarting
    if use.restarts and use.held and wasted / use.held > WASTE:
        gpus = use.nodes * use.gpus_per_node
        paid = f"{wasted * gpus / 3600:.1f} GPU hours" if gpus else f"{wasted * use.nodes / 3600:.1f} node hours"
        text = (
            f"{use.restarts} restart{'s' if use.restarts > 1 else ''} cost {paid}: "
            f"{use.undone:.0f} s of steps were repeated, and {use.restarting:.0f} s were spent restarting."
        )
        yield Advice("Restarts", text, use.sooner_checkpoint if use.undone > use.restarting else "")


def _unused_requests(use: Use) -> Iterator[Advice]:
    """More CPUs, memory or time than it used."""
    asked, busiest, highest = use.tasks_per_node * use.cpus_per_task, use.cpu_busiest, use.memory_highest
    if busiest is not None and use.cpus_per_task != 1 and use.held >= _SHORTEST_SECONDS:
        needed = max(1, math.ceil(busiest * HEADROOM / use.tasks_per_node))
        if busiest < UNUSED_SHARE * asked and needed < use.cpus_per_task:
            text = f"No node used more than {busiest:.1f} of its {asked} CPUs."
            yield Advice("Too many CPUs", text, f"resources.cpus_per_task={needed}")
    memory = use.memory_asked if use.held >= _SHORTEST_SECONDS else None
    if memory is not None and highest is not None and highest < UNUSED_SHARE * memory:
        text = f"No node used more than {highest / 2**30:.1f} of the {memory / 2**30:.0f} GiB of memory requested."
        yield Advice("Too much memory", text, f"resources.memory={written_memory(enough_memory(highest))}")
    if use.finished and use.longest < SHORT * use.time_limit and use.time_limit > 2 * _SHORTEST_SECONDS:
        minutes = enough_time(use.held) // 60
        text = (
            f"The run took {use.longest / 60:.0f} of {use.time_limit / 60:.0f} minutes: Slurm may start it earlier "
            "with a shorter limit."
        )
        yield Advice("Time limit", text, f"resources.time={minutes}m")


def _share(use: Use, *parts: str) -> float | None:
    whole = sum(use.split.values())
    if not whole or not any(part in use.split for part in parts):
        return None
    return sum(use.split.get(part, 0.0) for part in parts) / whole


SAME_LOSS = 0.02  # relative; losses that differ by less count as equal
SCORE_MARGIN = 0.15  # of chance * (1 - chance): an accuracy of 0.11 is still chance for ten classes, 0.53 for two
_OF_CHANCE = ("accuracy", "auc", "f1_micro", "f1_macro")  # at most 1 / classes for a guess; of others, it is unknown
_ERRORS = 2  # standard errors by which a mean may be off


@dataclass(frozen=True)
class NotLearning:
    """The problem in a few words for a table, as a sentence for `why`, and what to try."""

    note: str
    text: str
    hint: str


def not_learning(trend: LossTrend | None) -> NotLearning | None:
    """Why the training of `trend` is not learning; None if it is, if it is too early to tell, or in doubt."""
    if trend is None:
        return None
    if trend.broken:
        since = f" since step {trend.broken_since}" if trend.broken_since is not None else ""
        hint = "lower train.lr, or limit the gradients: train.clip_norm=1.0"
        if trend.broken_since is not None and trend.broken_since <= 1:  # no step has changed the weights before it
            hint = "check the data for NaN and infinity, and the model's first outputs: no step came before"
        return _finding(f"loss is {trend.broken}", f"the loss is {trend.broken}{since}", hint)
    if trend.newest is None:
        return None
    now, error_now = trend.newest
    if trend.classes is not None:
        # The loss and score of guessing, log(classes) and 1 / classes, depend on neither data nor model.
        guess, chance = math.log(trend.classes), 1 / trend.classes
        text = f"the loss of {number(now)} is that of a guess among {trend.classes} classes"
        at_chance = abs(now - guess) + _ERRORS * error_now <= SAME_LOSS * guess
        if at_chance and trend.score is not None:
            metric, score = trend.score
            if metric.name.endswith("auc"):  # of a guess, 1 / 2 for any number of classes
                chance = 0.5
            at_chance = metric.name.endswith(_OF_CHANCE) and score <= chance + SCORE_MARGIN * chance * (1 - chance)
            text += f", and so is the {metric.label} of {metric.text(score)}"
        if at_chance:
            hint = "check that the labels depend on what the model sees; try another train.lr"
            return _finding("loss at chance", text, hint)
    if trend.first is not None and trend.steps >= 2 * LEAST_STEPS:
        before, error_before = trend.first
        if abs(now - before) + _ERRORS * (error_before + error_now) < SAME_LOSS * abs(before):
            text = f"the loss is {number(now)} at step {trend.steps}, and was {number(before)} at the start"
            hint = "check that the optimizer updates the model's weights; try another train.lr"
            return _finding("loss is flat", text, hint)
    return None


def _finding(note: str, text: str, hint: str) -> NotLearning:
    return NotLearning(f"not learning: {note}", f"the training is not learning: {text}", hint)


def single_steps(status: Status) -> str:
    """The problem that the ranks' batches together cover the whole training set; empty if they do not."""
    train, ranks = status.record.job.train, status.record.job.resources.nodes * status.record.tasks_per_node
    if not isinstance(train, LoopTrain) or train.global_batch_size or ranks == 1:
        return ""
    steps, epochs, folds = (status.metrics.get(name) for name in ("steps", "epochs", "folds"))
    if steps is None or epochs is None or steps != epochs * (folds or 1):
        return ""
    batch = Batches(train, ranks).size
    return f"each epoch is a single step: the {ranks:,} ranks share a batch of {batch:,}, the whole training set"

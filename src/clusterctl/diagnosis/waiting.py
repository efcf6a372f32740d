"""Why a run waits, when it may start, and the smallest change that would start it now: pure, from evidence to words."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis.queue import Change
from clusterctl.diagnosis.reasons import Kind, in_words
from clusterctl.slurm.fits import asked_of, has_room, room_for
from clusterctl.spec.values import slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.diagnosis.queue import QueueEvidence
    from clusterctl.slurm import Inventory, Node, Partition
    from clusterctl.slurm.fits import Asked
    from clusterctl.slurm.queue import WaitingJob
    from clusterctl.spec import Resources

MOST_CHANGES = 6  # questions to Slurm about one run: enough to find the usual ways out, few enough to be polite
NOW_SECONDS = 60  # a start within so long is one now: Slurm looks at its queue once in a while
_SHORTEST_SECONDS = 600
_PLACES_HELP = (Kind.ROOM, Kind.LIMIT)
_FLAGS = ("nodes", "gpus_per_node", "tasks_per_node", "time", "partition")  # that `submit` has of its own


@dataclass(frozen=True)
class Waiting:
    """Why a run waits: the reason in words, facts, what to type, and what is not known."""

    cause: str
    kind: Kind
    facts: tuple[str, ...]
    hint: str
    commands: tuple[str, ...]
    unknown: tuple[str, ...]
    start: float | None  # Slurm's estimate
    change: Change | None  # the smallest one found that would start now


def may_be_changed(job: WaitingJob) -> bool:
    """Whether a smaller, shorter or differently placed run might start sooner."""
    return in_words(job.reason).kind in _PLACES_HELP


def changes(evidence: QueueEvidence) -> tuple[Change, ...]:
    """The changes worth trying, the smallest first, at most six: what alters the result of a run least comes first.

    None where no change can help.
    """
    found: list[Change] = []
    for change in _all_changes(evidence) if may_be_changed(evidence.job) else ():
        if len(found) < MOST_CHANGES and all(change.resources != other.resources for other in found):
            found.append(change)
    return tuple(found)


def explain(evidence: QueueEvidence) -> Waiting:
    """Why the run of `evidence` waits, and what to do about it."""
    reason = in_words(evidence.job.reason)
    found, doubt = smallest_change(evidence)
    unknown = [*evidence.unknown, *([doubt] if doubt else [])]
    commands = _resubmission(evidence, found) if found else _commands(evidence)
    hint = reason.hint
    if found and not found.settings:
        hint = f"{found.words}: change [resources] in the job file"
    return Waiting(
        cause=reason.words,
        kind=reason.kind,
        facts=tuple(_facts(evidence, found)),
        hint=hint,
        commands=commands,
        unknown=tuple(unknown),
        start=evidence.job.start,
        change=found,
    )


def smallest_change(evidence: QueueEvidence) -> tuple[Change | None, str]:
    """The first change that Slurm would start now; and, where that cannot be told, why.

    `sbatch --test-only` (seen with 22.05) adds the time limits of all jobs that wait ahead in the same partition, and
    the run itself is one of them: it would be gone. What it weighs is measured with the run's own job sent once more.
    """
    own = _own_weight(evidence)
    doubtful = False
    for trial in evidence.trials:
        elsewhere = trial.change.resources.partition != evidence.resources.partition
        if trial.start is None:
            continue
        if trial.start - (0 if elsewhere else own or 0) <= evidence.now + NOW_SECONDS:
            if own is None and not elsewhere and evidence.job.reason == "Priority":
                doubtful = True
                continue
            return trial.change, ""
    if doubtful:
        return None, "whether a smaller run would be let past the jobs ahead: Slurm gives no estimate for this one"
    return None, ""


def _own_weight(evidence: QueueEvidence) -> float | None:
    """The seconds by which the run itself delays a job like it in Slurm's estimates; None where that is not known."""
    if evidence.job.start is None or evidence.control is None:
        return None
    limit = evidence.resources.time
    return limit if evidence.control - evidence.job.start >= limit - NOW_SECONDS else 0


def _facts(evidence: QueueEvidence, found: Change | None) -> Iterator[str]:
    job, asked = evidence.job, asked_of(evidence.resources)
    yield f"it asks for {described(asked)}"
    if partition := _partition(evidence.inventory, job.partition):
        assert evidence.inventory is not None
        room = room_for(asked, partition, evidence.inventory)
        against = "; ".join(room.objections) or "there is room for it now"
        yield f"partition {partition.name}: {against}"
    if job.dependency:
        yield f"it depends on: {job.dependency}"
    if found:
        yield f"it would start now with {found.words}"
    elif evidence.trials:
        tried = ", ".join(trial.change.words for trial in evidence.trials)
        yield f"tried, and none would start now: {tried}"


def described(asked: Asked) -> str:
    """4 nodes with 16 CPUs, 4 a100 GPUs and 64 GiB each, for 2:00:00."""
    parts = [f"{asked.cpus} CPU{'s' * (asked.cpus != 1)}"]
    if asked.gpus:
        parts.append(f"{asked.gpus} {asked.gpu_type} GPU{'s' * (asked.gpus != 1)}".replace("  ", " "))
    if asked.memory:
        parts.append(f"{asked.memory / 1024:g} GiB")
    nodes = f"{asked.nodes} {'whole ' * asked.exclusive}node{'s' * (asked.nodes != 1)}"
    such = f", {asked.constraint}" if asked.constraint else ""
    return f"{nodes}{such}, with {' and '.join(parts)}{' each' * (asked.nodes != 1)}, for {slurm_time(asked.seconds)}"


def _all_changes(evidence: QueueEvidence) -> Iterator[Change]:
    resources, job, inventory = evidence.resources, evidence.job, evidence.inventory
    asked = asked_of(resources)
    if inventory:
        for other in inventory.partitions.values():
            if other.name != job.partition and room_for(asked, other, inventory).fits_now:
                yield _change(f"partition {other.name}", resources, partition=other.name)
                break
    for name in ("constraint", "nodelist", "exclude", "reservation"):
        if getattr(resources, name):
            without = replace(resources, **{name: None})  # type: ignore[arg-type]
            yield Change(f"no {name} ({getattr(resources, name)})", without, ())
    if resources.exclusive:
        yield _change("nodes shared with others", resources, exclusive=False)
    partition = _partition(inventory, job.partition)
    yield from _shorter(resources, partition)
    if inventory and partition:
        yield from _smaller(resources, asked, inventory.nodes_of(partition))


def _shorter(resources: Resources, partition: Partition | None) -> Iterator[Change]:
    """Less time: what the partition gives at most, else half - a gap before the next job's start may do."""
    longest = partition.longest if partition else None
    seconds = longest if longest and longest < resources.time else resources.time // 2 // 60 * 60
    if seconds >= _SHORTEST_SECONDS:
        yield _change(f"a time limit of {slurm_time(seconds)}", resources, time=seconds)


def _smaller(resources: Resources, asked: Asked, nodes: Sequence[Node]) -> Iterator[Change]:
    """Less memory, fewer GPUs, fewer nodes: as much as is free."""
    starting = [node for node in nodes if node.can_start]
    if resources.memory and asked.memory:
        free = sorted((node.memory_unallocated for node in starting), reverse=True)[: asked.nodes]
        if len(free) == asked.nodes and 0 < free[-1] < asked.memory:
            yield _change(f"{free[-1]} MiB of memory a node", resources, memory=f"{free[-1]}M")
    if resources.gpus_per_node and not resources.gres:
        gpus = sorted((node.gpus_free for node in starting), reverse=True)[: asked.nodes]
        if len(gpus) == asked.nodes and 0 < gpus[-1] < asked.gpus:
            yield _fewer_gpus(resources, gpus[-1])
    with_room = sum(has_room(node, asked) for node in starting)
    fewer = with_room if with_room < asked.nodes else asked.nodes // 2
    if 0 < fewer < asked.nodes:
        yield _change(f"{fewer} node{'s' * (fewer != 1)} instead of {asked.nodes}", resources, nodes=fewer)
    if asked.nodes > 1 and fewer != 1:
        yield _change(f"1 node instead of {asked.nodes}", resources, nodes=1)


def _fewer_gpus(resources: Resources, gpus: int) -> Change:
    """One task a GPU stays one task a GPU."""
    together = {"gpus_per_node": gpus}
    if resources.tasks_per_node == resources.gpus_per_node:
        together["tasks_per_node"] = gpus
    return _change(f"{gpus} GPU{'s' * (gpus != 1)} a node instead of {resources.gpus_per_node}", resources, **together)


def _change(words: str, resources: Resources, **values: object) -> Change:
    settings = tuple((name, _as_typed(name, value)) for name, value in values.items())
    return Change(words, replace(resources, **values), settings)  # type: ignore[arg-type]


def _as_typed(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value}s" if name == "time" else str(value)


def _partition(inventory: Inventory | None, name: str) -> Partition | None:
    return inventory.partition_for(name or None) if inventory else None


def _resubmission(evidence: QueueEvidence, change: Change) -> tuple[str, ...]:
    """To cancel the run and to submit it again: what was typed, and the change behind it, where the last one wins."""
    words = ["clusterctl", *evidence.typed]
    for name, value in change.settings:
        flag = f"--{name.replace('_', '-')}"
        words += [flag, value] if name in _FLAGS else ["--set", f"resources.{name}={value}"]
    return f"clusterctl cancel {shlex.quote(evidence.run)}", shlex.join(words)


def _commands(evidence: QueueEvidence) -> tuple[str, ...]:
    held = evidence.job.reason in ("JobHeldUser", "job_requeued_in_held_state")
    return (f"clusterctl release {shlex.quote(evidence.run)}",) if held else ()

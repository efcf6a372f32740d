"""Why a run is waiting, when it may start, and the smallest change that would let it start now.

Evidence comes from squeue, sinfo, and `sbatch --test-only` for a few changes in turn; it is judged by pure functions.
For a run that depends on others, it is the state of those runs (`explain_chain`).
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.config.program import with_options
from clusterctl.launcher.diagnosis.finding import Finding, submission
from clusterctl.launcher.diagnosis.reasons import HELD, Kind, in_words
from clusterctl.launcher.observe.measurements import progress
from clusterctl.launcher.observe.state import NEVER_STARTS, Standing, standing, standing_of_all
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.sweeps import runs_of, states_in_words
from clusterctl.launcher.slurm.nodes import NO_LIMIT_SECONDS, asked_of, gpus_free, has_room, room_for
from clusterctl.launcher.slurm.queue import WaitingJob
from clusterctl.shared.errors import Cause, ClusterctlError, ConfigError, SlurmError
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import GpuCount, plural, slurm_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.launcher.observe.run_record import Predecessor, RunRecord
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.slurm import Inventory, Partition, Slurm
    from clusterctl.launcher.slurm.nodes import Asked
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.launcher.submission.sbatch import Estimate
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster, Resources

    Ask = Callable[[Plan], Estimate | None]

MOST_CHANGES = 6  # queries to Slurm per run: enough for the usual alternatives, few enough to be polite
NOW_SECONDS = 60  # a start this soon counts as now: Slurm schedules periodically
_SHORTEST_SECONDS = 600
_FLAGS = ("nodes", "gpus_per_node", "tasks_per_node", "time", "partition")  # resources with their own flag in `submit`


@dataclass(frozen=True)
class Change:
    """Other resources for the same job, the difference in words, and what to type for it."""

    words: str
    resources: Resources
    settings: tuple[tuple[str, str], ...]  # keys of [resources] with new values; none: edit the job file


@dataclass(frozen=True)
class Trial:
    """A change, and when Slurm would start it (`sbatch --test-only`); None if Slurm rejects it."""

    change: Change
    start: float | None


@dataclass(frozen=True)
class QueueEvidence:
    """All that is known about a waiting run. Times are seconds since the epoch.

    `control` is Slurm's estimate for an identical job: the excess over the run's own estimate is the delay caused by
    the run itself.
    """

    run: str
    job: WaitingJob
    resources: Resources
    typed: tuple[str, ...]  # the submission's command line
    now: float
    inventory: Inventory | None = None
    control: float | None = None
    trials: tuple[Trial, ...] = ()
    unknown: tuple[str, ...] = ()  # what could not be read
    submitted: Resources | None = None  # if the job was changed in Slurm since: `resources` are those by now


@dataclass(frozen=True)
class Waiting:
    """Why a run is waiting: the reason in words, facts, what to do, what to type, and what is unknown."""

    cause: str
    facts: tuple[str, ...]
    hint: str
    commands: tuple[str, ...]
    unknown: tuple[str, ...]


def explain_waiting(status: Status, slurm: Slurm) -> Waiting:
    """Why the queued run of `status` is waiting and what would start it now, with at most nine queries to Slurm."""

    def ask(plan: Plan) -> Estimate | None:
        from clusterctl.launcher.submission.sbatch import estimate_start

        return estimate_start(plan, slurm.path_of("sbatch"), slurm.environment)

    evidence = gather_pending(status, slurm)
    return explain(try_changes(evidence, status.record, changes(evidence), ask))


def gather_pending(status: Status, slurm: Slurm, clock: Callable[[], float] = time.time) -> QueueEvidence:
    """Query Slurm about the queued run of `status` and free resources; queries without an answer go to `unknown`."""
    record, unknown = status.record, []
    job = WaitingJob(status.job_id or "", status.reason, record.job.resources.partition or "", None, "")
    try:
        job = (slurm.waiting(status.job_id) if status.job_id else None) or job
    except SlurmError as error:
        unknown.append(f"the job's place in the queue: {error.message}")
    inventory = None
    try:
        inventory = slurm.nodes()
    except SlurmError as error:
        unknown.append(f"free resources: {error.message}")
    submitted, typed = record.job.resources, tuple(submission(record))
    evidence = QueueEvidence(record.run.id, job, submitted, typed, clock(), inventory, unknown=tuple(unknown))
    return as_changed(evidence)


def as_changed(evidence: QueueEvidence) -> QueueEvidence:
    """`evidence` with the request that Slurm has by now, which counts time limits in whole minutes."""
    job, submitted = evidence.job, evidence.resources
    nodes, seconds = job.nodes or submitted.nodes, job.seconds or submitted.time
    if 0 <= seconds - submitted.time < 60:
        seconds = submitted.time
    if (nodes, seconds) == (submitted.nodes, submitted.time):
        return evidence
    return replace(evidence, resources=replace(submitted, nodes=nodes, time=seconds), submitted=submitted)


def try_changes(evidence: QueueEvidence, record: RunRecord, changes: Sequence[Change], ask: Ask) -> QueueEvidence:
    """`evidence` with Slurm's answers to the changes in turn, until one would start now or Slurm does not answer.

    `ask` is `sbatch --test-only`, called at most once more than there are changes.
    """
    try:
        evidence = replace(evidence, control=_start(record, evidence.resources, ask) if changes else None)
        for change in changes:
            trial = Trial(change, _start(record, change.resources, ask))
            evidence = replace(evidence, trials=(*evidence.trials, trial))
            if smallest_change(evidence)[0]:
                break
    except ClusterctlError as error:
        problem = f"smaller requests that would start now: {error.message}"
        evidence = replace(evidence, unknown=(*evidence.unknown, problem))
    return evidence


def may_be_changed(job: WaitingJob) -> bool:
    """Whether a smaller, shorter or differently placed run might start sooner."""
    return in_words(job.reason).kind in (Kind.ROOM, Kind.LIMIT)


def changes(evidence: QueueEvidence) -> tuple[Change, ...]:
    """The changes worth trying, at most six, starting with those that affect the run's result least.

    Empty if no change can help.
    """
    found: list[Change] = []
    for change in _all_changes(evidence) if may_be_changed(evidence.job) else ():
        if len(found) < MOST_CHANGES and all(change.resources != other.resources for other in found):
            found.append(change)
    return tuple(found)


def explain(evidence: QueueEvidence) -> Waiting:
    """Why the run of `evidence` is waiting, and what to do about it."""
    job, asked, reason = evidence.job, asked_of(evidence.resources), in_words(evidence.job.reason)
    found, doubt = smallest_change(evidence)
    facts = [f"it requests {described(asked)}"]
    if evidence.submitted:
        before = f"{plural(evidence.submitted.nodes, 'node')} for {slurm_time(evidence.submitted.time)}"
        facts.append(f"changed in Slurm since its submission, which requested {before}")
    if partition := _partition(evidence.inventory, job.partition):
        assert evidence.inventory is not None
        room = room_for(asked, partition, evidence.inventory)
        against = "; ".join(room.objections) or "it would fit now"
        facts.append(f"partition {partition.name}: {against}")
    if job.dependency:
        facts.append(f"it depends on: {job.dependency}")
    if found:
        facts.append(f"it would start now with {found.words}")
    elif evidence.trials:
        tried = ", ".join(trial.change.words for trial in evidence.trials)
        facts.append(f"tried, but none would start now: {tried}")
    by_hand = f"{found.words}: change [resources] in the job file" if found and not found.settings else ""
    return Waiting(
        cause=reason.words,
        facts=tuple(facts),
        hint=by_hand or reason.hint,
        commands=_commands(evidence, found),
        unknown=(*evidence.unknown, *([doubt] if doubt else [])),
    )


def described(asked: Asked) -> str:
    """Such as `4 nodes, with 16 CPUs, 4 a100 GPUs and 64 GiB each, for 2:00:00`."""
    parts = [plural(asked.cpus, "CPU")]
    if asked.gpus:
        parts.append(plural(asked.gpus, f"{asked.gpu_type} GPU".strip()))
    if asked.memory:
        parts.append(f"{asked.memory / 1024:.3g} GiB")
    nodes = plural(asked.nodes, f"{'whole ' * asked.exclusive}node")
    such = f", {asked.constraint}" if asked.constraint else ""
    limit = f"for {slurm_time(asked.seconds)}" if asked.seconds < NO_LIMIT_SECONDS else "without a time limit"
    return f"{nodes}{such}, with {' and '.join(parts)}{' each' * (asked.nodes != 1)}, {limit}"


def smallest_change(evidence: QueueEvidence) -> tuple[Change | None, str]:
    """The first change that Slurm would start now, and why that is uncertain, if it is.

    `sbatch --test-only` (seen with 22.05) counts every job ahead in the same partition, including the run itself,
    which the change would replace. An identical job shows whether it is counted.
    A run that can never start has no estimate: it is assumed to count if the resources of the change are free.
    """
    job, resources, inventory = evidence.job, evidence.resources, evidence.inventory
    partition, doubt = _partition(inventory, job.partition), ""
    # What Slurm counts for a waiting run, its time limit times its share of the partition's nodes: whole minutes, like
    # slurmctld's `_delayed_job_start_time`.
    nodes = len(partition.nodes) if partition else 0
    weight = resources.nodes * (resources.time // 60) // nodes * 60 if nodes else resources.time
    measured = None if job.start is None or evidence.control is None else evidence.control - job.start
    counts = measured is not None and measured >= weight - NOW_SECONDS
    for trial in evidence.trials:
        wanted = trial.change.resources
        elsewhere = wanted.partition != resources.partition
        if measured is None and inventory and partition:
            counts = room_for(asked_of(wanted), partition, inventory).fits_now
        delay = weight if counts and not elsewhere else 0
        if trial.start is None or trial.start - delay > evidence.now + NOW_SECONDS:
            continue
        if measured is not None or elsewhere or job.reason != "Priority":
            return trial.change, ""
        doubt = "whether a smaller run could start before the jobs ahead: Slurm gives no estimate for this run"
    return None, doubt


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
    # The partition's time limit, else half, which may fit before the next job's start.
    longest = partition.longest if partition else None
    seconds = longest if longest and longest < resources.time else resources.time // 2 // 60 * 60
    if seconds >= _SHORTEST_SECONDS:
        yield _change(f"a time limit of {slurm_time(seconds)}", resources, time=seconds)
    if not (inventory and partition):
        return
    # Less memory, fewer GPUs or fewer nodes: as many as are free now.
    nodes = inventory.nodes_of(partition)
    starting = [node for node in nodes if node.can_start]
    if resources.memory and asked.memory:
        free = sorted((node.memory_unallocated for node in starting), reverse=True)[: asked.nodes]
        if len(free) == asked.nodes and 0 < free[-1] < asked.memory:
            yield _change(f"{free[-1]} MiB of memory per node", resources, memory=f"{free[-1]}M")
    if resources.gpus_per_node and not resources.gres:
        gpus = sorted((gpus_free(node, asked) for node in starting), reverse=True)[: asked.nodes]
        if len(gpus) == asked.nodes and 0 < gpus[-1] < asked.gpus:
            fewer_gpus = GpuCount(resources.gpus_per_node).of_same_type(gpus[-1])
            each = resources.tasks_per_node == resources.gpus_per_node  # one task per GPU stays so
            tasks = {"tasks_per_node": int(fewer_gpus)} if each else {}
            words = f"{fewer_gpus.in_words} per node instead of {int(resources.gpus_per_node)}"
            yield _change(words, resources, gpus_per_node=fewer_gpus, **tasks)
    with_room = sum(has_room(node, asked) for node in starting)
    fewer = with_room if with_room < asked.nodes else asked.nodes // 2
    if 0 < fewer < asked.nodes:
        yield _change(f"{plural(fewer, 'node')} instead of {asked.nodes}", resources, nodes=fewer)
    if asked.nodes > 1 and fewer != 1:
        yield _change(f"1 node instead of {asked.nodes}", resources, nodes=1)


def _change(words: str, resources: Resources, **values: object) -> Change:
    typed = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    settings = tuple((name, f"{text}s" if name == "time" else text) for name, text in typed.items())
    return Change(words, replace(resources, **values), settings)  # type: ignore[arg-type]


def _partition(inventory: Inventory | None, name: str) -> Partition | None:
    return inventory.partition_for(name or None) if inventory else None


def _commands(evidence: QueueEvidence, change: Change | None) -> tuple[str, ...]:
    """Cancel the run and submit it again with the change appended to the command line, where the last value wins."""
    if change is None:
        held = evidence.job.reason.replace(" ", "_") in HELD
        return (f"clusterctl release {shlex.quote(evidence.run)}",) if held else ()
    options: list[str] = []
    for name, value in change.settings:
        flag = f"--{name.replace('_', '-')}"
        options += [flag, value] if name in _FLAGS else ["--set", f"resources.{name}={value}"]
    again = with_options(["clusterctl", *evidence.typed], options)
    return f"clusterctl cancel {shlex.quote(evidence.run)}", shlex.join(again)


def _start(record: RunRecord, resources: Resources, ask: Ask) -> float | None:
    """When Slurm would start the run's job with these resources; None if it rejects them."""
    # Late: a run that no change can help, such as one that is held, needs no plan.
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.submission.plan import make_plan
    from clusterctl.launcher.submission.sbatch import SlurmRefused

    resolved = Resolved(replace(record.job, resources=resources), record.cluster, {}, Path("job.toml"))
    plan = make_plan(resolved, record.run, record.run.code, clusterctl.__version__)
    try:
        estimate = ask(plan)
    except SlurmRefused:
        return None
    return float(estimate.start) if estimate else None


# A run that depends on others: the state of those runs, and of the runs they depend on. It may also depend on a sweep,
# which counts as one with all its runs.

MOST_LINKS = 50  # examined per run: chains are short, but a record may be damaged
_ENDED = {
    State.FAILED: "failed",
    State.TIMED_OUT: "reached its time limit",
    State.PREEMPTED: "was preempted and not restarted",
    State.CANCELLED: "was cancelled",
    State.LOST: "was lost",
}


@dataclass(frozen=True)
class Link:
    """A run or sweep that another run depends on, and its own dependencies.

    `statuses` are those of its readable runs.
    """

    predecessor: Predecessor
    statuses: tuple[Status, ...]
    before: tuple[Link, ...] = ()

    @property
    def is_sweep(self) -> bool:
        return any(status.record.run.id != self.predecessor.run for status in self.statuses)

    @property
    def standing(self) -> Standing | None:
        return standing_of_all(self.predecessor.condition, self.statuses) if self.statuses else None


def read_chain(status: Status, slurm_of: Callable[[Cluster], Slurm]) -> tuple[Link, ...]:
    """The runs and sweeps that the run of `status` depends on, directly and indirectly, each once."""
    found: dict[str, tuple[Status, ...]] = {}
    folder, waiting = status.record.run.path.parent, [status]
    while waiting and len(found) < MOST_LINKS:
        named = (one.run for run in waiting for one in run.record.predecessors)
        ids = list(dict.fromkeys(run for run in named if run not in found))[:MOST_LINKS]
        runs: dict[str, tuple[RunDir, ...]] = dict.fromkeys(ids, ())
        for name in ids:
            with suppress(ConfigError):
                runs[name] = runs_of(folder, name)
        every = dict.fromkeys(run for several in runs.values() for run in several)
        read = {one.record.run: one for one in statuses_of(every, slurm_of).statuses}
        found |= {name: tuple(read[run] for run in runs[name] if run in read) for name in ids}
        waiting = [first for name in ids if (first := _not_started(found[name]))]
    return _links(status, found, {status.record.run.id})


def _not_started(statuses: Sequence[Status]) -> Status | None:
    """The run, or the first of a sweep's runs, which all have the same dependencies; None once any has started."""
    return statuses[0] if statuses and not any(one.attempts for one in statuses) else None


def explain_chain(status: Status, chain: Sequence[Link]) -> tuple[Finding, tuple[str, ...]] | None:
    """Why the run of `status` has not started, and what to type; None if it is no longer waiting for a run."""
    run = status.record.run.id
    never = [link for link in chain if link.standing is Standing.NEVER]
    awaited = [link for link in chain if link.standing is Standing.OPEN]
    facts = tuple(_lines(chain))
    again = (*dict.fromkeys(_to_resume(never)), f"clusterctl resume {run}")
    if status.state is State.CANCELLED:
        if status.reason != NEVER_STARTS:
            return None
        because = _outcome(never[0]) if never else "a run it depends on had not finished at that time"
        return Finding(Cause.CANCELLED, f"Slurm cancelled it before it started, because {because}", facts=facts), again
    if never:
        cause = f"it will not start, because {_outcome(never[0])}"
        return Finding(Cause.PENDING, cause, facts=facts), (f"clusterctl cancel {run}", *again)
    if not awaited or status.reason in HELD:
        return None
    cause = "waiting for " + " and ".join(_awaited(link) for link in awaited)
    first = next(_first(awaited))
    return Finding(Cause.PENDING, cause, facts=facts), (f"clusterctl status {first}", f"clusterctl cancel {run}")


def _links(status: Status, found: dict[str, tuple[Status, ...]], seen: set[str]) -> tuple[Link, ...]:
    links = []
    for one in status.record.predecessors:
        known, first = found.get(one.run, ()), one.run not in seen
        seen.add(one.run)
        waits = _not_started(known) if first else None
        links.append(Link(one, known, _links(waits, found, seen) if waits else ()))
    return tuple(links)


def _outcome(link: Link) -> str:
    name, condition = link.predecessor
    if link.is_sweep:
        never = sum(standing(condition, status) is Standing.NEVER for status in link.statuses)
        return f"{never} of the {len(link.statuses)} runs of {name}, on which it depends, did not finish"
    state = link.statuses[0].state
    return f"{name}, on which it depends, {_ENDED.get(state, state)}"


def _awaited(link: Link) -> str:
    name, condition = link.predecessor
    return f"{f'all runs of {name}' if link.is_sweep else name} to {condition.infinitive}"


def _lines(chain: Sequence[Link], indent: str = "") -> Iterator[str]:
    """The chain as a tree, one line per run."""
    for link in chain:
        yield f"{indent}{link.predecessor.run}: {_state(link)}"
        yield from _lines(link.before, f"{indent}  ")


def _state(link: Link) -> str:
    if not link.statuses:
        return "cannot be read"
    awaited = [_awaited(one) for one in link.before if one.standing is Standing.OPEN]
    waits = f", waiting for {' and '.join(awaited)}" if awaited else ""
    if link.is_sweep:
        counts = Counter(status.state for status in link.statuses)
        return f"{len(link.statuses)} runs: {states_in_words(counts)}{waits}"
    status = link.statuses[0]
    state = status.state if status.sure else f"{status.state} (last known)"
    done = None if status.state.ended else progress(status.metrics)
    if waits:
        return f"{state}{waits}"
    if status.state is State.QUEUED and status.reason:
        return f"{state}: {in_words(status.reason).words}"
    if status.reason == NEVER_STARTS:
        return f"{state}, because of a run it depends on"
    return f"{state}, {int(done * 100)} % done" if done is not None else str(state)


def _to_resume(never: Sequence[Link]) -> Iterator[str]:
    """The commands to resume the failed runs, in order of their dependencies."""
    for link in never:
        yield from _to_resume([one for one in link.before if one.standing is Standing.NEVER])
        yield f"clusterctl resume {link.predecessor.run}"


def _first(awaited: Sequence[Link]) -> Iterator[str]:
    """The runs that all others are waiting for."""
    for link in awaited:
        before = [one for one in link.before if one.standing is Standing.OPEN]
        yield from _first(before) if before else [link.predecessor.run]

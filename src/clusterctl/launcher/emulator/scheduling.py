"""When a pending job starts: its dependencies, as Slurm 22.05 evaluates them, and which nodes and GPUs it gets.

Jobs are taken in order of tier and job id, one decision at a time.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.emulator.job_request import PREEMPTABLE, TIERS, JobRequest
from clusterctl.launcher.emulator.jobs import (
    EmulatedJob,
    EmulatedState,
    JobRecord,
    all_jobs,
    bury_lost,
    chosen,
    parse_target,
)
from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterctl.launcher.emulator.virtual_cluster import Machine

_YEAR_SECONDS = 365 * 86400


class Free(NamedTuple):
    """Free resources of a node that is up."""

    node: int
    cpus: int
    gpus: list[int]


@contextmanager
def lease(machine: Machine) -> Iterator[None]:
    """Only one process at a time decides. The lease is a socket address, which the kernel frees with its process."""
    place = machine.root.stat()
    import socket  # imported here, since most stand-ins never schedule

    with socket.socket(socket.AF_UNIX) as held:
        while True:
            try:
                held.bind(f"\0clusterctl-emulator-{os.getuid()}-{place.st_dev}-{place.st_ino}")
                break
            except OSError:  # in use
                time.sleep(0.005)
        yield


def is_behind(machine: Machine, job: EmulatedJob) -> bool:
    """Whether a job of a higher tier, or an earlier job of the same tier, is queued."""
    place = _place_in_line(job, job.record)
    # The most recent one first: most jobs wait for that.
    others = (other for other in reversed(all_jobs(machine)) if other.id != job.id and other.is_supervised)
    waiting = ((other, record) for other in others if (record := other.record).in_line)
    return any(_place_in_line(other, record) < place for other, record in waiting)


def _place_in_line(job: EmulatedJob, record: JobRecord) -> tuple[int, int, int]:
    """Array elements share their array's place, in order of index."""
    return -job.request.tier, record.array or job.id, record.tasks[0] if record.tasks else 0


def is_throttled(machine: Machine, job: EmulatedJob) -> bool:
    """Whether its array has reached the limit of elements that run at once."""
    record = job.record
    if not record.throttle:
        return False
    others = (other.record for other in all_jobs(machine) if other.is_supervised)
    return sum(other.array == record.array and bool(other.nodes) for other in others) >= record.throttle


def place(machine: Machine, job: EmulatedJob, *, alone: bool = False) -> tuple[list[int], list[list[int]]] | None:
    """The slots for `job`, as `choose` returns them; `alone`: in an empty cluster. The caller holds the lease."""
    if not alone and is_throttled(machine, job):
        return None
    others = () if alone else (other for other in all_jobs(machine) if other.id != job.id and other.is_supervised)
    free = free_slots(machine, ((other.request, other.record) for other in others))
    return choose(machine, job.request, [slot for slot in free if slot.node not in job.record.excluded])


def victims(machine: Machine, job: EmulatedJob) -> list[EmulatedJob]:
    """The running jobs to preempt for `job`: the newest preemptable ones, and no more than necessary."""
    if job.request.tier <= TIERS[PREEMPTABLE]:
        return []
    live = [(other, (other.request, other.record)) for other in all_jobs(machine) if other.is_supervised]
    # COMPLETING jobs are already making room.
    holding = {other: held for other, held in live if held[1].state is EmulatedState.RUNNING}
    yielding = [other for other in reversed(holding) if holding[other][0].partition == PREEMPTABLE]
    for number in range(len(yielding) + 1):
        left = [held for other, held in holding.items() if other not in yielding[:number]]
        if choose(machine, job.request, free_slots(machine, left)):
            return yielding[:number]
    return []


def estimated_start(machine: Machine, request: JobRequest, now: float) -> float:
    """When there would be room for `request` if every job ran to its time limit, or for a year without one.

    Pending jobs are not counted, as in `sbatch --test-only` of Slurm 22.05.
    """
    held = [(job.request, job.record) for job in all_jobs(machine) if job.is_supervised and job.record.nodes]
    ends = {id(record): (record.started or now) + (asked.time_limit or _YEAR_SECONDS) for asked, record in held}
    for moment in (now, *sorted(ends.values())):
        left = [(asked, record) for asked, record in held if ends[id(record)] > moment]
        if choose(machine, request, free_slots(machine, left)):
            return max(now, moment)
    return now + _YEAR_SECONDS


def free_slots(machine: Machine, jobs: Iterable[tuple[JobRequest, JobRecord]]) -> list[Free]:
    """What `jobs` leave free on each node that is up."""
    cpus = dict.fromkeys(range(1, machine.nodes + 1), machine.cpus_per_node)
    gpus = {node: set(machine.gpu_indices(node)) for node in cpus}
    for request, record in jobs:
        for node, used in zip(record.nodes, record.gpus, strict=True):
            if node in cpus:  # the state folder may hold jobs of a larger virtual cluster
                cpus[node] -= _cpus_of(machine, request)
                gpus[node] -= set(used)
    return [Free(node, cpus[node], sorted(gpus[node])) for node in cpus if not machine.down_marker(node).exists()]


def choose(machine: Machine, request: JobRequest, free: list[Free]) -> tuple[list[int], list[list[int]]] | None:
    """The first nodes with room, and the first free GPUs of each; None if there are too few nodes."""
    cpus, gpus = _cpus_of(machine, request), request.gpus_per_node
    chosen = [node for node in free if node.cpus >= cpus and len(node.gpus) >= gpus][: request.nodes]
    if len(chosen) < request.nodes:
        return None
    return [node.node for node in chosen], [node.gpus[:gpus] for node in chosen]


def _cpus_of(machine: Machine, request: JobRequest) -> int:
    """The CPUs that a job takes on each of its nodes."""
    return machine.cpus_per_node if request.exclusive else request.cpus_on_each


# Job dependencies, such as `--dependency=afterok:7:8,afterany:9`.

WAITS, NEVER = "Dependency", "DependencyNeverSatisfied"  # reasons
_NONSENSE = "Batch job submission failed: Job dependency problem"


class DependencyKind(StrEnum):
    AFTER = "after"
    AFTER_ANY = "afterany"
    AFTER_NOT_OK = "afternotok"
    AFTER_OK = "afterok"


class Dependency(NamedTuple):
    """One job, array or element to wait for. Satisfied ones are dropped, as in squeue's list."""

    kind: str
    job: str  # 12, 12_* or 12_3
    failed: bool = False  # it can never be satisfied

    def __str__(self) -> str:
        return f"{self.kind}:{self.job}({'failed' if self.failed else 'unfulfilled'})"


def parse_dependencies(text: str) -> list[Dependency]:
    """The dependencies in `text`, without duplicates. Raises SlurmError."""
    if "?" in text or "+" in text or text.lower().startswith(("singleton", "expand", "aftercorr")):
        raise SlurmError(f"the emulator does not support --dependency={text}")
    found = []
    for word in text.split(",") if text else ():
        kind, *targets = word.lower().split(":")
        if kind not in set(DependencyKind) or not targets:
            raise SlurmError(_NONSENSE)
        for target in targets:
            try:
                number, indices = parse_target(target)  # 12_[3-4] -> 12_3, 12_4
            except SlurmError:
                raise SlurmError(_NONSENSE) from None
            found += [Dependency(kind, f"{number}_{index}") for index in indices] or [Dependency(kind, str(number))]
    return list(dict.fromkeys(found))


def open_dependencies(machine: Machine, dependencies: Sequence[Dependency]) -> list[Dependency]:
    """Those not satisfied yet, or that never can be, as squeue shows them.

    An unknown or forgotten job satisfies every kind.
    """
    open_ones = []
    for one in dependencies:
        try:
            found = chosen(machine, one.job)
        except SlurmError:
            continue
        if any(job.is_lost for job in found):
            bury_lost(machine)
        records = [job.record for job in found]
        satisfied = verdict(one.kind, records)
        if not satisfied:
            job = f"{one.job}_*" if one.job == str(records[0].array) else one.job
            open_ones.append(Dependency(one.kind, job, failed=satisfied is False))
    return open_ones


def shown_dependencies(record: JobRecord) -> str:
    """The remaining dependencies of a job, in the format of squeue and scontrol."""
    return ",".join(str(Dependency(*one)) for one in record.dependencies) or "(null)"


def verdict(kind: str, records: Sequence[JobRecord]) -> bool | None:
    """Whether these jobs satisfy a dependency of this kind; None while that is open."""

    def of_job(state: EmulatedState) -> bool | None:
        """A requeued job counts as neither ended nor started."""
        if kind == DependencyKind.AFTER:
            return state is EmulatedState.RUNNING or state.ended or None
        if not state.ended:
            return None
        succeeded = state is EmulatedState.COMPLETED
        return kind == DependencyKind.AFTER_ANY or succeeded == (kind == DependencyKind.AFTER_OK)

    verdicts = [of_job(record.state) for record in records]
    if None in verdicts:
        return None
    return any(verdicts) if kind == DependencyKind.AFTER_NOT_OK else all(verdicts)

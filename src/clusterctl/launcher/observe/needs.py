"""What a run requested beside what it used, and the request that would have been enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.observe.telemetry import Used, used_by
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import mebibytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.spec import Resources

HEADROOM = 1.25  # of memory and processors: another run of the job does not use exactly the same
TIME_HEADROOM = 1.5  # another node or file system may be slower
LEAST_SECONDS = 600  # a limit below ten minutes gains nothing
_MOST_ATTEMPTS = 20  # the newest ones, whose telemetry is read
_GIBIBYTE = 2**30


class Resource(NamedTuple):
    """One resource of each node: what was requested, used at most, and would have been enough; None if unknown.

    Memory is in bytes, CPUs in cores, time in seconds. `change` is the setting that requests `enough`, empty if that
    is what was requested.
    """

    name: str
    requested: float | None
    used: float | None
    enough: float | None
    change: str = ""


@dataclass(frozen=True)
class Needs:
    """The resources of a run. `counted`: the kernel counted the memory in the job's cgroup."""

    memory: Resource
    cpus: Resource
    gpu_memory: Resource
    time: Resource
    counted: bool = False

    @property
    def all(self) -> tuple[Resource, ...]:
        return self.memory, self.cpus, self.gpu_memory, self.time


def needs_of(status: Status, used: Used, now: float) -> Needs:
    """What the run of `status` requested and, by `used`, needed until `now`. The time is that of all its attempts.

    What would have been enough is only known for a run that has finished.
    """
    resources, tasks = status.record.job.resources, status.record.tasks_per_node
    finished, ran = status.state is State.FINISHED, status.ran(now)
    cpus_asked, cpus = resources.cpus_per_task * tasks, None
    memory = enough_memory(used.memory) if finished and used.memory else None
    if finished and used.cpus:
        cpus = max(1, math.ceil(used.cpus * HEADROOM / tasks)) * tasks
    time = enough_time(ran) if finished and ran is not None else None
    memory_asked, limit = memory_requested(resources, tasks) or used.memory_limit, resources.time
    for grown in (one.grown for one in status.attempts if one.grown and one.goes_on):  # the last one counts
        if grown.what == "time":
            limit = grown.gets
        elif not resources.mem_per_cpu:
            memory_asked = float(grown.gets << 20)
    memory_change = ""
    if memory is not None and memory != memory_asked and not resources.mem_per_gpu:
        memory_change = f"resources.memory={written_memory(memory)}"
        if resources.mem_per_cpu:  # Slurm takes one of the two
            memory_change = f"resources.mem_per_cpu={written_memory(memory / cpus_asked)}"
    return Needs(
        Resource("memory", memory_asked, used.memory, memory, memory_change),
        Resource(
            "cpus",
            cpus_asked,
            used.cpus,
            cpus,
            f"resources.cpus_per_task={cpus // tasks}" if cpus is not None and cpus < cpus_asked else "",
        ),
        Resource("gpu_memory", used.gpu_memory_total, used.gpu_memory, None),
        Resource(
            "time",
            float(limit),
            ran,
            time,
            f"resources.time={time // 60}m" if time is not None and time != limit else "",
        ),
        used.counted,
    )


def used_in(attempts: Iterable[Attempt]) -> Used:
    """The most that any of the newest attempts used."""
    found = [used_by(attempt) for attempt in list(attempts)[-_MOST_ATTEMPTS:]]
    return Used.most(found)


def memory_requested(resources: Resources, tasks: int) -> float | None:
    """The bytes of memory that a job requests on each node; None if it leaves that to Slurm."""
    if resources.memory:
        return float(mebibytes(resources.memory) << 20) or None  # 0: all of the node's
    if resources.mem_per_cpu:
        return float(mebibytes(resources.mem_per_cpu) << 20) * resources.cpus_per_task * tasks
    if resources.mem_per_gpu and resources.gpus_per_node:
        return float(mebibytes(resources.mem_per_gpu) << 20) * resources.gpus_per_node
    return None


def enough_memory(used: float) -> int:
    """A request in bytes with headroom for a job that used `used`: whole GiB, below 2 GiB in steps of 128 MiB."""
    wanted = used * HEADROOM
    step = _GIBIBYTE if wanted > 2 * _GIBIBYTE else _GIBIBYTE // 8
    return math.ceil(wanted / step) * step


def enough_time(used: float) -> int:
    """A time limit in seconds with headroom for a job that took `used`: at least ten minutes, in steps of five, or of
    thirty above three hours.
    """
    wanted = max(LEAST_SECONDS, used * TIME_HEADROOM)
    step = 1800 if wanted > 3 * 3600 else 300
    return math.ceil(wanted / step) * step


def written_memory(size: float) -> str:
    """A size as for `--mem`: 4G or 640M, rounded up."""
    mebi = math.ceil(size / 2**20)
    return f"{mebi // 1024}G" if mebi % 1024 == 0 else f"{mebi}M"

"""What the last finished runs of the same job needed: `auto` takes it, and `submit` compares it with the request.

What reads runs is imported only if enough of that name have started: a submission should not wait for it.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.config import runs_folder
from clusterctl.launcher.config.resolution import AUTO, default_warning
from clusterctl.launcher.observe.run_names import job_name, run_ids
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.plain_text import duration
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.launcher.config import Resolved
    from clusterctl.shared.spec import Job

COUNT = 3  # runs that are compared
_MOST_READ = 30  # runs of that name
_MUCH, _LITTLE = 0.9, 0.5  # of what is requested
# Settings of training that change neither its memory nor its time, and a program's options for them.
_SETTINGS = ("seed", "lr", "schedule_factor", "warmup", "clip_norm", "weight_decay", "dropout")
_OPTION = re.compile(r"--?(lr|learning[-_]rate|seed|weight[-_]decay|dropout|run[-_]name)(=.*)?")


class Past(NamedTuple):
    """The most that the runs needed: memory in bytes on a node, time in seconds; None if it was not measured."""

    runs: tuple[str, ...]
    memory: float | None
    time: float | None


def past_needs(job: Job, folder: Path) -> Past:
    """What the last finished runs of `job` in `folder` needed. Only their files are read, and only this user's runs."""
    from clusterctl.launcher.observe.attempt import read_evidence
    from clusterctl.launcher.observe.needs import used_in
    from clusterctl.launcher.observe.run_record import read_record
    from clusterctl.launcher.observe.runs import newest_first
    from clusterctl.launcher.observe.state import judge

    wanted, now, found = _sameness(job), time.time(), list[Past]()
    for run in islice(newest_first(folder, lambda one: job_name(one) == job.name), _MOST_READ):
        try:
            record = read_record(run)
            if not record.is_ours or _sameness(record.job) != wanted:
                continue
            status = judge(read_evidence(record), now)
        except (ConfigError, OSError):  # damaged, or just removed
            continue
        if status.state is State.FINISHED and status.sure:
            found.append(Past((run.id,), used_in(run.attempts()).memory, status.ran(now)))
            if len(found) == COUNT:
                break
    memory = [one.memory for one in found if one.memory is not None]
    return Past(
        tuple(run for one in found for run in one.runs),
        max(memory) if len(memory) == len(found) and found else None,
        max((one.time for one in found if one.time is not None), default=None),
    )


def _sameness(job: Job) -> tuple[object, ...]:
    """Equal for jobs that need the same: their program, the settings that cost something, nodes and tasks."""
    resources, words = job.resources, list(job.argv)
    train = {name: value for name, value in vars(job.train).items() if name not in _SETTINGS}
    argv: list[str] = []
    while words:
        word = words.pop(0)
        option = _OPTION.fullmatch(word)
        if option and option[2] is None and words:
            words.pop(0)
        if not option:
            argv.append(word)
    place = resources.nodes, resources.tasks_per_node or 1, int(resources.gpus_per_node or 0)
    return job.workload, tuple(argv), repr(train), repr(job.data), place


def with_auto(resolved: Resolved, known: dict[object, Past] | None = None) -> Resolved:
    """`resolved` with the memory and the time that it leaves to its last runs (`auto`), and their origin.

    `known` keeps what was found, for several jobs of which many are the same. Raises ConfigError if there are no runs.
    """
    asked = [name for name in ("memory", "time") if resolved.origins.get(f"resources.{name}") == AUTO]
    if not asked:
        return resolved
    from clusterctl.launcher.observe.needs import enough_memory, enough_time, written_memory

    job, resources = resolved.job, resolved.job.resources
    known = {} if known is None else known
    if (same := (job.name, *_sameness(job))) not in known:
        known[same] = past_needs(job, runs_folder(resolved.cluster))
    past = known[same]
    origins = dict(resolved.origins)
    examples = {"memory": "16G", "time": "4h"}
    for name in asked:
        needed = past.memory if name == "memory" else past.time
        if needed is None:
            where = f"{plural(resources.nodes, 'node')} x {plural(resources.tasks_per_node or 1, 'task')}"
            why = f"no finished run of {job.name} with these settings on {where}"
            if past.runs:
                why = f"the memory of {past.runs[0]} was not measured"
            hint = f'name it this time: `resources.{name} = "{examples[name]}"`'
            raise ConfigError(f"resources.{name}: auto needs an earlier run: {why}", hint)
        runs = f"the last {len(past.runs)} runs" if len(past.runs) > 1 else past.runs[0]
        if name == "memory":
            resources = replace(resources, memory=written_memory(enough_memory(needed)))
            origins["resources.memory"] = f"history: a quarter more than {runs} needed"
        else:
            resources = replace(resources, time=enough_time(needed))
            origins["resources.time"] = f"history: half more than {runs} needed"
            if origins.get("resources.warning", "").startswith("default"):
                resources = replace(resources, warning=default_warning(resources.time))
    return replace(resolved, job=replace(job, resources=resources), origins=origins)


def advice(job: Job, folder: Path) -> str:
    """One line if the last runs of `job` in `folder` needed far less than it requests, or nearly all; else empty."""
    of_this_name = islice((run for run in run_ids(folder) if job_name(run) == job.name), _MOST_READ)
    if sum(_has_started(RunDir(folder / run)) for run in of_this_name) < COUNT:
        return ""
    from clusterctl.launcher.observe.needs import enough_memory, enough_time, memory_requested, written_memory

    past, resources = past_needs(job, folder), job.resources
    if len(past.runs) < COUNT:
        return ""
    parts, enough = [], []
    memory = memory_requested(resources, resources.tasks_per_node or 1)
    if memory and past.memory and _is_off(past.memory, memory):
        parts.append(f"{written_memory(past.memory)} of {written_memory(memory)} memory")
        each = resources.cpus_per_task * (resources.tasks_per_node or 1)
        wanted = enough_memory(past.memory)
        per_cpu = f'`resources.mem_per_cpu = "{written_memory(wanted / each)}"`'
        enough.append(f'`resources.memory = "{written_memory(wanted)}"`' if resources.memory else per_cpu)
    if past.time and _is_off(past.time, resources.time) and enough_time(past.time) != resources.time:
        parts.append(f"{duration(past.time)} of {duration(resources.time)}")
        enough.append(f'`resources.time = "{enough_time(past.time) // 60}m"`')
    if not parts:
        return ""
    return f"the last {COUNT} runs of this job needed at most {' and '.join(parts)}: {' '.join(enough)}"


def _has_started(run: RunDir) -> bool:
    try:
        return bool(run.attempts())
    except OSError:  # another user's
        return False


def _is_off(needed: float, requested: float) -> bool:
    return not _LITTLE * requested <= needed <= _MUCH * requested

"""squeue: pending, running and recently ended jobs, in the caller's format."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.emulator import jobs, scheduling
from clusterctl.launcher.emulator.job_request import Options
from clusterctl.launcher.emulator.jobs import EmulatedJob, EmulatedState, JobRecord
from clusterctl.launcher.emulator.output import cell, long_format, shown_time, user_name
from clusterctl.launcher.emulator.virtual_cluster import Machine, gres, node_list
from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.launcher.emulator.job_request import JobRequest

_SQUEUE = Options("me user=/u noheader/h states=/t jobs=/j steps/s array/r Format=/O format=/o")
_SHOWN_SECONDS = 300  # after they end, like MinJobAge
_CODES = {
    EmulatedState.PENDING: "PD",
    EmulatedState.RUNNING: "R",
    EmulatedState.COMPLETING: "CG",
    EmulatedState.COMPLETED: "CD",
    EmulatedState.FAILED: "F",
    EmulatedState.TIMEOUT: "TO",
    EmulatedState.CANCELLED: "CA",
    EmulatedState.NODE_FAIL: "NF",
    EmulatedState.PREEMPTED: "PR",
}
_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"


class JobRow(NamedTuple):
    id: int
    request: JobRequest
    record: JobRecord


def main(machine: Machine, arguments: list[str]) -> int:
    options, _ = _SQUEUE.parse(arguments, permute=True)
    jobs.bury_lost(machine)
    if "steps" in options:
        # Id and name of each step of the running jobs; `-o` knows only %i and %j.
        for job, record in _wanted(machine, options):
            for number, name in jobs.live_steps(job) if job.is_supervised else []:
                row = options.get("format", "%i %j").replace("%i", f"{jobs.job_name(job.id, record)}.{number}", 1)
                print(row.replace("%j", name, 1))
        return 0
    if "Format" in options:
        header, columns = long_format(options["Format"], _FIELDS)
    else:
        header, columns = _format(options.get("format", _DEFAULT))
    text = options.get("states", "PENDING,RUNNING,COMPLETING")
    if text.lower() == "all":
        states = set(EmulatedState)
    else:
        by_name = {name: state for state, code in _CODES.items() for name in (state.value, code)}
        words = text.split(",")
        if unknown := [word for word in words if word.upper() not in by_name]:
            raise SlurmError(f"Invalid job state specified: {unknown[0]}")
        states = {by_name[word.upper()] for word in words}
    fresh = time.time() - _SHOWN_SECONDS
    mine = options.get("user", user_name()) == user_name()
    shown = [
        columns(JobRow(job.id, job.request, record))
        for job, record in _wanted(machine, options)
        if mine and record.state in states and (record.ended or fresh) >= fresh
    ]
    if "noheader" not in options:
        print(header)
    for line in shown:
        print(line)
    return 0


def _wanted(machine: Machine, options: dict[str, str]) -> Iterator[tuple[EmulatedJob, JobRecord]]:
    """The requested jobs, each with the requested elements of its array."""
    targets = jobs.targets(options["jobs"]) if "jobs" in options else [""]
    for target in targets:
        indices = jobs.parse_target(target)[1] if target else []
        for job in jobs.chosen(machine, target) if target else jobs.all_jobs(machine):
            record = job.record
            tasks = [task for task in record.tasks if not indices or task in indices]
            if "array" in options and len(tasks) > 1:
                yield from ((job, record._replace(tasks=[task])) for task in tasks)
            else:
                yield job, record._replace(tasks=tasks)


def _format(text: str) -> tuple[str, Callable[[JobRow], str]]:
    """`-o "%.18i %T"`: one letter per column, `.` aligns right, the number is the width."""
    if unknown := [letter for _, _, letter in _PERCENT.findall(text) if letter not in _LETTERS]:
        raise SlurmError(f"Invalid job format specification: {unknown[0]}")

    def fill(value: Callable[[str], str]) -> str:
        return _PERCENT.sub(lambda found: cell(value(_LETTERS[found[3]]), int(found[2] or 0), bool(found[1])), text)

    header = fill(lambda name: name.replace("jobarrayid", "jobid").upper())
    return header, lambda row: fill(lambda name: _FIELDS[name](row))


def _time(seconds: float | None) -> str:
    return "N/A" if seconds is None else shown_time(seconds)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "UNLIMITED"
    days, rest = divmod(int(seconds), 86400)
    hours, minutes, seconds = rest // 3600, rest % 3600 // 60, rest % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


_FIELDS: dict[str, Callable[[JobRow], str]] = {
    "arrayjobid": lambda row: str(row.record.array or row.id),
    "arraytaskid": lambda row: jobs.shown_elements(row.record),
    "comment": lambda row: row.request.comment or "(null)",
    "dependency": lambda row: scheduling.shown_dependencies(row.record),
    "endtime": lambda row: _time(
        row.record.ended  # or will end at the latest:
        or (row.record.started + row.request.time_limit if row.record.started and row.request.time_limit else None)
    ),
    "exit_code": lambda row: str(row.record.status),
    "jobarrayid": lambda row: jobs.job_name(row.id, row.record),
    "jobid": lambda row: str(row.id),
    "name": lambda row: row.request.name,
    "nodelist": lambda row: node_list(row.record.nodes),
    "numcpus": lambda row: str(row.request.tasks * (row.request.cpus_per_task or 1)),
    "numnodes": lambda row: str(row.request.nodes),
    "numtasks": lambda row: str(row.request.tasks),
    "partition": lambda row: row.request.partition,
    "reason": lambda row: row.record.reason,
    "reasonlist": lambda row: (
        f"({row.record.reason})" if row.record.state is EmulatedState.PENDING else node_list(row.record.nodes)
    ),
    "restartcnt": lambda row: str(row.record.restarts),
    "starttime": lambda row: _time(row.record.started),
    "state": lambda row: row.record.state.value,
    "statecompact": lambda row: _CODES[row.record.state],
    "submittime": lambda row: _time(row.record.submitted),
    "timelimit": lambda row: _duration(row.request.time_limit),
    "timeused": lambda row: _duration(
        (row.record.ended or time.time()) - row.record.started if row.record.started else 0.0
    ),
    "tres-per-node": lambda row: (
        f"gres:{gres(row.request.gpus_per_node, row.request.gpu_type)}" if row.request.gpus_per_node else "N/A"
    ),
    "username": lambda row: user_name(),  # noqa: ARG005
    "workdir": lambda row: row.request.folder,
}
_PERCENT = re.compile(r"%(\.?)(\d*)(\w)")
_LETTERS = {
    **dict(zip("iAFK", ("jobarrayid", "jobid", "arrayjobid", "arraytaskid"), strict=True)),
    **dict(zip("PjukDN", ("partition", "name", "username", "comment", "numnodes", "nodelist"), strict=True)),
    **dict(zip("tTrRMl", ("statecompact", "state", "reason", "reasonlist", "timeused", "timelimit"), strict=True)),
    **dict(zip("VSeZE", ("submittime", "starttime", "endtime", "workdir", "dependency"), strict=True)),
}

"""scontrol: requeue, hold and release jobs, show jobs and nodes, take nodes down and resume them."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator import jobs, scheduling
from clusterctl.launcher.emulator.output import expand, shown_time, symbols, user_name
from clusterctl.launcher.emulator.stand_in import VERSION
from clusterctl.launcher.emulator.virtual_cluster import Machine, gres, node_list, node_name, node_names
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.spec.values import slurm_time

if TYPE_CHECKING:
    from clusterctl.launcher.emulator.jobs import EmulatedJob


def main(machine: Machine, arguments: list[str]) -> int:
    jobs.bury_lost(machine)
    match [word if "=" in word else word.lower() for word in arguments[:1]] + arguments[1:]:
        case ["ping"]:
            print(f"Slurmctld(primary) at {os.uname().nodename} is UP")
        case ["version"]:
            print(VERSION)
        case ["requeue" | "hold" | "release" as verb, *job_ids] if job_ids:
            return _ask(machine, jobs.targets(",".join(job_ids)), verb)
        case ["show", "config"]:
            print(f"MaxArraySize            = {jobs.MAX_ARRAY_SIZE}")
        case ["show", "hostnames" | "hostname", *names] if names or "SLURM_JOB_NODELIST" in os.environ:
            print("\n".join(node_names(",".join(names or [os.environ["SLURM_JOB_NODELIST"]]))))
        case ["show", "job" | "jobs", job_id]:
            for job in jobs.chosen(machine, job_id):
                _show_job(job)
        case ["show", "node" | "nodes", *names]:
            for node in [_number(machine, name) for name in names] or range(1, machine.nodes + 1):
                _show_node(machine, node)
        case ["update", *words] if all("=" in word for word in words):
            values = {word.partition("=")[0].lower(): word.partition("=")[2] for word in words}
            if set(values) == {"jobid", "arraytaskthrottle"} and values["arraytaskthrottle"].isdecimal():
                return _ask(machine, [values["jobid"]], "throttle", values["arraytaskthrottle"])
            if values.keys() == {"jobid", "excnodelist"}:
                nodes = [str(_number(machine, name)) for name in node_names(values["excnodelist"])]
                return _ask(machine, values["jobid"].split(","), "exclude", *nodes)
            if values.keys() == {"jobid", "dependency"}:
                scheduling.parse_dependencies(values["dependency"])  # raises
                return _ask(machine, values["jobid"].split(","), "wait-for", values["dependency"])
            _update_node(machine, values)
        case _:
            raise SlurmError(f"invalid keyword: {' '.join(arguments)}")
    return 0


def _ask(machine: Machine, targets: list[str], *words: str) -> int:
    """Send `words` to all jobs that `targets` name; ended elements of a whole array may refuse."""
    refusals = []
    for target in targets:
        try:
            for job in jobs.split(machine, target):
                try:
                    job.ask(*words)
                except SlurmError as error:
                    record = job.record  # it may have ended just now
                    if not (record.array and record.state.ended and "_" not in target):
                        refusals.append(f"{error.message} for job {jobs.job_name(job.id, record)}")
        except SlurmError as error:
            refusals.append(f"{error.message} for job {target}")
    for refusal in refusals:
        print(refusal, file=sys.stderr)
    return int(bool(refusals))


def _update_node(machine: Machine, values: dict[str, str]) -> None:
    state = values.get("state", "").lower()
    if state not in ("down", "resume", "idle") or "nodename" not in values:
        updatable = "a node's state (down, resume, idle), and a job's ArrayTaskThrottle, Dependency and ExcNodeList"
        raise SlurmError(f"the emulator updates only {updatable}")
    for name in node_names(values["nodename"]):
        node = _number(machine, name)
        marker = machine.down_marker(node)
        if state == "down":
            marker.parent.mkdir(exist_ok=True)
            marker.write_text(values.get("reason", ""))
            for job in jobs.all_jobs(machine):
                with suppress(SlurmError):  # it has just ended
                    if job.is_supervised:
                        job.ask("node-down", str(node))
        else:
            marker.unlink(missing_ok=True)
            jobs.nudge(machine)


def _show_job(job: EmulatedJob) -> None:
    request, record = job.request, job.record
    element = ""
    if record.tasks:
        throttle = f"ArrayTaskThrottle={record.throttle} " if record.throttle else ""
        element = f"ArrayJobId={record.array} ArrayTaskId={jobs.shown_elements(record)} {throttle}"
    ends = record.ended or (record.started and request.time_limit and record.started + request.time_limit)
    start, end = (shown_time(moment) if moment else "Unknown" for moment in (record.started, ends))
    restarts = f"Restarts={record.restarts} BatchFlag=1 Requeue={int(request.requeue)}"
    names = symbols(job.id, record, request.name, record.nodes[0] if record.nodes else 1)
    output, error = (Path(request.folder, expand(pattern, names)) for pattern in (request.output, request.error))
    print(f"JobId={job.id} {element}JobName={request.name}")
    print(f"   UserId={user_name()}({os.getuid()})")
    print(f"   JobState={record.state} Reason={record.reason} {restarts}")
    limit = slurm_time(request.time_limit) if request.time_limit else "UNLIMITED"
    print(f"   TimeLimit={limit}")
    print(f"   ExitCode={record.status >> 8}:{record.status & 127}")
    print(f"   SubmitTime={shown_time(record.submitted)} StartTime={start} EndTime={end}")
    print(f"   PreemptTime={shown_time(record.preempted) if record.preempted else 'None'}")
    print(f"   Partition={request.partition} NodeList={node_list(record.nodes) or '(null)'}")
    print(f"   ReqNodeList=(null) ExcNodeList={node_list(record.excluded) or '(null)'}")
    cpus = request.tasks * (request.cpus_per_task or 1)
    print(f"   NumNodes={request.nodes} NumCPUs={cpus} NumTasks={request.tasks} CPUs/Task={request.cpus_per_task or 1}")
    print(f"   Command={job.folder / 'script'}\n   WorkDir={request.folder}\n   StdErr={error}\n   StdOut={output}")
    if request.gpus_per_node:
        print(f"   TresPerNode=gres:{gres(request.gpus_per_node, request.gpu_type)}")
    print()


def _show_node(machine: Machine, node: int) -> None:
    marker = machine.down_marker(node)
    state = "DOWN" if marker.exists() else "IDLE"
    if any(job.is_supervised and node in job.record.nodes for job in jobs.all_jobs(machine)):
        state = "ALLOCATED"
    gpus = gres(machine.gpus_per_node, machine.gpu_type)
    print(f"NodeName={node_name(node)} CPUTot={machine.cpus_per_node} Gres={gpus} State={state}")
    if marker.exists():
        print(f"   Reason={marker.read_text()}")
    print()


def _number(machine: Machine, name: str) -> int:
    found = re.fullmatch(r"node([1-9]\d*)", name, re.ASCII)
    if not found or int(found[1]) > machine.nodes:
        raise SlurmError(f"Invalid node name specified: {name}")
    return int(found[1])

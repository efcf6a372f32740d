"""Run directories like those of real runs with any number of ranks, eight per node: for what grows with the ranks.

All paths come from `runs.layout`. Only `_write_ranks` knows how a rank's events and heartbeat are stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.heartbeats import ENDED, EXIT_HUNG, Beat, write_beats
from clusterctl.shared.record.layout import RUN_FORMAT, Attempt, RunDir
from clusterctl.shared.record.marks import RankMark
from clusterctl.shared.record.stamp import stamp
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, to_record

RANKS_A_NODE = 8
JOB_ID = "4242"
STEPS, DONE = 1000, 300
_SAMPLES = 20  # of each node
_TRAINS_AFTER, _ENDS_AFTER = 20.0, 320.0  # seconds after the start
_STAGES = ((1.0, State.IMPORTING), (5.0, State.RENDEZVOUS), (6.0, State.LOADING), (_TRAINS_AFTER, State.TRAINING))
_FRAMES = "".join(
    f'  File "/home/user/project/train.py", line {10 + depth}, in part_{depth}\n    part_{depth + 1}(batch)\n'
    for depth in range(12)
)
_STACK = (
    "Thread MainThread:\n" + _FRAMES + '  File "/opt/torch/distributed.py", line 99, in all_reduce\n    work.wait()\n'
)

Records = list[dict[str, Any]]


class Course(StrEnum):
    """What happens to the run. In the last two, one rank is to blame: `culprit(ranks)`."""

    RUNNING = "running"
    FAILED = "failed"  # one rank raised its own error, all others one about a lost peer
    HUNG = "hung"  # one rank was stuck, and the watchdog ended the run


def culprit(ranks: int) -> int:
    return ranks // 3


def write_many_ranks(runs: Path, ranks: int, course: Course, now: float) -> RunDir:
    """A run of `ranks` ranks in the folder `runs`, at the time `now`, after five minutes of training."""
    run = RunDir(runs / f"{course}-20260102-030405-{ranks:04x}")
    start, nodes = now - _ENDS_AFTER, -(-ranks // RANKS_A_NODE)
    run.path.mkdir(mode=0o700, parents=True)
    write_json(run.run_json, _record(run, nodes, min(ranks, RANKS_A_NODE), start - 30))
    write_json(run.submission_json, {"job_id": JOB_ID, "time": start - 29})
    attempt = run.attempt(0)
    attempt.path.mkdir(parents=True)
    code = {Course.RUNNING: None, Course.FAILED: 1, Course.HUNG: EXIT_HUNG}[course]
    host = {"attempt": 0, "job_id": JOB_ID, "nodes": f"node[0-{nodes - 1}]", "start": start}
    write_json(attempt.host_json, host | {"end": None if code is None else now, "exit_code": code})
    attempt.host_log.write_text(_host_log(ranks, course))
    _append(attempt.metrics, (_step(step, start + _TRAINS_AFTER + step) for step in range(1, DONE + 1)))
    for node in range(nodes):
        _write_telemetry(attempt, node, ranks, now)
    _write_ranks(attempt, ranks, course, start)
    if course is Course.HUNG:
        _write_alarm(attempt, ranks, now)
    return run


def node_of(rank: int) -> str:
    return f"node{rank // RANKS_A_NODE}"


def _record(run: RunDir, nodes: int, tasks_per_node: int, created: float) -> dict[str, Any]:
    resources = Resources(nodes=nodes, tasks_per_node=tasks_per_node, gpus_per_node=tasks_per_node, time=36000)
    job = Job(name=run.id.partition("-")[0], workload="reddit", resources=resources, train=RedditTrain())
    cluster = Cluster(name="site", runs=str(run.path.parent))
    record = {"schema_version": RUN_FORMAT, "id": run.id, "created": created}
    return record | {"job": to_record(job), "cluster": to_record(cluster)}


def _write_ranks(attempt: Attempt, ranks: int, course: Course, start: float) -> None:
    for path in (attempt.beats(0), attempt.log(0)):
        path.parent.mkdir(parents=True, exist_ok=True)
    for node, first in enumerate(range(0, ranks, RANKS_A_NODE)):
        own = range(first, min(first + RANKS_A_NODE, ranks))
        events = [{"rank": rank, **event} for rank in own for event in _events(rank, ranks, course, start)]
        _append(attempt.node_events(node), sorted(events, key=lambda event: event["time"]))
        beats = {rank - first: (rank, beat_of(rank, course, start + _ENDS_AFTER)) for rank in own}
        write_beats(attempt.beats(node), beats)
    for rank in range(ranks):
        events = _events(rank, ranks, course, start)
        mark = RankMark(attempt, rank)
        mark.begin()
        if course is not Course.RUNNING:
            mark.end(1)
        raised = next((event["traceback"] for event in events if event["event"] == "exception"), "")
        attempt.log(rank, "err").write_text(raised)
        lines = [f"rank {rank} on {node_of(rank)} is ready", "reading the graph", *(f"epoch {n}" for n in range(3))]
        stamped = (f"{stamp(start + 10 + place)}{line}\n" for place, line in enumerate(lines))
        attempt.log(rank).write_text("".join(stamped))


def beat_of(rank: int, course: Course, now: float) -> Beat:
    """The last heartbeat that the rank wrote."""
    beat = Beat(now, State.TRAINING, now - 300, DONE, now - 1, 1.0, 1.2, 0.9, None, 1000 + rank, node_of(rank))
    return beat if course is Course.RUNNING else replace(beat, phase=ENDED)


def _events(rank: int, ranks: int, course: Course, start: float) -> Records:
    began = {"event": "began", "host": node_of(rank), "node": node_of(rank), "pid": 1000 + rank}
    events: Records = [{"time": start + 1, **began}]
    events += [{"time": start + after, "event": "stage", "stage": stage} for after, stage in _STAGES]
    first, end = rank == culprit(ranks), start + _ENDS_AFTER - 5
    if course is Course.FAILED:
        peer = f"[10.0.{rank // 256}.{rank % 256}]:{20000 + rank}"
        type_, message = (
            ("ValueError", f"batch 7 of rank {rank} is empty")
            if first
            else ("RuntimeError", f"Connection closed by peer {peer}")
        )
        text = f"Traceback (most recent call last):\n{_FRAMES}{type_}: {message}\n"
        raised = {"event": "exception", "type": type_, "message": message, "traceback": text}
        events += [{"time": end + (not first), **raised}, {"time": end + 2, "event": "exit", "code": 1}]
    elif course is Course.HUNG:
        stack = f"Thread MainThread:\n{_FRAMES}" if first else _STACK
        events.append({"time": end, "event": "hang", "stacks": stack})
        events.append({"time": end + 2, "event": "exit", "code": EXIT_HUNG})
    return events


def _host_log(ranks: int, course: Course) -> str:
    """The messages of srun: first about the culprit, then about the ranks of each node."""
    if course is Course.RUNNING:
        return ""
    first, code = culprit(ranks), {Course.FAILED: 1, Course.HUNG: EXIT_HUNG}[course]
    whose = [(first, f"task {first}")]
    whose += [(rank, f"tasks {rank}-{min(rank + RANKS_A_NODE, ranks) - 1}") for rank in range(0, ranks, RANKS_A_NODE)]
    return "".join(f"srun: error: {node_of(rank)}: {tasks}: Exited with exit code {code}\n" for rank, tasks in whose)


def _step(step: int, time: float) -> dict[str, Any]:
    split = {"seconds": 1.0, "sampling": 0.3, "gathering": 0.2, "compute": 0.4, "communication": 0.1}
    counts = {"step": step, "steps": STEPS, "epoch": 1 + step // 100, "epochs": STEPS // 100}
    return {"time": time, **counts, "loss": 2 / step, **split, "nodes_per_second": 1e5 + step % 97}


def go_on(run: RunDir, ranks: int, second: int, now: float) -> None:
    """Write what a run writes in a second of training: a step, heartbeats, the telemetry of a fifth of the nodes."""
    attempt, step = run.attempt(0), DONE + second
    _append(attempt.metrics, [_step(step, now)])
    for node, first in enumerate(range(0, ranks, RANKS_A_NODE)):
        own = range(first, min(first + RANKS_A_NODE, ranks))
        beats = {rank - first: (rank, replace(beat_of(rank, Course.RUNNING, now), step=step)) for rank in own}
        write_beats(attempt.beats(node), beats)
        if (node + second) % 5 == 0:
            _append(attempt.telemetry(f"node{node}"), [_sample(node, ranks, step, now)])


def _write_telemetry(attempt: Attempt, node: int, ranks: int, now: float) -> None:
    past = [5 * (_SAMPLES - tick) for tick in range(_SAMPLES)]
    _append(attempt.telemetry(f"node{node}"), [_sample(node, ranks, DONE - ago, now - ago) for ago in past])


def _sample(node: int, ranks: int, step: int, now: float) -> dict[str, Any]:
    own = range(node * RANKS_A_NODE, min((node + 1) * RANKS_A_NODE, ranks))
    of_rank = {"step": step, "phase": State.TRAINING, "step_seconds": 1.0, "busy_seconds": 0.9, "idle": None}
    machine = {"cpu": 12.5, "cpus": 64, "memory": 90 * 2**30, "memory_limit": 500 * 2**30}
    gpus = [{"index": gpu, "utilisation": 60 + (gpu + node + step) % 40} for gpu in range(len(own))]
    ranks_of_node = {str(rank): of_rank for rank in own}
    return {"time": now, "seconds": 5.0, **machine, "gpus": gpus, "ranks": ranks_of_node}


def _write_alarm(attempt: Attempt, ranks: int, now: float) -> None:
    alarm = {"time": now - 6, "by": 0, "seen": culprit(ranks), "phase": State.TRAINING, "still_seconds": 60.0}
    write_json(attempt.hang_json, alarm | {"limit_seconds": 30.0, "suspects": [culprit(ranks)], "how": "busy"})


def _append(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in records))

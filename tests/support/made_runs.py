"""Run directories without a run: a busy one, one with any number of ranks, sweeps, and one that is tracked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.heartbeats import ENDED, EXIT_HUNG, Beat, write_beats
from clusterctl.shared.record.layout import RUN_FORMAT, SWEEP_FORMAT, Attempt, RunDir, SweepDir
from clusterctl.shared.record.marks import RankMark
from clusterctl.shared.record.stamp import stamp
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources, to_record
from clusterctl.shared.spec.job import Track

# A busy run: 4 nodes x 8 GPUs, 32 ranks, restarted once, with telemetry; the same every time.

CREATED = 1_000_000.0
STARTS = (1_000_030.0, 1_000_260.0)  # of the two attempts
NOW = 1_000_500.0
NODES, GPUS, RANKS = 4, 8, 32
STEPS = 400
WENT_ON_AT = 101  # one after the step of the second attempt's checkpoint
SLOW_RANK, IDLE_NODE = 13, "node3"


def busy_files() -> dict[str, Any]:
    """Name -> content of the files of a run directory, for the fixture `fabricate`."""
    files: dict[str, Any] = {
        "submission.json": {"job_id": "4242"},
        "attempts/0/host.json": _host(0) | {"end": STARTS[0] + 200, "exit_code": 1},
        "attempts/1/host.json": _host(1),
    }
    for attempt, steps in enumerate((range(1, 151), range(WENT_ON_AT, 301))):
        start = STARTS[attempt] + 20
        files[f"attempts/{attempt}/metrics.jsonl"] = [
            line for step in steps for line in _metrics(step, start + (step - steps[0]) * 1.0)
        ]
        files[f"attempts/{attempt}/events/rank_00000.jsonl"] = _busy_events(STARTS[attempt], steps)
        for rank in range(1, RANKS):
            files[f"attempts/{attempt}/events/rank_{rank:05}.jsonl"] = _busy_events(STARTS[attempt], ())[:1]
    files["attempts/0/events/rank_00005.jsonl"].append(
        {"time": STARTS[0] + 190, "event": "exception", "type": "RuntimeError", "message": "out of memory"}
    )
    for node in range(NODES):
        files[f"attempts/1/telemetry/node{node}.jsonl"] = [_busy_sample(node, tick) for tick in range(40)]
    files["attempts/1/logs/rank_00000.out"] = "".join(
        f"epoch {n}/40  loss {_loss(n * 10):.4f}\n" for n in range(11, 31)
    )
    return files


def _host(attempt: int) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "job_id": "4242",
        "restart_count": attempt,
        "nodes": "node[0-3]",
        "start": STARTS[attempt],
        "end": None,
        "exit_code": None,
        "signal": "",
    }


def _loss(step: int) -> float:
    return 2.0 * math.exp(-step / 120) + 0.1 * math.sin(step)


def _metrics(step: int, time: float) -> list[dict[str, Any]]:
    split = {"sampling": 0.3, "gathering": 0.25, "compute": 0.35, "communication": 0.08}
    counts = {"step": step, "steps": STEPS, "epoch": (step - 1) // 10 + 1, "epochs": 40}
    line = {
        "time": time,
        **counts,
        "loss": _loss(step),
        "seconds": 1.0,
        **split,
        "nodes_per_second": 90_000 + 99 * step,
    }
    scores = {"time": time, **counts, "val_accuracy": 0.9 - 0.5 * math.exp(-step / 80), "evaluation_seconds": 0.4}
    return [line, scores] if step % 10 == 0 else [line]


def _busy_events(start: float, steps: range | tuple[()]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"time": start + 1, "event": "began", "host": "node0", "pid": 1, "local_rank": 0, "node_rank": 0},
        {"time": start + 1, "event": "stage", "stage": "importing"},
        {"time": start + 5, "event": "stage", "stage": "rendezvous"},
        {"time": start + 6, "event": "stage", "stage": "loading"},
    ]
    for step in steps[::10]:
        at = start + 20 + (step - steps[0])
        events.append({"time": at, "event": "stage", "stage": "training", "epoch": step // 10 + 1})
        events.append({"time": at + 9.5, "event": "stage", "stage": "evaluating", "epoch": step // 10 + 1})
    return events


def _busy_sample(node: int, tick: int) -> dict[str, Any]:
    time = STARTS[1] + 25 + 5 * tick
    idle = f"node{node}" == IDLE_NODE
    gpus = [
        {
            "index": index,
            "name": "NVIDIA H100",
            "utilisation": 3 if idle and index == 7 else 55 + (7 * index + 11 * node + tick) % 45,
            "memory": 30 * 2**30,
            "memory_total": 80 * 2**30,
            "power": 400,
            "temperature": 55,
            "sm_activity": None,
        }
        for index in range(GPUS)
    ]
    ranks = {
        str(rank): {
            "step": WENT_ON_AT + 5 * tick,
            "phase": "training",
            "step_seconds": 1.9 + (rank + tick) % 7 / 100,
            "busy_seconds": 1.8 if rank == SLOW_RANK else 0.95 + (rank + tick) % 7 / 100,
        }
        for rank in range(node * GPUS, (node + 1) * GPUS)
    }
    machine = {"cpu": 12.5 + tick % 3, "cpus": 64, "memory": (90 + node) * 2**30, "memory_limit": 500 * 2**30}
    return {"time": time, **machine, "disk_read": 1e6, "net_in": 2e8, "gpus": gpus, "ranks": ranks}


# Runs with any number of ranks, eight per node, like real ones: for what grows with the ranks.

RANKS_A_NODE = 8
JOB_ID = "4242"
_STEPS, _DONE = 1000, 300
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


class Case(StrEnum):
    """What happens to the run. In the last two, one rank is to blame: `culprit(ranks)`."""

    RUNNING = "running"
    FAILED = "failed"  # one rank raised its own error, all others one about a lost peer
    HUNG = "hung"  # one rank was stuck, and the watchdog ended the run


def culprit(ranks: int) -> int:
    return ranks // 3


def write_many_ranks(runs: Path, ranks: int, case: Case, now: float) -> RunDir:
    """A run of `ranks` ranks in the folder `runs`, at the time `now`, after five minutes of training."""
    run = RunDir(runs / f"{case}-20260102-030405-{ranks:04x}")
    start, nodes = now - _ENDS_AFTER, -(-ranks // RANKS_A_NODE)
    run.path.mkdir(mode=0o700, parents=True)
    write_json(run.run_json, _record(run, nodes, min(ranks, RANKS_A_NODE), start - 30))
    write_json(run.submission_json, {"job_id": JOB_ID, "time": start - 29})
    attempt = run.attempt(0)
    attempt.path.mkdir(parents=True)
    code = {Case.RUNNING: None, Case.FAILED: 1, Case.HUNG: EXIT_HUNG}[case]
    host = {"attempt": 0, "job_id": JOB_ID, "nodes": f"node[0-{nodes - 1}]", "start": start}
    write_json(attempt.host_json, host | {"end": None if code is None else now, "exit_code": code})
    attempt.host_log.write_text(_host_log(ranks, case))
    _append(attempt.metrics, (_step(step, start + _TRAINS_AFTER + step) for step in range(1, _DONE + 1)))
    for node in range(nodes):
        _write_telemetry(attempt, node, ranks, now)
    _write_ranks(attempt, ranks, case, start)
    if case is Case.HUNG:
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


def _write_ranks(attempt: Attempt, ranks: int, case: Case, start: float) -> None:
    for path in (attempt.beats(0), attempt.log(0)):
        path.parent.mkdir(parents=True, exist_ok=True)
    for node, first in enumerate(range(0, ranks, RANKS_A_NODE)):
        own = range(first, min(first + RANKS_A_NODE, ranks))
        events = [{"rank": rank, **event} for rank in own for event in _events(rank, ranks, case, start)]
        _append(attempt.node_events(node), sorted(events, key=lambda event: event["time"]))
        beats = {rank - first: (rank, beat_of(rank, case, start + _ENDS_AFTER)) for rank in own}
        write_beats(attempt.beats(node), beats)
    for rank in range(ranks):
        events = _events(rank, ranks, case, start)
        mark = RankMark(attempt, rank)
        mark.begin()
        if case is not Case.RUNNING:
            mark.end(1)
        raised = next((event["traceback"] for event in events if event["event"] == "exception"), "")
        attempt.log(rank, "err").write_text(raised)
        lines = [f"rank {rank} on {node_of(rank)} is ready", "reading the graph", *(f"epoch {n}" for n in range(3))]
        stamped = (f"{stamp(start + 10 + place)}{line}\n" for place, line in enumerate(lines))
        attempt.log(rank).write_text("".join(stamped))


def beat_of(rank: int, case: Case, now: float) -> Beat:
    """The last heartbeat that the rank wrote."""
    beat = Beat(now, State.TRAINING, now - 300, _DONE, now - 1, 1.0, 1.2, 0.9, None, 1000 + rank, node_of(rank))
    return beat if case is Case.RUNNING else replace(beat, phase=ENDED)


def _events(rank: int, ranks: int, case: Case, start: float) -> Records:
    began = {"event": "began", "host": node_of(rank), "node": node_of(rank), "pid": 1000 + rank}
    events: Records = [{"time": start + 1, **began}]
    events += [{"time": start + after, "event": "stage", "stage": stage} for after, stage in _STAGES]
    first, end = rank == culprit(ranks), start + _ENDS_AFTER - 5
    if case is Case.FAILED:
        peer = f"[10.0.{rank // 256}.{rank % 256}]:{20000 + rank}"
        type_, message = (
            ("ValueError", f"batch 7 of rank {rank} is empty")
            if first
            else ("RuntimeError", f"Connection closed by peer {peer}")
        )
        text = f"Traceback (most recent call last):\n{_FRAMES}{type_}: {message}\n"
        raised = {"event": "exception", "type": type_, "message": message, "traceback": text}
        events += [{"time": end + (not first), **raised}, {"time": end + 2, "event": "exit", "code": 1}]
    elif case is Case.HUNG:
        stack = f"Thread MainThread:\n{_FRAMES}" if first else _STACK
        events.append({"time": end, "event": "hang", "stacks": stack})
        events.append({"time": end + 2, "event": "exit", "code": EXIT_HUNG})
    return events


def _host_log(ranks: int, case: Case) -> str:
    """The messages of srun: first about the culprit, then about the ranks of each node."""
    if case is Case.RUNNING:
        return ""
    first, code = culprit(ranks), {Case.FAILED: 1, Case.HUNG: EXIT_HUNG}[case]
    whose = [(first, f"task {first}")]
    whose += [(rank, f"tasks {rank}-{min(rank + RANKS_A_NODE, ranks) - 1}") for rank in range(0, ranks, RANKS_A_NODE)]
    return "".join(f"srun: error: {node_of(rank)}: {tasks}: Exited with exit code {code}\n" for rank, tasks in whose)


def _step(step: int, time: float) -> dict[str, Any]:
    split = {"seconds": 1.0, "sampling": 0.3, "gathering": 0.2, "compute": 0.4, "communication": 0.1}
    counts = {"step": step, "steps": _STEPS, "epoch": 1 + step // 100, "epochs": _STEPS // 100}
    return {"time": time, **counts, "loss": 2 / step, **split, "nodes_per_second": 1e5 + step % 97}


def go_on(run: RunDir, ranks: int, second: int, now: float) -> None:
    """Write what a run writes in a second of training: a step, heartbeats, the telemetry of a fifth of the nodes."""
    attempt, step = run.attempt(0), _DONE + second
    _append(attempt.metrics, [_step(step, now)])
    for node, first in enumerate(range(0, ranks, RANKS_A_NODE)):
        own = range(first, min(first + RANKS_A_NODE, ranks))
        beats = {rank - first: (rank, replace(beat_of(rank, Case.RUNNING, now), step=step)) for rank in own}
        write_beats(attempt.beats(node), beats)
        if (node + second) % 5 == 0:
            _append(attempt.telemetry(f"node{node}"), [_sample(node, ranks, step, now)])


def _write_telemetry(attempt: Attempt, node: int, ranks: int, now: float) -> None:
    past = [5 * (_SAMPLES - tick) for tick in range(_SAMPLES)]
    _append(attempt.telemetry(f"node{node}"), [_sample(node, ranks, _DONE - ago, now - ago) for ago in past])


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


# Sweeps and their runs, without a submission.

START = 1_000_000.0


def write_sweep(folder: Path, sweep: str, runs: Iterable[Mapping[str, Any]]) -> SweepDir:
    """Write the record of `sweep` to `folder`; `runs` are the settings of its runs."""
    made = SweepDir.of(folder, sweep)
    made.path.mkdir(parents=True)
    rows = [[f"{key}={value}" for key, value in settings.items()] for settings in runs]
    record = {"schema_version": SWEEP_FORMAT, "created": START, "at_once": None, "runs": rows}
    made.sweep_json.write_text(json.dumps(record))
    return made


def falling(last: float, steps: int = 40, **more: float) -> list[dict[str, float]]:
    """Metrics of a run whose loss falls to `last`; the last record also has `more`."""
    losses = ((step, last + (2 - last) * math.exp(-step / 8)) for step in range(1, steps))
    measured = [{"time": START + step, "step": step, "loss": loss} for step, loss in losses]
    return [*measured, {"time": START + steps, "step": steps, "loss": last, **more}]


def ended(metrics: list[dict[str, float]], exit_code: int = 0) -> dict[str, object]:
    """The files of a run that has ended, for the fixture `fabricate`."""
    host = {"attempt": 0, "job_id": "7", "nodes": "n1", "start": START, "end": START + 90, "exit_code": exit_code}
    finished = {} if exit_code else {"finished.json": {"attempt": 0, "time": START + 90}}
    return {"attempts/0/host.json": host, "attempts/0/metrics.jsonl": metrics, **finished}


# A run whose metrics are mirrored to trackers.


def tracked_run(fabricate: Callable[..., RunDir], track: Track, files: dict[str, Any] | None = None) -> RunDir:
    """A run of a job called cora, with `files` beside its run.json."""
    from conftest import CREATED, RUN_ID  # late: benchmarks have no conftest

    job = Job(name="cora", workload="command", argv=("x",), env={"A_TOKEN": "***"}, track=track)
    record = {"schema_version": RUN_FORMAT, "id": RUN_ID, "created": CREATED, "job": to_record(job)}
    return fabricate(RUN_ID, {"run.json": {**record, "cluster": to_record(Cluster(name="site"))}, **(files or {})})

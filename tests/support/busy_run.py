"""The files of a busy run: 4 nodes x 8 GPUs, 32 ranks, restarted once, with telemetry; the same every time."""

from __future__ import annotations

import math
from typing import Any

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
        files[f"attempts/{attempt}/events/rank_00000.jsonl"] = _events(STARTS[attempt], steps)
        for rank in range(1, RANKS):
            files[f"attempts/{attempt}/events/rank_{rank:05}.jsonl"] = _events(STARTS[attempt], ())[:1]
    files["attempts/0/events/rank_00005.jsonl"].append(
        {"time": STARTS[0] + 190, "event": "exception", "type": "RuntimeError", "message": "out of memory"}
    )
    for node in range(NODES):
        files[f"attempts/1/telemetry/node{node}.jsonl"] = [_sample(node, tick) for tick in range(40)]
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


def _events(start: float, steps: range | tuple[()]) -> list[dict[str, Any]]:
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


def _sample(node: int, tick: int) -> dict[str, Any]:
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

"""The files of a finished link prediction: AUC instead of accuracy, tested edges, a loss that starts high."""

from __future__ import annotations

import math
from typing import Any

START, STEPS = 1_000_030.0, 400


def taobao_files() -> dict[str, Any]:
    """Name -> content of the files of a run directory, for the fixture `fabricate`."""
    host = {"attempt": 0, "job_id": "7", "nodes": "node[0-1]", "start": START, "end": START + 500, "exit_code": 0}
    events = [{"time": START + 9, "event": "stage", "stage": "training", "epoch": 1}]
    return {
        "submission.json": {"job_id": "7"},
        "finished.json": {"time": START + 500, "attempt": 0},
        "attempts/0/host.json": host,
        "attempts/0/events/rank_00000.jsonl": events,
        "attempts/0/metrics.jsonl": [line for step in range(1, STEPS + 1) for line in _lines(step)] + [_best()],
    }


def _lines(step: int) -> list[dict[str, Any]]:
    counts = {"step": step, "steps": STEPS, "epochs": 20, "classes": 2, "epoch": (step - 1) // 20 + 1}
    loss = 0.3 + 0.39 * math.exp(-step / 90) + 40 * math.exp(-step) + 0.005 * math.sin(step)
    seconds = {"seconds": 1.0, "sampling": 0.3, "gathering": 0.0, "compute": 0.5, "communication": 0.2}
    lines = [{"time": START + 10 + step, **counts, "loss": loss, **seconds}]
    if step % 20 == 0:
        auc = {"val_auc": 0.92 - 0.3 * math.exp(-step / 100)}
        last = {"test_auc": 0.9112, "test_edges": 16_691} if step == STEPS else {}
        lines.append({"time": START + 10 + step, **counts, **auc, **last, "evaluation_seconds": 0.4})
    return lines


def _best() -> dict[str, Any]:
    return {"time": START + 499, "best_possible_auc": 0.9344}

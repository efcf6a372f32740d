"""The files of sweeps and their runs, without a submission."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clusterctl.shared.record.layout import SWEEP_FORMAT, SweepDir

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

"""Runs that the kernel or the time limit ends go on with more, on a real Slurm with cgroups."""

from __future__ import annotations

import json

import pytest
from support.scenario import Stage

from clusterctl.shared.record.files import read_json

pytestmark = [pytest.mark.long, pytest.mark.parametrize("back_end", ["contained"], indirect=True)]

JOB = 'workload = "command"\nargv = ["python", "-c", {}]\n[restart.grow]\nmemory = 2\ntime = 3\n[resources]\n{}\n'
# Counts to three, saves each number, and holds 300 MiB from the second one on.
HUNGRY = """
import os, pathlib, time
saved = pathlib.Path("count")
count = int(saved.read_text()) if saved.exists() else 0
print("going on from", count, flush=True)
while count < 3:
    count += 1
    saved.write_text(str(count))
    held = bytearray(b"x") * ((300 << 20) if count > 1 else 1)
    time.sleep(1)
"""
SLOW = "import time; time.sleep(100)"


def test_a_run_out_of_memory_goes_on_with_more_from_where_it_was(stage: Stage) -> None:
    run = stage.submit(stage.write_job("hungry", JOB.format(json.dumps(HUNGRY), 'memory = "200M"')))
    status = stage.wait_for_stage(run, "finished", seconds=120)
    assert (status["attempts"], status["requested"]["memory"]) == (2, 400 << 20)
    assert 300 << 20 < status["used"]["memory"] < 400 << 20
    assert "going on from 2" in stage.log(run, 0, attempt=1)
    why = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    assert [(past["class"], past["went_on_with"]) for past in why["history"]] == [
        ("out-of-memory", "400M instead of 200M of memory")
    ]


def test_a_run_out_of_time_goes_on_with_more(stage: Stage) -> None:
    run = stage.submit(stage.write_job("slow", JOB.format(json.dumps(SLOW), 'time = "1m"')))
    status = stage.wait_for_stage(run, "finished", seconds=400)
    assert (status["attempts"], status["requested"]["time"]) == (2, 180)
    first, second = (read_json(attempt.host_json)["job_id"] for attempt in run.attempts())
    assert first != second

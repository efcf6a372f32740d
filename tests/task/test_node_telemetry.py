"""What a node's leader writes while a run goes on."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from support.ranks import run_job
from support.scenario import wait_until

from clusterctl.runs.files import read_lines
from clusterctl.runs.idleness import GpuReading
from clusterctl.runs.layout import RunDir
from clusterctl.runs.place import Place
from clusterctl.spec import CommandTrain, Job
from clusterctl.task.node_telemetry import GpuReadings, NodeTelemetry, rates, start_telemetry
from clusterctl.task.usage import NodeUsage, Usage


def test_totals_become_rates_and_a_counter_that_was_reset_is_no_negative_rate() -> None:
    before = Usage(10.0, 100, 1000, disk_read=0, disk_write=500, net_in=0, net_out=0)
    now = Usage(25.0, 150, 1000, disk_read=5000, disk_write=0, net_in=50, net_out=10)
    assert rates(before, now, 5.0) == {
        "cpu": 3.0, "memory": 150, "memory_limit": 1000, "disk_read": 1000, "disk_write": 0, "net_in": 10, "net_out": 2,
    }  # fmt: skip


def test_a_sample_has_the_machine_the_gpus_and_the_heartbeats_of_its_ranks(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    times = iter([100.0, 105.0])
    sampler = NodeTelemetry(attempt, "node1", NodeUsage({}), lambda: [{"index": 0}], lambda: next(times))
    sampler.ranks = [2, 3, 4]
    beat = {"time": 104, "phase": "training", "since": 90, "step": 120, "step_time": 104, "step_seconds": 0.031}
    for rank, content in ((2, json.dumps(beat) + " " * 40), (3, "{")):
        attempt.heartbeat(rank).parent.mkdir(exist_ok=True)
        attempt.heartbeat(rank).write_text(content)
    sampler.sample()
    (sample,) = read_lines(attempt.telemetry("node1"))
    assert (sample["time"], sample["seconds"]) == (105.0, 5.0)
    assert sample["cpus"] >= 1
    assert sample["gpus"] == [{"index": 0}]
    known = {"step": 120, "phase": "training", "step_seconds": 0.031, "busy_seconds": None, "idle": None}
    assert sample["ranks"] == {"2": known}


def test_any_rank_reads_what_the_gpus_of_its_node_do_from_the_newest_sample(tmp_path: Path) -> None:
    path = tmp_path / "node1.jsonl"
    gpus = [
        {"index": 0, "utilisation": 100, "memory_activity": 0},
        {"index": 1, "utilisation": 7, "memory_activity": 3},
    ]
    now = [1000.0]
    readings = GpuReadings(path, lambda: now[0])
    assert readings() == ()
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in ({"time": 990, "gpus": []}, {"time": 995, "gpus": gpus}))
    )
    assert readings() == (GpuReading(100, 0), GpuReading(7, 3))
    now[0] = 2000.0
    assert readings() == (), "the leader writes no more"
    path.write_text(json.dumps({"time": 2000, "gpus": [{"index": 0, "utilisation": None}, gpus[1]]}) + "\n")
    assert readings() == (), "one does not tell"


def test_a_node_without_gpus_is_asked_for_them_once(tmp_path: Path) -> None:
    path = tmp_path / "node1.jsonl"
    readings = GpuReadings(path)
    path.write_text('{"time": 990, "gpus": []}\n')
    assert readings() == ()
    path.unlink()
    path.mkdir()
    assert readings() == ()


def test_only_the_first_rank_of_a_node_samples_and_only_in_a_run(tmp_path: Path) -> None:
    threads = threading.active_count()
    assert start_telemetry(None, Place()) is None
    assert start_telemetry(RunDir(tmp_path).attempt(0), Place(rank=1, local_rank=1)) is None
    assert threading.active_count() == threads


def test_a_program_of_the_users_is_sampled_on_every_node_without_torch(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    program = f"""
import os, pathlib, time
sample = pathlib.Path({str(run.attempt(0).path)!r}, "telemetry")
while not (len(files := list(sample.glob("*.jsonl"))) == 1 and files[0].stat().st_size):
    sum(range(100_000))
"""
    job = Job(name="own", workload="command", argv=("python", "-c", program), train=CommandTrain())
    done = run_job(job, run, [2], timeout=60)
    assert [code for code, _, _ in done] == [0, 0], done
    (path,) = (run.attempt(0).path / "telemetry").iterdir()
    first = wait_until(lambda: next(iter(read_lines(path)), None))
    assert first["cpu"] > 0.1
    assert first["memory"] > 2**20

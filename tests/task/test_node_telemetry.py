"""What a node's leader writes while a run goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_job
from support.scenario import wait_until

from clusterctl.runs.fields import Fields
from clusterctl.runs.files import read_lines
from clusterctl.runs.idleness import GpuReading
from clusterctl.runs.layout import RunDir
from clusterctl.runs.node_link import NodeLink
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


def test_a_sample_has_the_machine_and_the_gpus() -> None:
    times = iter([100.0, 105.0])
    sent: list[dict[str, Any]] = []
    NodeTelemetry(NodeUsage({}), lambda: [{"index": 0}], sent.append, lambda: next(times)).sample()
    (sample,) = sent
    assert (sample["time"], sample["seconds"]) == (105.0, 5.0)
    assert sample["cpus"] >= 1
    assert sample["gpus"] == [{"index": 0}]


def test_any_rank_knows_what_the_gpus_of_its_node_do_from_the_newest_sample() -> None:
    first, second = {"index": 0, "utilisation": 100, "memory_activity": 0}, {"utilisation": 7, "memory_activity": 3}
    now = [1000.0]
    readings = GpuReadings(lambda: now[0])
    assert readings() == ()
    readings.take(Fields({"gpus": [first, second]}))
    assert readings() == (GpuReading(100, 0), GpuReading(7, 3))
    now[0] = 2000.0
    assert readings() == (), "nobody samples any more"
    readings.take(Fields({"gpus": [first | {"utilisation": None}, second]}))
    assert readings() == (), "one does not tell"


def test_only_the_first_rank_of_a_node_samples_and_only_where_there_is_a_writer(tmp_path: Path) -> None:
    threads = threading.active_count()
    start_telemetry(None, Place())
    other = Place(rank=1, local_rank=1)
    start_telemetry(NodeLink(RunDir(tmp_path).attempt(0), other, "task"), other)
    assert threading.active_count() == threads


def test_a_process_that_nobody_can_look_at_keeps_no_rank_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, ended = threading.Event(), threading.Event()

    def read(_: NodeUsage) -> Usage:
        looked.set()
        ended.wait(60)
        raise OSError

    monkeypatch.setattr(NodeUsage, "read", read)
    start_telemetry(NodeLink(RunDir(tmp_path).attempt(0), Place(), "task"), Place())
    assert looked.wait(60)
    ended.set()


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
    assert first["cpu"] > 0.01  # of a machine that may have much else to do
    assert first["memory"] > 2**20

"""Telemetry of a node during a run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_job
from support.scenario import wait_until

from clusterctl.engine.task.node_telemetry import GpuReadings, NodeTelemetry, rates, start_telemetry
from clusterctl.engine.task.node_usage import NodeUsage, Usage
from clusterctl.shared.node.idleness import GpuReading
from clusterctl.shared.node.node_link import NodeLink
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.place import Place
from clusterctl.shared.spec import CommandTrain, Job


def test_totals_become_rates_and_reset_counters_give_zero() -> None:
    before = Usage(10.0, 100, 1000, disk_read=0, disk_write=500, net_in=0, net_out=0)
    now = Usage(25.0, 150, 1000, disk_read=5000, disk_write=0, net_in=50, net_out=10)
    assert rates(before, now, 5.0) == {
        "cpu": 3.0, "memory": 150, "memory_limit": 1000, "disk_read": 1000, "disk_write": 0, "net_in": 10, "net_out": 2,
    }  # fmt: skip


def test_a_sample_covers_the_machine_and_its_gpus() -> None:
    times = iter([100.0, 105.0])
    sent: list[dict[str, Any]] = []
    NodeTelemetry(NodeUsage({}), lambda: [{"index": 0}], lambda one: not sent.append(one), lambda: next(times)).sample()
    (sample,) = sent
    assert (sample["time"], sample["seconds"]) == (105.0, 5.0)
    assert sample["cpus"] >= 1
    assert sample["gpus"] == [{"index": 0}]


def test_the_next_sample_covers_the_time_of_one_that_could_not_be_sent() -> None:
    times, answers = iter([100.0, 105.0, 110.0, 115.0]), iter([False, True, True])
    tried: list[Any] = []

    def send(sample: dict[str, Any]) -> bool:
        tried.append(sample["seconds"])
        return next(answers)

    telemetry = NodeTelemetry(NodeUsage({}), list, send, lambda: next(times))
    for _ in range(3):
        telemetry.sample()
    assert tried == [5.0, 10.0, 5.0]


def test_a_last_sample_is_taken_at_the_end_of_however_short_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = NodeLink(RunDir(tmp_path).attempt(0), Place(), "task")
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(link, "send", lambda message: not sent.append(message))
    start_telemetry(link, Place())()
    assert [message["kind"] for message in sent] == ["sample"]
    assert sent[0]["sample"]["seconds"] > 0


def test_ranks_get_gpu_readings_from_the_latest_sample() -> None:
    first, second = {"index": 0, "utilisation": 100, "memory_activity": 0}, {"utilisation": 7, "memory_activity": 3}
    now = [1000.0]
    readings = GpuReadings(lambda: now[0])
    assert readings() == ()
    readings.take(Fields({"gpus": [first, second]}))
    assert readings() == (GpuReading(100, 0), GpuReading(7, 3))
    now[0] = 2000.0
    assert readings() == (), "the sample is too old"
    readings.take(Fields({"gpus": [first | {"utilisation": None}, second]}))
    assert readings() == (), "one GPU does not report its utilisation"


def test_only_local_rank_0_samples_and_only_with_a_writer(tmp_path: Path) -> None:
    threads = threading.active_count()
    start_telemetry(None, Place())
    other = Place(rank=1, local_rank=1)
    start_telemetry(NodeLink(RunDir(tmp_path).attempt(0), other, "task"), other)
    assert threading.active_count() == threads


def test_a_blocking_read_of_proc_does_not_block_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, ended = threading.Event(), threading.Event()

    def read(_: NodeUsage) -> Usage:
        reading.set()
        ended.wait(60)
        raise OSError

    monkeypatch.setattr(NodeUsage, "read", read)
    start_telemetry(NodeLink(RunDir(tmp_path).attempt(0), Place(), "task"), Place())
    assert reading.wait(60)
    ended.set()


def test_a_users_program_is_sampled_without_torch(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    program = f"""
import os, pathlib, time
sample = pathlib.Path({str(run.attempt(0).path)!r}, "telemetry")
while not (len(files := list(sample.glob("*.jsonl"))) == 1 and files[0].stat().st_size):
    sum(range(100_000))
    time.sleep(0.02)
"""
    job = Job(name="own", workload="command", argv=("python", "-c", program), train=CommandTrain())
    done = run_job(job, run, [2], timeout=60)
    assert [code for code, _, _ in done] == [0, 0], done
    (path,) = (run.attempt(0).path / "telemetry").iterdir()
    first = wait_until(lambda: next(iter(read_lines(path)), None))
    assert first["cpu"] > 0.01  # low, because this machine may be busy
    assert first["memory"] > 2**20

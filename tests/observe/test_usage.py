"""Resource usage of runs: which hours count, and how they are summed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from support.made_runs import CREATED, NOW, STARTS, busy_files

from clusterctl.launcher.api.usage import Stretch, by_week, row_of, stretches_of, summed, week_of, within
from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.state import Status, judge
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]
HOUR = 3600.0
MONDAY = datetime(2026, 2, 2).timestamp()  # noqa: DTZ001 - by this machine's calendar
STRETCH = Stretch("a", "ann", "cora", MONDAY, MONDAY + 2 * HOUR, nodes=2, gpus=8, cpus=64, gpu_busy=0.5, repeated=0.25)


@pytest.fixture(params=["UTC", "Europe/Berlin", "Asia/Kolkata"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_hours_cover_all_gpus_and_cpus_and_shares_are_weighted_by_hours() -> None:
    other = replace(STRETCH, run="b", end=MONDAY + HOUR, gpu_busy=None, cpu_busy=0.9, repeated=0.0)
    row = row_of("ann", [STRETCH, replace(STRETCH, gpu_busy=0.8, end=MONDAY + HOUR), other])
    assert (row.runs, row.gpu_hours, row.cpu_hours) == (2, 32, 256)
    assert row.gpu_busy == pytest.approx((0.5 * 16 + 0.8 * 8) / 24)
    assert row.cpu_busy == 0.9
    assert row.repeated == pytest.approx((0.25 * 4 + 0.25 * 2) / 8)
    assert row_of("none", []).repeated is None


@pytest.mark.usefixtures("_zone")
def test_a_restart_is_at_the_beginning_of_its_attempt() -> None:
    begun = replace(STRETCH, repeated=0.0, restarting=0.75)
    (part,) = within([begun], MONDAY + HOUR)
    assert part.restarting == 0.5
    assert row_of("all", [begun, replace(STRETCH, run="b")]).restarting == pytest.approx(0.375)


def test_an_attempt_is_split_at_week_boundaries_and_repeated_time_counts_at_its_end() -> None:
    monday = datetime(2026, 3, 30).timestamp()  # noqa: DTZ001 - after the night in which Berlin changes its clocks
    long = replace(STRETCH, start=monday - 40 * HOUR, end=monday + 10 * HOUR, repeated=0.4)
    first, second = by_week(long)
    assert (first.end, second.start) == (monday, monday)
    assert (week_of(first.start), week_of(second.start)) == ("2026-W13", "2026-W14")
    assert first.repeated == pytest.approx(10 / 40)
    assert second.repeated == 1.0
    assert len(list(by_week(replace(long, end=monday + 15 * 24 * HOUR)))) == 4
    assert [row.name for row in summed([long], "week")] == ["2026-W13", "2026-W14"]


def test_rows_are_grouped_by_user_or_job_with_the_largest_usage_first() -> None:
    other = replace(STRETCH, run="b", user="ben", job="reddit", end=MONDAY + 9 * HOUR)
    assert [(row.name, row.gpu_hours) for row in summed([STRETCH, other], "user")] == [("ben", 72), ("ann", 16)]
    assert [row.name for row in summed([STRETCH, other], "job")] == ["reddit", "cora"]


def test_hours_before_the_given_time_do_not_count() -> None:
    assert list(within([STRETCH], MONDAY + 3 * HOUR)) == []
    (part,) = within([STRETCH], MONDAY + HOUR)
    assert (part.start, part.end, part.repeated) == (MONDAY + HOUR, MONDAY + 2 * HOUR, 0.5)


def status_of(run: RunDir, now: float, **changes: Any) -> Status:
    return replace(judge(read_evidence(read_record(run)), now), **changes)


def test_a_run_counts_all_its_attempts_and_a_running_one_until_now(fabricate: Fabricate) -> None:
    run = fabricate(files=busy_files(), created=CREATED)
    record = read_json(run.run_json)
    record["job"]["resources"] |= {"nodes": 4, "gpus_per_node": 8, "tasks_per_node": 8, "cpus_per_task": 4}
    write_json(run.run_json, record)
    newest, first = stretches_of(status_of(run, NOW, sure=True), NOW)
    assert (first.start, first.end) == (STARTS[0], STARTS[0] + 200)
    assert (newest.start, newest.end) == (STARTS[1], NOW)
    assert (first.gpus, first.cpus, first.job) == (32, 128, "cora")
    assert 0.6 < (newest.gpu_busy or 0) < 0.9
    assert 12 / 64 < (newest.cpu_busy or 0) < 15 / 64
    assert (first.gpu_busy, newest.repeated, first.restarting) == (None, 0.0, 0.0)
    assert 0 < newest.restarting < 0.5
    assert first.repeated == pytest.approx(50 / 200)  # steps 101 to 150, one second each
    assert [one.start for one in stretches_of(status_of(run, NOW, sure=True), NOW, since=STARTS[1])] == [STARTS[1]]


def test_a_step_that_any_later_attempt_repeated_counts_as_repeated(fabricate: Fabricate) -> None:
    files = busy_files()
    third = [{"time": NOW + number, "step": 51 + number, "loss": 1.0} for number in range(9)]
    files |= {"attempts/2/host.json": {"start": NOW, "job_id": "4243"}, "attempts/2/metrics.jsonl": third}
    run = fabricate(files=files, created=CREATED)
    _, _, first = stretches_of(status_of(run, NOW + 9, sure=True), NOW + 9)
    assert first.repeated == pytest.approx(100 / 200)


def test_an_attempt_without_a_recorded_end_counts_until_its_last_write(fabricate: Fabricate) -> None:
    run = fabricate(files=busy_files(), created=CREATED)
    for path in run.path.rglob("*"):
        os.utime(path, (STARTS[1] + 60, STARTS[1] + 60))
    for changes in ({"sure": False}, {"sure": True, "state": State.LOST}):
        newest, _ = stretches_of(status_of(run, NOW + 1e6, **changes), NOW + 1e6)
        assert newest.end == STARTS[1] + 60


def test_attempts_before_a_resume_count_with_their_own_resources(fabricate: Fabricate) -> None:
    run = fabricate(files=busy_files(), created=CREATED)
    record = read_json(run.run_json)
    (run.submissions / "0").mkdir(parents=True)
    write_json(run.submissions / "0" / "run.json", record)
    record["job"]["resources"]["nodes"] = 7
    write_json(run.run_json, record | {"resumes": [{"time": STARTS[1] - 20, "attempts": 1, "job_id": "4241"}]})
    assert [one.nodes for one in stretches_of(status_of(run, NOW), NOW)] == [7, 2]
    (run.submissions / "0" / "run.json").write_text("{")
    assert [one.nodes for one in stretches_of(status_of(run, NOW), NOW)] == [7, 7]


def test_a_run_that_never_started_has_used_nothing(fabricate: Fabricate) -> None:
    assert list(stretches_of(status_of(fabricate(), NOW), NOW)) == []

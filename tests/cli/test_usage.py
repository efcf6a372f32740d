"""`usage`: the table, and the same as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import pytest
from support.json_schema import schema, violations
from support.mistake import Desk

from clusterctl.launcher.api.find import Query
from clusterctl.launcher.observe.status import RunStatuses
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir

START = 1_770_000_000.0  # a Monday


@pytest.fixture
def runs(desk: Desk, fabricate: Callable[..., RunDir]) -> list[RunDir]:
    """Two runs of two hours on 2 nodes with 4 GPUs each; one had to repeat half of its first hour."""
    found = []
    for name in ("cora-20260202-000000-aaaa", "reddit-20260202-000000-bbbb"):
        first = {"start": START, "end": START + 3600, "exit_code": 1, "signal": ""}
        last = {"start": START + 3600, "end": START + 7200, "exit_code": 0, "signal": ""}
        run = fabricate(name, {"attempts/0/host.json": first, "attempts/1/host.json": last}, created=START - 5)
        record = read_json(run.run_json)
        record["job"]["resources"] |= {"gpus_per_node": 4, "cpus_per_task": 8}
        write_json(run.run_json, record)
        found.append(run)
    for attempt, steps in enumerate((range(60), range(30, 60))):
        lines = [json.dumps({"step": step, "time": START + 60 * step}) for step in steps]
        found[0].attempt(attempt).metrics.write_text("\n".join(lines) + "\n")
    return found


def test_the_table_has_a_row_for_each_job_and_a_total(desk: Desk, runs: list[RunDir]) -> None:
    code, out, err = desk.type("usage --by job")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert rows == [
        ["JOB", "RUNS", "GPU-HOURS", "CPU-HOURS", "REPEATED"],
        ["cora", "1", "16.0", "64.0", "25%"],
        ["reddit", "1", "16.0", "64.0"],
        ["total", "2", "32.0", "128.0", "12%"],
    ]


def test_json_and_csv_match_the_table(desk: Desk, runs: list[RunDir]) -> None:
    for by in ("user", "job", "week"):
        code, out, _ = desk.type(f"usage --by {by} -o json")
        found = json.loads(out)
        assert (code, violations(found, schema("usage"))) == (0, [])
        assert found["total"]["gpu_hours"] == sum(row["gpu_hours"] for row in found["rows"]) == 32
    code, out, _ = desk.type("usage --by week -o csv")
    (row,) = csv.DictReader(io.StringIO(out))
    assert (code, row["name"], row["runs"], row["cpu_hours"], row["gpu_busy"]) == (0, "2026-W06", "2", "128.0", "")


def test_a_run_removed_in_the_meantime_does_not_count(
    desk: Desk, runs: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_then_remove(query: Query) -> RunStatuses:
        found = real(query)
        runs[0].path.rename(runs[0].path.with_name("gone"))
        return found

    real = Query.look
    monkeypatch.setattr(Query, "look", look_then_remove)
    code, out, err = desk.type("usage --by job -o json")
    assert (code, [row["name"] for row in json.loads(out)["rows"]], err) == (0, ["reddit"], "")


def test_without_any_hours_it_prints_a_message(desk: Desk, runs: list[RunDir]) -> None:
    assert desk.type("usage --since 1h") == (0, "", "no runs in this time\n")
    assert desk.type("usage --since 1h -o csv")[1].count("\n") == 1


def test_spare_nodes_count_as_held_and_the_replaced_ones_are_named(
    desk: Desk, fabricate: Callable[..., RunDir]
) -> None:
    left_out = [{"node": "node2", "why": "lost", "by": "node5"}]
    host = {"start": START, "end": START + 3600, "exit_code": 0, "signal": "", "ranks": 4, "left_out": left_out}
    run = fabricate("cora-20260202-000000-aaaa", {"attempts/0/host.json": host}, created=START - 5)
    record = read_json(run.run_json)
    record["job"]["resources"] |= {"nodes": 4, "spare_nodes": 1, "tasks_per_node": 1, "cpus_per_task": 8}
    write_json(run.run_json, record)
    code, out, _ = desk.type("usage --by job")
    title, row, line = out.splitlines()
    assert (code, title.split(), row.split()) == (
        0,
        ["JOB", "RUNS", "CPU-HOURS", "SPARE"],
        ["cora", "1", "40.0", "20%"],
    )
    assert line == f"{run.id}: node2 replaced by the spare node node5: it did not answer"


PEAKS = (3 << 30, 5.0, 30 << 30), (2 << 30, 9.0, 20 << 30)  # of two nodes: memory, processors, a GPU's memory
REQUESTED = {"memory": 16 << 30, "cpus": 8, "gpu_memory": 80 << 30, "time": 14400}
USED = {"memory": 3 << 30, "cpus": 9.0, "gpu_memory": 30 << 30, "time": 7200}
ENOUGH = {"memory": 4 << 30, "cpus": 12, "gpu_memory": None, "time": 10800}
TABLE = [
    ["memory", "16G", "3.0G", "4.0G", "--set resources.memory=4G"],
    ["CPUs", "8", "9", "12", ""],
    ["GPU memory", "80G", "30G", "", ""],
    ["time", "4h00m", "2h00m", "3h00m", "--set resources.time=180m"],
    ["GPU use", "100%", "50%", "", ""],
]


@pytest.fixture
def measured(runs: list[RunDir]) -> RunDir:
    """A finished run, whose nodes used different amounts."""
    run = runs[1]
    record = read_json(run.run_json)
    record["job"]["resources"] |= {"memory": "16G", "time": 14400, "tasks_per_node": 1}
    write_json(run.run_json, record)
    for node, (memory, cpu, gpu_memory) in enumerate(PEAKS):
        gpus = [{"index": 0, "utilisation": 50.0, "memory_total": 80 << 30}]
        peak = {"memory": memory, "cpu": cpu, "gpu_memory": gpu_memory, "cgroup": True}
        lines = [{"time": START + 3600 * n, "cpu": 1.0, "gpus": gpus, "peak": peak} for n in (0.5, 1.5)]
        for attempt, line in enumerate(lines):
            folder = run.attempt(attempt).telemetry(f"node{node}")
            folder.parent.mkdir(exist_ok=True)
            folder.write_text(json.dumps(line) + "\n")
    write_json(run.finished_json, {"attempt": 1, "time": START + 7200})
    return run


def test_a_run_shows_what_it_requested_beside_what_it_used(desk: Desk, measured: RunDir) -> None:
    """The table of `usage` and of the report, and the JSON of `usage` and of `status`."""
    code, out, err = desk.type(f"usage {measured.id}")
    assert (code, "by the kernel, in the job's cgroup" in err) == (0, True)
    title, *rows = [re.split(r"  +", line.rstrip()) for line in out.splitlines()]
    assert title == ["PER NODE", "REQUESTED", "USED", "ENOUGH", "NEXT TIME"]
    assert [row[0] for row in rows] == [row[0] for row in TABLE]
    assert rows == [[cell for cell in row if cell] for row in TABLE]
    for command, record in (
        (f"usage {measured.id} -o json", lambda found: found),
        (f"status {measured.id} -o json", lambda found: found["runs"][0]),
    ):
        code, out, _ = desk.type(command)
        found = record(json.loads(out))
        assert (code, found["requested"], found["used"]) == (0, REQUESTED, USED), command
        assert found["enough"] == {name: value for name, value in ENOUGH.items() if name != "gpu_memory"}, command
    code, out, _ = desk.type(f"usage {measured.id} -o csv")
    assert {row["name"]: float(row["used"]) for row in csv.DictReader(io.StringIO(out))} == USED
    code, _, err = desk.type(f"report {measured.id} --output page.html")
    assert code == 0, err
    page = (desk.project / "page.html").read_text()
    for name, *cells in TABLE:
        written = "".join(f"<td>{cell}</td>" for cell in cells)
        assert f'<th scope="row">{name}</th>{written}' in page, name


def test_of_a_run_that_goes_on_nothing_is_enough_yet(desk: Desk, measured: RunDir) -> None:
    measured.finished_json.unlink()
    host = read_json(measured.attempt(1).host_json)
    write_json(measured.attempt(1).host_json, {key: host[key] for key in ("start", "signal")})
    code, out, _ = desk.type(f"usage {measured.id} -o json")
    found = json.loads(out)
    assert (code, found["used"]["memory"], set(found["enough"].values())) == (0, USED["memory"], {None})
    assert "enough is only known once the run has finished" in desk.type(f"usage {measured.id}")[2]

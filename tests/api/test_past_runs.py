"""What the last finished runs of a job needed: the line after `submit`, and requests that are `auto`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusterctl
from clusterctl.launcher.api.submitting.past_runs import advice, past_needs
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Job

Fabricate = Callable[..., RunDir]
GIB = 2**30


def finished(fabricate: Fabricate, number: int, *, gib: float | None = 4.0, seconds: int = 600, **job: Any) -> RunDir:
    """A finished run of cora on 2 nodes; `job` are changes of its record, by table."""
    peak = None if gib is None else {"memory": int(gib * GIB), "cpu": 1.0, "cgroup": True}
    run = fabricate(
        f"cora-2026010{number}-000000-aaaa",
        {
            "attempts/0/host.json": {"attempt": 0, "start": 1000, "end": 1000 + seconds, "exit_code": 0},
            "attempts/0/telemetry/node1.jsonl": [{"time": 1100, "seconds": 5, "memory": 1, "peak": peak}],
            "attempts/0/telemetry/node2.jsonl": [{"time": 1100, "seconds": 5, "memory": 1}],
            "finished.json": {"time": 1000 + seconds, "attempt": 0},
        },
    )
    record = read_json(run.run_json)
    for table, changes in {"resources": {"memory": "64G"}, **job}.items():
        record["job"][table] |= changes
    write_json(run.run_json, record)
    return run


def job_of(run: RunDir, **resources: Any) -> Job:
    job = read_record(run).job
    return replace(job, resources=replace(job.resources, **resources))


def test_a_request_far_above_what_three_runs_needed_gets_one_line_with_the_flags(fabricate: Fabricate) -> None:
    runs = [finished(fabricate, number, gib=number) for number in (1, 2, 3)]
    line = advice(job_of(runs[0], time=3600), runs[0].path.parent)
    assert line == (
        "the last 3 runs of this job needed at most 3G of 64G memory and 10m00s of 1h00m: "
        '`resources.memory = "4G"` `resources.time = "15m"`'
    )


def test_runs_that_have_not_started_are_not_read(fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in them: a submission does not wait for it."""
    runs = [fabricate(f"cora-2026010{number}-000000-aaaa", {}) for number in (1, 2, 3, 4)]
    runs[0].attempts_folder.mkdir(exist_ok=True)
    runs[1].attempts_folder.write_text("a file")
    runs[2].attempts_folder.symlink_to(runs[2].attempts_folder)
    runs[3].attempt(0).path.mkdir(parents=True)
    finished(fabricate, 5), finished(fabricate, 6)

    def read(*_: object) -> None:
        raise AssertionError("runs were read")

    monkeypatch.setattr("clusterctl.launcher.api.submitting.past_runs.past_needs", read)
    assert advice(job_of(runs[0]), runs[0].path.parent) == ""
    finished(fabricate, 7)
    with pytest.raises(AssertionError, match="runs were read"):
        advice(job_of(runs[0]), runs[0].path.parent)


def test_a_request_just_above_what_they_needed_gets_the_larger_one(fabricate: Fabricate) -> None:
    runs = [finished(fabricate, number, gib=61) for number in (1, 2, 3)]
    assert advice(job_of(runs[0]), runs[0].path.parent) == (
        'the last 3 runs of this job needed at most 61G of 64G memory: `resources.memory = "77G"`'
    )


def test_memory_for_each_cpu_gets_that_key(fabricate: Fabricate) -> None:
    runs = [finished(fabricate, number) for number in (1, 2, 3)]
    line = advice(job_of(runs[0], memory=None, mem_per_cpu="16G", cpus_per_task=2), runs[0].path.parent)
    assert line.endswith('4G of 64G memory: `resources.mem_per_cpu = "1280M"`')


@pytest.mark.parametrize(
    "of_another",
    [
        {"resources": {"nodes": 3}},
        {"resources": {"tasks_per_node": 1}},
        {"train": {"batch_size": 7}},
        {"data": {"root": "/elsewhere"}},
    ],
)
def test_runs_that_may_need_something_else_do_not_count(fabricate: Fabricate, of_another: dict[str, Any]) -> None:
    others = [finished(fabricate, number, gib=1, **of_another) for number in (1, 2, 3)]
    own = finished(fabricate, 4)
    assert past_needs(job_of(own), own.path.parent) == ((own.id,), 4 * GIB, 600)
    assert advice(job_of(own), others[0].path.parent) == ""


def test_runs_with_another_seed_or_learning_rate_count(fabricate: Fabricate) -> None:
    for number in (1, 2, 3):
        last = finished(fabricate, number, train={"seed": number, "lr": 0.1 * number})
    assert len(past_needs(job_of(last), last.path.parent).runs) == 3


def test_neither_failed_nor_damaged_runs_nor_those_without_telemetry_determine_a_need(fabricate: Fabricate) -> None:
    failed = finished(fabricate, 1, gib=1)
    (failed.path / "finished.json").unlink()
    write_json(failed.attempt(0).host_json, {"attempt": 0, "start": 1, "end": 2, "exit_code": 1})
    finished(fabricate, 2).run_json.write_text("{")
    unmeasured = finished(fabricate, 3, gib=None)
    assert past_needs(job_of(unmeasured), unmeasured.path.parent) == ((unmeasured.id,), None, 600)


def program(desk_runs: Path, fabricate: Fabricate, argv: list[str], number: int) -> RunDir:
    run = finished(fabricate, number)
    record = read_json(run.run_json)
    record["job"] |= {"workload": "command", "argv": argv, "train": {}}
    write_json(run.run_json, record)
    return run


@pytest.mark.parametrize(
    ("words", "is_same"),
    [
        (["--lr", "3", "--seed=4", "--epochs", "2"], True),
        (["--learning_rate=9", "--epochs", "2"], True),
        (["--epochs", "3"], False),
        (["--epochs", "2", "--batch-size", "8"], False),
    ],
)
def test_options_of_a_program_that_cost_nothing_do_not_matter(
    fabricate: Fabricate, tmp_path: Path, words: list[str], is_same: bool
) -> None:
    first = program(tmp_path, fabricate, ["python", "train.py", "--epochs", "2"], 1)
    second = program(tmp_path, fabricate, ["python", "train.py", *words], 2)
    assert (len(past_needs(job_of(first), second.path.parent).runs) == 2) is is_same


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a job file like the fabricated runs', on the emulator."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")
    path = tmp_path / "cora.toml"
    path.write_text(
        'workload = "reddit"\n[resources]\nnodes = 2\ntasks_per_node = 2\nmemory = "auto"\ntime = "auto"\n'
        '[data]\nroot = "/data"\n'
    )
    return path


def test_auto_takes_what_the_last_runs_needed_with_headroom(fabricate: Fabricate, at_home: Path) -> None:
    for number, gib in ((1, 30), (2, 8), (3, 4), (4, 6)):  # the first is not among the last three
        finished(fabricate, number, gib=gib, seconds=1200, data={"root": "/data"})
    found = clusterctl.plan(str(at_home))
    resources = found.resolved.job.resources
    assert (resources.memory, resources.time, resources.warning) == ("10G", 1800, 120)
    assert found.resolved.origins["resources.memory"] == "history: a quarter more than the last 3 runs needed"
    assert found.resolved.origins["resources.time"] == "history: half more than the last 3 runs needed"
    assert "#SBATCH --mem=10G\n" in found.script


def test_auto_without_a_run_names_what_is_missing(fabricate: Fabricate, at_home: Path) -> None:
    finished(fabricate, 1, data={"root": "/data"}, resources={"nodes": 4})
    with pytest.raises(clusterctl.ConfigError, match="auto needs an earlier run: no finished run of cora") as caught:
        clusterctl.plan(str(at_home))
    assert caught.value.hint == 'name it this time: `resources.memory = "16G"`'
    assert clusterctl.plan(str(at_home), overrides={"resources.memory": "1G", "resources.time": 60})


def test_a_batch_script_has_no_auto(at_home: Path) -> None:
    script = at_home.with_name("train.sbatch")
    script.write_text("#!/bin/bash\ntrue\n")
    with pytest.raises(clusterctl.ConfigError, match="memory"):
        clusterctl.plan(str(script), overrides={"resources.memory": "auto"})


def test_editors_know_auto() -> None:
    schema = json.loads((Path(clusterctl.__file__).parent / "schemas" / "job.json").read_text())
    for name in ("memory", "time"):
        assert {"enum": ["auto"]} in schema["properties"]["resources"]["properties"][name]["anyOf"]

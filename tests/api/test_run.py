"""Querying a run from Python: its records, logs and end; and finding runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import clusterctl
from clusterctl.launcher.observe.sweeps import best_value
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import metric_of
from clusterctl.shared.spec import Job, Resources, to_record
from clusterctl.shared.spec.job import Role

Fabricate = Callable[..., RunDir]
A, B = "cora-20260101-000000-aaaa", "reddit-20260102-000000-bbbb"
FAILED = {"attempts/0/host.json": {"attempt": 0, "start": 1, "end": 2, "exit_code": 3}}


def test_repeated_steps_count_once(fabricate: Fabricate) -> None:
    first = [{"step": step, "loss": 1.0} for step in (1, 2, 3)] + [{"epoch": 1, "val_accuracy": 0.5, "step": 3}]
    second = [{"step": step, "loss": 0.5} for step in (3, 4)]
    run = clusterctl.Run(fabricate(A, {"attempts/0/metrics.jsonl": first, "attempts/1/metrics.jsonl": second}).path)
    found = [(record["attempt"], record["step"], record["loss"]) for record in run.metrics()]
    assert found == [(0, 1, 1.0), (0, 2, 1.0), (1, 3, 0.5), (1, 4, 0.5)]


def test_a_value_of_a_step_that_was_repeated_is_not_the_best(fabricate: Fabricate) -> None:
    lucky, again = {"step": 3, "val_accuracy": 0.9}, {"step": 3, "val_accuracy": 0.6}
    first = [{"step": 2, "val_accuracy": 0.7}, lucky]
    run = fabricate(A, {"attempts/0/metrics.jsonl": first, "attempts/1/metrics.jsonl": [again]})
    assert best_value(run, {"val_accuracy": 0.6}) == (metric_of("val_accuracy"), 0.7)


def test_a_damaged_line_of_the_metrics_is_skipped(fabricate: Fabricate) -> None:
    run = fabricate(A, {"attempts/0/metrics.jsonl": '{"step": 1}\n{"ste\n[]\n{"step": "x"}\n{"step": 2'})
    assert [record["step"] for record in clusterctl.Run(run.path).metrics()] == [1, "x"]


def test_records_become_a_data_frame_if_pandas_is_installed(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = clusterctl.Run(fabricate(A, {"attempts/0/metrics.jsonl": [{"step": 1}]}).path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(clusterctl.UsageError) as caught:
        run.metrics().to_pandas()
    assert caught.value.hint == "pip install pandas"
    pandas: Any = ModuleType("pandas")
    pandas.DataFrame = lambda rows: SimpleNamespace(rows=rows)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert run.metrics().to_pandas().rows == [{"attempt": 0, "step": 1}]


def test_logs_can_be_selected_by_rank_stream_and_pattern(fabricate: Fabricate) -> None:
    files = {"attempts/0/logs/rank_00000.out": "one\ntwo\n", "attempts/0/logs/rank_00001.err": "bad\n"}
    run = clusterctl.Run(fabricate(A, files).path)
    assert sorted(str(line) for line in run.logs()) == ["bad", "one", "two"]
    assert [str(line) for line in run.logs(0, tail=1)] == ["two"]
    assert [str(line) for line in run.logs(stream="err")] == ["bad"]
    assert [str(line) for line in run.logs(grep="^o")] == ["one"]
    with pytest.raises(clusterctl.NotFoundError):
        list(run.logs(7))
    with pytest.raises(clusterctl.UsageError):
        run.logs(stream="both")


def test_logs_can_be_selected_by_role_and_rank_in_it(fabricate: Fabricate) -> None:
    roles = {"server": Role(program=("x",), nodes=1), "trainer": Role(program=("x",), nodes=1, tasks_per_node=2)}
    job = Job(name="a", workload="command", role=roles, resources=Resources(nodes=2, tasks_per_node=2))
    whole = read_json(fabricate(A).run_json)
    logs = {f"attempts/0/logs/rank_{rank:05}.out": f"of {rank}\n" for rank in (0, 1, 2, 3)}  # 1 is idle
    run = clusterctl.Run(fabricate(A, {"run.json": {**whole, "job": to_record(job)}, **logs}).path)
    assert [str(line) for line in run.logs(role="trainer")] == ["of 2", "of 3"]
    assert [str(line) for line in run.logs(1, role="trainer")] == ["of 3"]
    assert run.rank_of("trainer", 1) == 3
    assert run.logs(role="trainer").ranks == 2
    for call, words in (
        (lambda: run.logs(role="trainr"), "no role trainr"),
        (lambda: run.logs(2, role="trainer"), "role trainer has no rank 2"),
        (lambda: clusterctl.Run(fabricate(B).path).logs(role="trainer"), "has no roles"),
    ):
        with pytest.raises(clusterctl.UsageError, match=words):
            call()


def test_waiting_for_a_failed_run_raises_with_its_findings(fabricate: Fabricate) -> None:
    run = clusterctl.Run(fabricate(A, FAILED).path)
    with pytest.raises(clusterctl.RunFailed, match=f"run {A} ended: failed: ") as caught:
        run.wait(timeout=5)
    error = caught.value
    assert (error.run, error.exit_code, error.hint) == (run, 1, f"clusterctl why {A}")
    assert error.message.endswith(str(error.diagnosis.findings[0]))


def test_runs_are_found_by_name_state_and_age(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("CLUSTERCTL_CLUSTER", raising=False)
    fabricate(A, FAILED)
    fabricate(B, {"finished.json": {"attempt": 0, "time": 5}})
    assert [run.name for run in clusterctl.runs()] == ["reddit", "cora"]
    assert [run.id for run in clusterctl.runs(count=1)] == [B]
    assert [run.id for run in clusterctl.runs(name="co*")] == [A]
    assert [run.id for run in clusterctl.runs(state="failed")] == [A]
    assert [run.id for run in clusterctl.runs(state=["failed", "finished"])] == [B, A]
    assert clusterctl.runs(since="1h") == []
    assert clusterctl.find("cora") == clusterctl.Run(tmp_path / "runs" / A)
    with pytest.raises(clusterctl.UsageError, match="no such state: fail"):
        clusterctl.runs(state="fail")
    with pytest.raises(clusterctl.NotFoundError, match="no run named: crao"):
        clusterctl.find("crao")

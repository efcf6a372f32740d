"""Notifications that the login node sends for runs that cannot send them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import CREATED, RUN_ID, Fabricate

import clusterctl
from clusterctl.shared.record.layout import RUN_FORMAT, RunDir
from clusterctl.shared.spec import Cluster, Job, to_record
from clusterctl.shared.spec.job import Notify

OTHER = "reddit-20260102-030405-00a2"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm that has forgotten all jobs; the file that logs the calls of its commands."""
    log, commands = tmp_path / "asked", tmp_path / "bin"
    commands.mkdir()
    for name, code in (("squeue", 0), ("sacct", 1), ("scontrol", 1)):
        (commands / name).write_text(f'#!/bin/sh\necho {name} >>"{log}"\nexit {code}\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "")
    for name in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    return log


def lost_run(fabricate: Fabricate, messages: Path, run_id: str = RUN_ID, **more: Any) -> RunDir:
    notify = Notify(command=("sh", "-c", 'cat >>"$0"', str(messages)))
    job = Job(name=run_id.split("-")[0], workload="command", argv=("x",), notify=notify)
    record = {"schema_version": RUN_FORMAT, "id": run_id, "created": CREATED, "job": to_record(job)}
    cluster = to_record(Cluster(name="site", polling_floor=0))
    host = {"attempt": 0, "job_id": "12", "restart_count": 0, "nodes": "n1", "start": CREATED + 5}
    files = {"run.json": {**record, "cluster": cluster}, "attempts/0/host.json": host}
    return fabricate(run_id, {"submission.json": {"job_id": "12", "time": CREATED + 1}, **files, **more})


def test_lost_runs_are_notified_once_with_one_slurm_query(fabricate: Fabricate, asked: Path, tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    lost_run(fabricate, messages)
    lost_run(fabricate, messages, OTHER)
    sent = clusterctl.notify().tries
    assert {(one.run, one.what.name, one.delivery.outcome) for one in sent} == {
        (RUN_ID, "failed-0", "sent"),
        (OTHER, "failed-0", "sent"),
    }
    assert asked.read_text().split().count("squeue") == 1
    assert messages.read_text().count(" failed") == 2
    assert clusterctl.notify().tries == ()


def test_an_unwritable_run_does_not_stop_notifications_about_others(
    fabricate: Fabricate, asked: Path, tmp_path: Path
) -> None:
    lost_run(fabricate, tmp_path / "messages")
    lost_run(fabricate, tmp_path / "messages", OTHER, notified="a file where a folder belongs")
    found = clusterctl.notify()
    assert [one.run for one in found.tries] == [RUN_ID]
    assert f"cannot notify about {OTHER}" in "\n".join(problem.message for problem in found.problems)

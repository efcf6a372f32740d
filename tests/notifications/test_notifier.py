"""Notifications about a run, from its files, to a real webhook and real commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import CREATED, RUN_ID, Fabricate
from support.web_hook import TOKEN, WebHook, dead_url, web_hook

import clusterctl
from clusterctl.launcher.notifications.notifier import Notifier
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.layout import RUN_FORMAT, RunDir
from clusterctl.shared.spec import Cluster, Job, to_record
from clusterctl.shared.spec.job import Notify

NOTIFIER = Path(clusterctl.__file__).parent / "launcher" / "notifications"
HOST = {"attempt": 0, "job_id": "12", "restart_count": 0, "nodes": "n1", "start": CREATED + 5}
FAILED = {**HOST, "end": CREATED + 65, "exit_code": 1, "signal": ""}
EVENT = {"rank": 0, "time": CREATED + 60, "event": "exception", "type": "ValueError", "message": f"no good: {TOKEN}"}
ALARM = {"time": CREATED + 30, "seen": 0, "phase": "training", "still_seconds": 45.0, "suspects": [1], "how": "behind"}


@pytest.fixture
def server() -> Iterator[WebHook]:
    with web_hook() as hook:
        yield hook


def run_of(fabricate: Fabricate, notify: Notify, files: dict[str, Any] | None = None) -> RunDir:
    job = Job(name="cora", workload="command", argv=("x",), notify=notify)
    record = {"schema_version": RUN_FORMAT, "id": RUN_ID, "created": CREATED, "job": to_record(job)}
    found = {
        "run.json": {**record, "cluster": to_record(Cluster(name="site"))},
        "submission.json": {"job_id": "12", "time": CREATED + 1},
        "attempts/0/host.json": FAILED,
        "attempts/0/metrics.jsonl": [{"step": step, "val_accuracy": 0.1 * step % 0.35} for step in range(8)],
        "attempts/0/nodes/00000.events.jsonl": [EVENT],
        **(files or {}),
    }
    return fabricate(RUN_ID, found)


def on_node(run: RunDir, **environment: str) -> str:
    """Start the notifier as the batch script does; returns its output."""
    words = [sys.executable, "-I", "-S", str(NOTIFIER), str(run.path)]
    done = subprocess.run(words, env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_failure_is_sent_once_with_its_cause_duration_and_best_metric(fabricate: Fabricate, server: WebHook) -> None:
    run = run_of(fabricate, Notify(url_variable="HOOK", format="slack"))
    for _ in range(2):
        assert on_node(run, HOOK=server.url, API_TOKEN=TOKEN) == ""
    (text,) = server.texts()
    assert text.startswith("cora failed after 1m00s: ")
    assert "ValueError: no good: ***" in text
    assert "best val accuracy 0.3000" in text
    assert {path.name: path.read_text() for path in run.notified.iterdir()} == {"failed-0.webhook.0": "sent\n"}


def test_a_refused_message_is_retried_later_and_the_url_is_never_stored(fabricate: Fabricate, server: WebHook) -> None:
    run = run_of(fabricate, Notify(url_variable="HOOK"))
    server.manner = 500
    assert on_node(run, HOOK=server.url) == "clusterctl[notify]: failed: webhook: refused: HTTP status 500\n"
    assert "refused: Connection refused" in on_node(run, HOOK=dead_url())
    assert "HOOK is not set in the environment" in on_node(run)
    server.manner = 200
    assert on_node(run, HOOK=server.url) == ""
    assert server.events() == ["failed", "failed"]
    files = [path for path in run.path.rglob("*") if path.is_file() and "nodes" not in path.parts]
    assert [path for path in files if TOKEN in path.read_text()] == []


def test_a_hanging_webhook_times_out_and_is_never_retried(fabricate: Fabricate, server: WebHook) -> None:
    run = run_of(fabricate, Notify(url_variable="HOOK"))
    server.manner = "hang"
    assert "unknown: no response" in on_node(run, HOOK=server.url)
    server.manner = 200
    assert on_node(run, HOOK=server.url) == ""
    assert len(server.received) == 1


def test_a_command_and_a_webhook_both_get_the_message(fabricate: Fabricate, server: WebHook, tmp_path: Path) -> None:
    argv = ("sh", "-c", 'echo "$CLUSTERCTL_EVENT $CLUSTERCTL_RUN_DIR" >>"$0"; cat >>"$0"', str(tmp_path / "heard"))
    run = run_of(fabricate, Notify(url_variable="HOOK", command=argv))
    on_node(run, HOOK=server.url)
    assert server.events() == ["failed"]
    first, second, *_ = (tmp_path / "heard").read_text().splitlines()
    assert first == f"failed {run.path}"
    assert second.startswith("cora failed after 1m00s")


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("behind", "rank 1 made no progress for 45s (training)"),
        ("idle", "all ranks idle for 45s"),
        ("idle-gpus", "all GPUs idle for 45s"),
    ],
)
def test_an_alarm_of_the_watchdog_is_sent_while_the_run_is_running(
    fabricate: Fabricate, server: WebHook, how: str, cause: str
) -> None:
    files = {"attempts/0/host.json": HOST, "attempts/0/hang-report.json": {**ALARM, "how": how}}
    on_node(run_of(fabricate, Notify(url_variable="HOOK"), files), HOOK=server.url)
    (message,) = server.received
    assert (message["event"], message["cause"]) == ("stalled", cause)


def test_only_the_configured_events_are_sent(fabricate: Fabricate, server: WebHook) -> None:
    wanted = Notify(url_variable="HOOK", events=("finished", "stalled"))
    assert on_node(run_of(fabricate, wanted), HOOK=server.url) == ""
    assert on_node(run_of(fabricate, Notify()), HOOK=server.url) == ""
    assert server.received == []


def test_no_delivery_starts_that_could_take_too_long(fabricate: Fabricate, server: WebHook) -> None:
    run = run_of(fabricate, Notify(url_variable="HOOK"))
    (status,) = statuses_of([run], never_queried).statuses
    assert (
        list(Notifier({"HOOK": server.url}, never_queried, deadline=100.0, clock=lambda: 95.0).send_pending(status))
        == []
    )
    assert not run.notified.exists()


def test_another_users_run_starts_no_command(fabricate: Fabricate, tmp_path: Path) -> None:
    run = run_of(fabricate, Notify(command=("touch", str(tmp_path / "ran"))))
    (status,) = statuses_of([run], never_queried).statuses
    theirs = replace(status, record=replace(status.record, is_ours=False))
    assert list(Notifier(dict(os.environ), never_queried).send_pending(theirs)) == []
    assert not (tmp_path / "ran").exists()


def test_a_damaged_run_ends_the_notifier_with_one_line(fabricate: Fabricate) -> None:
    run = fabricate(RUN_ID, {"run.json": "{"})
    assert on_node(run) in ("", f"clusterctl[notify]: cannot read {run.run_json}: not JSON\n")


def never_queried(_: Cluster) -> Slurm:
    raise SlurmError("not asked")


def test_the_json_is_valid_even_if_the_loss_is_nan(fabricate: Fabricate, server: WebHook) -> None:
    metrics = '{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n'
    run = run_of(fabricate, Notify(url_variable="HOOK"), {"attempts/0/metrics.jsonl": metrics})
    on_node(run, HOOK=server.url)
    assert server.received[0]["best"] is None
    assert json.dumps(server.received[0])

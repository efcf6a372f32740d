"""The real trackers get each point once, even if a mirror crashes before it saves its position."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import CREATED, RUN_ID, Fabricate
from support.made_runs import tracked_run
from support.scenario import wait_until

from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.trackers.mirror import Mirror
from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.job import Track

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # warnings of the libraries


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def write(run: RunDir, attempt: int, *steps: int) -> None:
    path = run.attempt(attempt).metrics
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"time": CREATED + step, "step": step, "loss": 1 / step}) + "\n")


def mirror_through_restart_and_crash(run: RunDir, name: str) -> None:
    """Steps 1 to 3, a mirror that crashes after sending 4, a restart from 2, a failure, a resume to the end."""
    bookmark = run.trackers / f"{name}.json"
    write(run, 0, 1, 2, 3)
    update(run, name)
    before = bookmark.read_text()
    write(run, 0, 4)
    update(run, name)
    bookmark.write_text(before)
    write(run, 1, 3, 4, 5)
    update(run, name, State.FAILED)
    write(run, 2, 5, 6)
    update(run, name, State.FINISHED)
    update(run, name, State.FINISHED)


def update(run: RunDir, name: str, state: State = State.TRAINING) -> None:
    record = read_record(run)
    mirror = Mirror(name, record)
    mirror.update(Status(record, state, True, "12", (), False, "", None, None))
    mirror.close()


def test_tensorboard_reads_each_step_once(fabricate: Fabricate) -> None:
    accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tracked_run(fabricate, Track(tensorboard=True))
    mirror_through_restart_and_crash(run, "tensorboard")
    events = accumulator.EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert [(one.step, round(one.value, 3)) for one in events.Scalars("loss")] == [
        *((1, 1.0), (2, 0.5), (3, 0.333), (4, 0.25), (5, 0.2), (6, 0.167))
    ]
    (settings,) = events.Tensors("settings/text_summary")
    assert b"|workload|command|" in settings.tensor_proto.string_val[0]
    assert [one.tensor_proto.string_val[0] for one in events.Tensors("state/text_summary")] == [b"failed", b"finished"]


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    """Start a real MLflow server on loopback with its store in `folder`; yields its address."""
    words = [
        "server",
        "--host=127.0.0.1",
        f"--port={port}",
        "--workers=1",
        f"--backend-store-uri=sqlite:///{folder}/db",
    ]
    words += [f"--default-artifact-root={folder}/artifacts"]
    address, log = f"http://127.0.0.1:{port}", folder / "server.log"
    with log.open("a") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words], stdout=file, stderr=file, start_new_session=True
        )
    try:
        wait_until(lambda: _answers(f"{address}/health"), 120, "the MLflow server")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # a crash, as far as the mirror can tell
        process.wait()


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1) as answer:
        return bool(answer.status == 200)
    return False


def test_an_mlflow_server_gets_one_run_with_each_step_once(fabricate: Fabricate, tmp_path: Path, port: int) -> None:
    """Through a restart of the run, a mirror that crashes, and a server outage."""
    tracking: Any = pytest.importorskip("mlflow.tracking")
    with mlflow_server(tmp_path, port) as address:
        run = tracked_run(fabricate, Track(mlflow=address))
        mirror_through_restart_and_crash(run, "mlflow")
    write(run, 2, 7)
    began = time.monotonic()
    with pytest.raises(ClusterctlError, match="mlflow: MlflowException: "):
        update(run, "mlflow")
    assert time.monotonic() - began < 30
    with mlflow_server(tmp_path, port):
        update(run, "mlflow", State.FINISHED)
        client = tracking.MlflowClient(tracking_uri=address)
        experiment = client.get_experiment_by_name("cora")
        (found,) = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(found.info.run_id, "loss")
    assert sorted(one.step for one in history) == [1, 2, 3, 4, 5, 6, 7]
    assert (found.info.status, found.info.run_name) == ("FINISHED", RUN_ID)
    assert (found.data.params["workload"], found.data.params["env.A_TOKEN"]) == ("command", "***")
    assert found.data.tags["clusterctl.state"] == "finished"


def logged_offline(path: Path) -> list[tuple[int, dict[str, float]]]:
    """The steps in a W&B file, with their values: a log of protobuf messages in LevelDB's format."""
    protobuf: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, message, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # the rest of the block is too short for a header
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += 7 + length
        message += data[at - length : at]
        if kind in (1, 4):  # a full record, or its last part
            history, message = protobuf.Record.FromString(message).history, b""
            values = {item.nested_key[0]: float(item.value_json) for item in history.item}
            found += [(int(history.step.num), values)] if values else []
    return found


@pytest.fixture
def wandb() -> Iterator[Any]:
    library: Any = pytest.importorskip("wandb")
    library.teardown()  # it caches the environment of its first run
    yield library
    library.teardown()


@pytest.mark.usefixtures("wandb")
def test_wandb_offline_has_each_step_at_its_original_time(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, W&B starts a new file each time it is opened: step 4 is repeated there after the crash."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tracked_run(fabricate, Track(wandb="project"))
    mirror_through_restart_and_crash(run, "wandb")
    parts = [logged_offline(path) for path in run.trackers.glob(f"wandb/offline-run-*/run-{RUN_ID}.wandb")]
    steps = sorted((step, values["loss"], values["_timestamp"]) for part in parts for step, values in part)
    once = [(step, 1 / step, CREATED + step) for step in range(1, 7)]
    assert steps == sorted([*once, once[3]])


@pytest.mark.usefixtures("wandb")
def test_an_unreachable_wandb_server_fails_quickly(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    run = tracked_run(fabricate, Track(wandb="project"))
    write(run, 0, 1)
    began = time.monotonic()
    with pytest.raises(ClusterctlError, match="wandb: CommError: "):
        update(run, "wandb")
    assert time.monotonic() - began < 45

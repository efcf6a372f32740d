"""The real trackers get each point once, also from a mirror that died before it could note what it had handed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import CREATED, RUN_ID, Fabricate

from clusterctl.observe.run_record import read_record
from clusterctl.observe.stage import Status
from clusterctl.runs.layout import RUN_FORMAT, RunDir
from clusterctl.runs.stages import Stage
from clusterctl.spec import Cluster, Job, to_record
from clusterctl.spec.track import Track
from clusterctl.trackers.mirror import Mirror

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # theirs


def run_of(fabricate: Fabricate, track: Track) -> RunDir:
    job = Job(name="cora", workload="command", argv=("x",), env={"A_TOKEN": "***"}, track=track)
    record = {"schema_version": RUN_FORMAT, "id": RUN_ID, "created": CREATED, "job": to_record(job)}
    return fabricate(RUN_ID, {"run.json": {**record, "cluster": to_record(Cluster(name="site"))}})


def write(run: RunDir, attempt: int, *steps: int) -> None:
    path = run.attempt(attempt).metrics
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"time": CREATED + step, "step": step, "loss": 1 / step}) + "\n")


def mirror_through_a_restart_and_a_death(run: RunDir, name: str) -> None:
    """Steps 1 to 3, a mirror that dies having handed over 4, a restart from 2, a failure, a resume to the end."""
    bookmark = run.trackers / f"{name}.json"
    write(run, 0, 1, 2, 3)
    update(run, name)
    before = bookmark.read_text()
    write(run, 0, 4)
    update(run, name)
    bookmark.write_text(before)
    write(run, 1, 3, 4, 5)
    update(run, name, Stage.FAILED)
    write(run, 2, 5, 6)
    update(run, name, Stage.FINISHED)
    update(run, name, Stage.FINISHED)


def update(run: RunDir, name: str, stage: Stage = Stage.TRAINING) -> None:
    record = read_record(run)
    mirror = Mirror(name, record)
    mirror.update(Status(record, stage, True, "12", (), False, "", None, None))
    mirror.close()


def test_tensorboard_reads_each_step_once(fabricate: Fabricate) -> None:
    accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = run_of(fabricate, Track(tensorboard=True))
    mirror_through_a_restart_and_a_death(run, "tensorboard")
    events = accumulator.EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert [(one.step, round(one.value, 3)) for one in events.Scalars("loss")] == [
        *((1, 1.0), (2, 0.5), (3, 0.333), (4, 0.25), (5, 0.2), (6, 0.167))
    ]
    (settings,) = events.Tensors("settings/text_summary")
    assert b"|workload|command|" in settings.tensor_proto.string_val[0]
    assert [one.tensor_proto.string_val[0] for one in events.Tensors("stage/text_summary")] == [b"failed", b"finished"]


def test_mlflow_has_one_run_with_each_step_once(fabricate: Fabricate, tmp_path: Path) -> None:
    tracking: Any = pytest.importorskip("mlflow.tracking")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = run_of(fabricate, Track(mlflow=uri))
    mirror_through_a_restart_and_a_death(run, "mlflow")
    client = tracking.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("cora")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    assert sorted(one.step for one in history) == [1, 2, 3, 4, 5, 6]
    assert (found.info.status, found.info.run_name) == ("FINISHED", RUN_ID)
    assert (found.data.params["workload"], found.data.params["env.A_TOKEN"]) == ("command", "***")
    assert found.data.tags["clusterctl.stage"] == "finished"


def test_wandb_writes_one_run_offline(fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = run_of(fabricate, Track(wandb="project"))
    mirror_through_a_restart_and_a_death(run, "wandb")
    files = sorted(run.trackers.glob(f"wandb/offline-run-*-{RUN_ID}/run-{RUN_ID}.wandb"))
    assert files

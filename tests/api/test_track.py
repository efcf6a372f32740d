"""`track`: what it refuses, and that a run is tracked by one process at a time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from conftest import CREATED, RUN_ID, Fabricate

import clusterctl
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.layout import RUN_FORMAT, RunDir
from clusterctl.shared.record.once import BEAT_SECONDS, LeaseTaken, leased
from clusterctl.shared.spec import Cluster, Job, to_record
from clusterctl.shared.spec.job import Track


def run_of(fabricate: Fabricate, track: Track) -> RunDir:
    job = Job(name="cora", workload="command", argv=("x",), track=track)
    record = {"schema_version": RUN_FORMAT, "id": RUN_ID, "created": CREATED, "job": to_record(job)}
    return fabricate(RUN_ID, {"run.json": {**record, "cluster": to_record(Cluster(name="site"))}})


def test_a_run_without_a_tracker_is_refused(fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(fabricate, Track())
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(run.path.parent))
    with pytest.raises(UsageError, match="has no trackers configured") as caught:
        clusterctl.track(RUN_ID)
    assert "[track]" in caught.value.hint


def test_a_run_has_one_mirror_at_a_time(fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(fabricate, Track(tensorboard=True))
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(run.path.parent))
    run.trackers.mkdir()
    with leased(run.trackers / "lease"), pytest.raises(UsageError, match="is already being tracked"):
        clusterctl.track(RUN_ID)


def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    lease = tmp_path / "lease"
    lease.mkdir()
    with leased(lease, stale_seconds=0.5):
        assert lease.is_dir()
    assert not lease.exists()


def test_a_lease_that_is_renewed_is_respected(tmp_path: Path) -> None:
    lease, done = tmp_path / "lease", threading.Event()
    lease.mkdir()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS / 20):
            os.utime(lease, (time.time(), time.time()))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(LeaseTaken), leased(lease):
            pass
    finally:
        done.set()
        thread.join()
    assert lease.is_dir()

"""A busy run to show, in the time zone of the golden files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest
from support.made_runs import NOW, busy_files

from clusterctl.launcher.observe.overview import Overview
from clusterctl.launcher.slurm import Snapshot
from clusterctl.launcher.slurm.jobs import Accounted
from clusterctl.launcher.slurm.queue import JobState, QueuedJob

WAITING = {"submission.json": {"job_id": "4243"}}


class FakeSlurm:
    """Two jobs: one running, one pending."""

    def snapshot(self) -> Snapshot:
        running = QueuedJob("4242", JobState.RUNNING, "", "node[0-3]", 1_000_260, None, 1, "")
        waiting = QueuedJob("4243", JobState.PENDING, "Resources", "", None, None, 0, "")
        return Snapshot({"4242": running, "4243": waiting}, NOW - 3)

    def accounted(self, job_ids: Sequence[str]) -> tuple[Accounted, ...]:
        return ()


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def overview(fabricate) -> Overview:
    """A busy run, newer than a queued one."""
    fabricate("gin-20260101-030405-00a1", WAITING, created=NOW - 7200)
    run = fabricate(files=busy_files())
    return Overview(run.path.parent, slurm_of=lambda cluster: FakeSlurm(), clock=lambda: NOW)

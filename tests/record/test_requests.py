"""Whether a request for a restart reports progress."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import request_restart, wait_for_request


@pytest.mark.parametrize(
    ("before", "details", "progress"),
    [
        ({}, {"step": 5}, True),
        ({"step": 4}, {"step": 5}, True),
        ({"step": 5}, {"step": 5}, False),
        ({"step": 5}, {}, True),
        ({"step": 5}, {"step": 5, "progress": True}, True),
        ({}, {"step": 5, "progress": False}, False),
    ],
)
def test_a_request_at_the_previous_requests_step_shows_no_progress(
    tmp_path: Path, before: dict[str, Any], details: dict[str, Any], progress: bool
) -> None:
    run = RunDir(tmp_path)
    request_restart(run.attempt(0), "warned", **before)
    request_restart(run.attempt(1), "hang", **details)
    record = read_json(run.requeue_json)
    assert (record["attempt"], record["reason"], record["progress"]) == (1, "hang", progress)


def test_a_damaged_request_is_ignored(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.requeue_json.write_text("{")
    request_restart(run.attempt(1), "warned", step=1)
    assert read_json(run.requeue_json)["progress"] is True


def test_other_ranks_wait_for_this_attempts_request(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    request_restart(run.attempt(0), "warned", step=1)
    assert not wait_for_request(run.attempt(1), seconds=0.05)
    requesting = threading.Timer(0.2, request_restart, [run.attempt(1), "warned"], {"step": 2})
    requesting.start()
    assert wait_for_request(run.attempt(1))
    requesting.join()

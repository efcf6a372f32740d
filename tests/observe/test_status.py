"""The status of many runs: whom it asks, and what stands in the way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import SlurmError
from clusterctl.observe.status import report, to_json
from clusterctl.runs.files import read_json
from clusterctl.runs.layout import RunDir
from clusterctl.runs.stages import Stage
from clusterctl.slurm import Slurm

Fabricate = Callable[..., RunDir]
A, B, C = "a-20260101-000000-aaaa", "b-20260101-000000-bbbb", "c-20260101-000000-cccc"
NOW = 1_000_500.0


class Queue:
    """A Slurm with these jobs, given as (id, state, folder); it counts the questions."""

    def __init__(self, *jobs: tuple[str, str, Path], silent: bool = False) -> None:
        self.questions = 0
        self._jobs = jobs
        self._silent = silent

    def __call__(self, cluster: object) -> Slurm:
        return Slurm(lambda command: command, {}, self._answer)

    def _answer(self, argv: object, environment: object) -> subprocess.CompletedProcess[str]:
        self.questions += 1
        if self._silent:
            raise subprocess.TimeoutExpired("squeue", 10)
        lines = ["\x1f".join([number, state, *["0"] * 5, str(folder), ""]) for number, state, folder in self._jobs]
        return subprocess.CompletedProcess([], 0, "\n".join(lines), "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def stages(runs: list[RunDir], queue: Queue) -> list[Stage]:
    return [status.stage for status in report(runs, queue, lambda: NOW).statuses]


def test_runs_that_ended_by_their_files_ask_nobody(fabricate: Fabricate) -> None:
    queue = Queue()
    runs = [
        fabricate(A, {"finished.json": {"time": 5}}),
        fabricate(B, {"attempts/0/host.json": {"start": 1, "end": 2, "exit_code": 1, "signal": ""}}),
    ]
    assert stages(runs, queue) == [Stage.FINISHED, Stage.FAILED]
    assert queue.questions == 0


def test_slurm_is_asked_once_for_all_runs(fabricate: Fabricate, folder: Path) -> None:
    queue = Queue(("1", "PENDING", folder / A), ("2", "RUNNING", folder / B))
    runs = [fabricate(run, {"submission.json": {"job_id": number}}) for run, number in ((A, "1"), (B, "2"), (C, "3"))]
    assert stages(runs, queue) == [Stage.QUEUED, Stage.STARTING, Stage.LOST]
    assert queue.questions == 1


def test_a_job_whose_submitter_died_is_found_by_its_folder_and_adopted(fabricate: Fabricate, folder: Path) -> None:
    run = fabricate(A)
    assert stages([run], Queue(("31", "PENDING", folder / A))) == [Stage.QUEUED]
    assert read_json(run.submission_json)["job_id"] == "31"


def test_a_job_that_has_begun_is_adopted_from_its_attempt(fabricate: Fabricate) -> None:
    run = fabricate(A, {"attempts/0/host.json": {"job_id": "32", "start": 1}})
    stages([run], Queue(("32", "RUNNING", Path("/elsewhere"))))
    assert read_json(run.submission_json)["job_id"] == "32"


def test_a_run_that_ended_between_the_files_and_the_question_is_not_lost(fabricate: Fabricate) -> None:
    run = fabricate(A, {"submission.json": {"job_id": "1"}, "attempts/0/host.json": {"start": 1}})

    class Ending(Queue):
        def _answer(self, argv: object, environment: object) -> subprocess.CompletedProcess[str]:
            run.finished_json.write_text('{"attempt": 0, "time": 9}')
            return super()._answer(argv, environment)

    assert stages([run], Ending()) == [Stage.FINISHED]


def test_a_silent_slurm_leaves_the_stages_of_the_files_and_says_so(fabricate: Fabricate) -> None:
    queue = Queue(silent=True)
    runs = [
        fabricate(A, {"submission.json": {"job_id": "1"}}),
        fabricate(B, {"finished.json": {"time": 5}}),
        fabricate(C, {"submission.json": {"job_id": "3"}}),
    ]
    found = report(runs, queue, lambda: NOW)
    assert [(status.stage, status.sure) for status in found.statuses] == [
        (Stage.QUEUED, False),
        (Stage.FINISHED, True),
        (Stage.QUEUED, False),
    ]
    (problem,) = found.problems
    assert isinstance(problem, SlurmError)
    assert queue.questions == 1


def test_a_damaged_run_does_not_hide_the_others(fabricate: Fabricate) -> None:
    found = report([fabricate(A, {"run.json": "{"}), fabricate(B, {"finished.json": {}})], Queue(), lambda: NOW)
    assert [status.record.run.id for status in found.statuses] == [B]
    assert A in found.problems[0].message


def test_the_json_of_a_finished_run_carries_its_final_metrics(fabricate: Fabricate) -> None:
    metrics = [
        {"time": 1, "step": 4, "steps": 4, "epoch": 2, "epochs": 2, "loss": float("nan")},
        {"time": 2, "test_accuracy": 0.875, "test_nodes": 16},
    ]
    host = {"job_id": "12", "start": 100, "end": 160, "exit_code": 0, "signal": "", "nodes": "node[1-2]"}
    run = fabricate(
        A,
        {
            "submission.json": {"job_id": "12"},
            "attempts/0/host.json": host,
            "attempts/0/metrics.jsonl": metrics,
            "finished.json": {"attempt": 0, "time": 160},
        },
    )
    content = to_json(report([run], Queue(), lambda: NOW))
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content == {
        "schema_version": 1,
        "as_of": NOW,
        "runs": [
            {
                "id": A,
                "job": "a",
                "stage": "finished",
                "sure": True,
                "job_id": "12",
                "attempt": 0,
                "attempts": 1,
                "epoch": 2,
                "epochs": 2,
                "step": 4,
                "steps": 4,
                "loss": None,
                "val_accuracy": None,
                "test_accuracy": 0.875,
                "metrics": {
                    "step": 4, "steps": 4, "epoch": 2, "epochs": 2, "loss": None, "test_accuracy": 0.875,
                    "test_nodes": 16,
                },
                "nodes": 2,
                "tasks_per_node": 2,
                "created": 1_000_000.0,
                "started": 100,
                "ended": 160,
                "exit_code": 0,
                "directory": str(run.path),
            }
        ],
    }  # fmt: skip

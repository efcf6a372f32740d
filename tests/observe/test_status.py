"""The status of many runs: its queries to Slurm, and its problems."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.json_schema import violations

from clusterctl.launcher.api import json_output
from clusterctl.launcher.observe.ended_runs import QUIET_SECONDS, EndedRuns
from clusterctl.launcher.observe.status import Filter, newest, statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.client import SharedAnswers
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]
A, B, C = "a-20260101-000000-aaaa", "b-20260101-000000-bbbb", "c-20260101-000000-cccc"
NOW = 1_000_500.0


class Queue:
    """A Slurm with these jobs, given as (id, state, folder), which counts its queries."""

    def __init__(self, *jobs: tuple[str, str, Path], silent: bool = False) -> None:
        self.questions = 0
        self._jobs = jobs
        self._silent = silent

    def __call__(self, cluster: object) -> Slurm:
        return Slurm(lambda command: command, {}, self._answer)

    def _answer(self, argv: Sequence[str], environment: object) -> subprocess.CompletedProcess[str]:
        if argv[0] != "squeue":
            return subprocess.CompletedProcess([], 1, "", "Slurm accounting storage is disabled")
        self.questions += 1
        if self._silent:
            raise subprocess.TimeoutExpired("squeue", 10)
        lines = ["\x1f".join([number, state, *["0"] * 5, str(folder), ""]) for number, state, folder in self._jobs]
        return subprocess.CompletedProcess([], 0, "\n".join(lines), "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def states(runs: list[RunDir], queue: Queue) -> list[State]:
    return [status.state for status in statuses_of(runs, queue, lambda: NOW).statuses]


def test_runs_that_ended_by_their_files_cause_no_query(fabricate: Fabricate) -> None:
    queue = Queue()
    runs = [
        fabricate(A, {"finished.json": {"time": 5}}),
        fabricate(B, {"attempts/0/host.json": {"start": 1, "end": 2, "exit_code": 1, "signal": ""}}),
    ]
    assert states(runs, queue) == [State.FINISHED, State.FAILED]
    assert queue.questions == 0


def test_slurm_is_queried_once_for_all_runs(fabricate: Fabricate, folder: Path) -> None:
    queue = Queue(("1", "PENDING", folder / A), ("2", "RUNNING", folder / B))
    runs = [fabricate(run, {"submission.json": {"job_id": number}}) for run, number in ((A, "1"), (B, "2"), (C, "3"))]
    assert states(runs, queue) == [State.QUEUED, State.STARTING, State.CANCELLED]
    assert queue.questions == 1


def test_a_job_whose_submitter_died_is_found_by_its_folder_and_adopted(fabricate: Fabricate, folder: Path) -> None:
    run = fabricate(A)
    assert states([run], Queue(("31", "PENDING", folder / A))) == [State.QUEUED]
    assert read_json(run.submission_json)["job_id"] == "31"


def test_a_job_that_has_begun_is_adopted_from_its_attempt(fabricate: Fabricate) -> None:
    run = fabricate(A, {"attempts/0/host.json": {"job_id": "32", "start": 1}})
    states([run], Queue(("32", "RUNNING", Path("/elsewhere"))))
    assert read_json(run.submission_json)["job_id"] == "32"


def test_a_run_that_ends_between_reading_and_the_query_is_not_lost(fabricate: Fabricate) -> None:
    run = fabricate(A, {"submission.json": {"job_id": "1"}, "attempts/0/host.json": {"start": 1}})

    class Ending(Queue):
        def _answer(self, argv: Sequence[str], environment: object) -> subprocess.CompletedProcess[str]:
            run.finished_json.write_text('{"attempt": 0, "time": 9}')
            return super()._answer(argv, environment)

    assert states([run], Ending()) == [State.FINISHED]


SUCCESSOR = {"submission.json": {"job_id": "1"}, "successor.json": {"of": "1", "job_id": "2"}}
TERMINATED = {"exit_code": 143, "signal": "TERM", "end": 9}
CANCELLED = "=== 0 ===\nslurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***\n"


@pytest.mark.parametrize(
    ("first", "jobs", "expected"),
    [
        ({}, {"1": "RUNNING", "2": "PENDING"}, (State.STARTING, "1", "2")),
        ({"exit_code": 75, "requeued": True}, {"1": "COMPLETING", "2": "PENDING"}, (State.QUEUED, "1", "2")),
        ({"exit_code": 75, "requeued": True}, {"1": "FAILED", "2": "PENDING"}, (State.QUEUED, "2", None)),
        ({"exit_code": 75, "requeued": True}, {"2": "RUNNING"}, (State.STARTING, "2", None)),
        (TERMINATED, {"1": "PREEMPTED", "2": "PENDING"}, (State.QUEUED, "2", None)),
        (TERMINATED, {"1": "CANCELLED", "2": "PENDING"}, (State.CANCELLED, "1", "2")),
        (TERMINATED | {"log": CANCELLED}, {"2": "PENDING"}, (State.CANCELLED, "1", "2")),
        ({}, {"1": "PREEMPTED", "2": "PENDING"}, (State.QUEUED, "2", None)),
        ({}, {"1": "NODE_FAIL", "2": "RUNNING"}, (State.STARTING, "2", None)),
        ({}, {"1": "CANCELLED", "2": "PENDING"}, (State.CANCELLED, "1", "2")),
        ({"log": CANCELLED}, {"2": "PENDING"}, (State.CANCELLED, "2", None)),  # Slurm says no more of the first
        ({"exit_code": 3}, {"1": "FAILED", "2": "PENDING"}, (State.FAILED, "1", "2")),
        ({"exit_code": 3}, {"2": "PENDING"}, (State.FAILED, "1", "2")),
    ],
)
def test_a_run_is_in_its_successor_once_its_first_job_has_ended(
    fabricate: Fabricate,
    folder: Path,
    first: dict[str, object],
    jobs: dict[str, str],
    expected: tuple[State, str, str | None],
) -> None:
    record = {
        "attempt": 0,
        "job_id": "1",
        "start": 1,
        "signal": "",
        "end": 9 if "exit_code" in first else None,
        **first,
    }
    files = {**SUCCESSOR, "attempts/0/host.json": record, "slurm.log": record.pop("log", "=== 0 ===\n")}
    queue = Queue(*((number, state, folder / A) for number, state in jobs.items()))
    (status,) = statuses_of([fabricate(A, files)], queue, lambda: NOW).statuses
    assert (status.state, status.job_id, status.successor) == expected


def test_a_successors_own_attempt_is_of_its_job(fabricate: Fabricate, folder: Path) -> None:
    ended = {"attempt": 0, "job_id": "1", "start": 1, "end": 2, "exit_code": 75, "requeued": True}
    files = {
        **SUCCESSOR,
        "attempts/0/host.json": ended,
        "attempts/1/host.json": {"attempt": 1, "job_id": "2", "start": 3},
    }
    queue = Queue(("2", "RUNNING", folder / A))
    (status,) = statuses_of([fabricate(A, files)], queue, lambda: NOW).statuses
    assert (status.state, status.job_id, status.successor) == (State.STARTING, "2", None)
    files["successor.json"] = {"of": "2", "problem": "sbatch: error: no jobs from nodes"}
    (status,) = statuses_of([fabricate(B, files)], queue, lambda: NOW).statuses
    assert (status.job_id, status.no_successor) == ("2", "sbatch: error: no jobs from nodes")


@pytest.mark.parametrize(
    ("attempts", "jobs", "expected"),
    [
        (["1"], {"1": "RUNNING", "2": "PENDING", "3": "PENDING"}, ("1", "2", ("3",))),
        (["1"], {"1": "PREEMPTED", "2": "PENDING", "3": "PENDING"}, ("2", None, ())),
        (["1", "2"], {"2": "RUNNING", "3": "PENDING"}, ("2", "3", ())),
        (["1", "2"], {"2": "PREEMPTED", "3": "PENDING"}, ("3", None, ())),
        (["1", "2", "3"], {"3": "RUNNING"}, ("3", None, ())),
    ],
)
def test_a_run_goes_through_the_jobs_that_its_submission_has_queued(
    fabricate: Fabricate, folder: Path, attempts: list[str], jobs: dict[str, str], expected: tuple[object, ...]
) -> None:
    ended = {"end": 9, "exit_code": 75, "requeued": True}
    files = {**SUCCESSOR, "successor.json": {"of": "1", "job_id": "2", "jobs": "1 2 3"}}
    for number, job in enumerate(attempts):
        over = ended if jobs.get(job) != "RUNNING" else {}
        files[f"attempts/{number}/host.json"] = {"attempt": number, "job_id": job, "start": 1, **over}
    queue = Queue(*((number, state, folder / A) for number, state in jobs.items()))
    (status,) = statuses_of([fabricate(A, files)], queue, lambda: NOW).statuses
    assert (status.job_id, status.successor, status.later) == expected
    assert not status.state.ended


def test_a_job_before_the_last_resume_is_nobodys_successor(fabricate: Fabricate, folder: Path) -> None:
    ended = {"attempt": 0, "job_id": "2", "start": 1, "end": 2, "exit_code": 3, "signal": ""}
    resumed = {"time": 5, "attempts": 1, "job_id": "2", "argv": []}
    files = {**SUCCESSOR, "submission.json": {"job_id": "7"}, "attempts/0/host.json": ended}
    run = fabricate(A, files)
    run.run_json.write_text(json.dumps({**read_json(run.run_json), "resumes": [resumed]}))
    (status,) = statuses_of([run], Queue(("7", "PENDING", folder / A)), lambda: NOW).statuses
    assert (status.state, status.job_id, status.successor) == (State.QUEUED, "7", None)


def test_an_unresponsive_slurm_is_reported_and_states_come_from_the_files(fabricate: Fabricate) -> None:
    queue = Queue(silent=True)
    runs = [
        fabricate(A, {"submission.json": {"job_id": "1"}}),
        fabricate(B, {"finished.json": {"time": 5}}),
        fabricate(C, {"submission.json": {"job_id": "3"}}),
    ]
    found = statuses_of(runs, queue, lambda: NOW)
    assert [(status.state, status.sure) for status in found.statuses] == [
        (State.QUEUED, False),
        (State.FINISHED, True),
        (State.QUEUED, False),
    ]
    (problem,) = found.problems
    assert isinstance(problem, SlurmError)
    assert queue.questions == 1


def test_a_damaged_run_does_not_hide_the_others(fabricate: Fabricate) -> None:
    found = statuses_of([fabricate(A, {"run.json": "{"}), fabricate(B, {"finished.json": {}})], Queue(), lambda: NOW)
    assert [status.record.run.id for status in found.statuses] == [B]
    assert A in found.problems[0].message


def test_the_json_of_a_finished_run_has_its_final_metrics(fabricate: Fabricate) -> None:
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
    content = json_output.status(statuses_of([run], Queue(), lambda: NOW))
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert violations(content, json.loads(json_output.STATUS_SCHEMA.read_text())) == []
    assert content == {
        "schema_version": 1,
        "as_of": NOW,
        "runs": [
            {
                "id": A,
                "job": "a",
                "sweep": None,
                "stage": "finished",
                "sure": True,
                "job_id": "12",
                "attempt": 0,
                "attempts": 1,
                "cancelling": False,
                "reason": "",
                "after": [],
                "epoch": 2,
                "epochs": 2,
                "step": 4,
                "steps": 4,
                "loss": None,
                "val_accuracy": None,
                "test_accuracy": 0.875,
                "val_auc": None,
                "test_auc": None,
                "progress": 1.0,
                "seconds_left": None,
                "steps_per_second": None,
                "nodes_per_second": None,
                "edges_per_second": None,
                "gpu_percent": None,
                "idle_since": None,
                "gpus_idle_since": None,
                "gpu_hours": None,
                "requested": {"memory": None, "cpus": 2, "gpu_memory": None, "time": 1200.0},
                "used": {"memory": None, "cpus": None, "gpu_memory": None, "time": 60},
                "enough": {"memory": None, "cpus": None, "time": 600},
                "note": None,
                "tags": [],
                "metrics": {
                    "step": 4, "steps": 4, "epoch": 2, "epochs": 2, "loss": None, "test_accuracy": 0.875,
                    "test_nodes": 16,
                },
                "nodes": 2,
                "tasks_per_node": 2,
                "node_names": "node[1-2]",
                "created": 1_000_000.0,
                "started": 100,
                "ended": 160,
                "exit_code": 0,
                "directory": str(run.path),
                "work": str(run.path / "work"),
            }
        ],
    }  # fmt: skip


def test_an_answer_from_before_the_submission_is_ignored(fabricate: Fabricate) -> None:
    run = fabricate(A, {"submission.json": {"job_id": "1", "time": NOW}}, created=NOW - 1)

    def asked_before(cluster: object) -> Slurm:
        answer = subprocess.CompletedProcess([], 0, "", "")
        return Slurm(lambda command: command, {}, lambda argv, environment: answer, clock=lambda: NOW - 5)

    (status,) = statuses_of([run], asked_before, lambda: NOW + 3).statuses
    assert (status.state, status.sure) == (State.QUEUED, True)


def test_slurms_last_answer_is_shown_with_its_age(fabricate: Fabricate, tmp_path: Path) -> None:
    run = fabricate(A, {"submission.json": {"job_id": "1", "time": 5}})
    moment = [NOW]
    shared = SharedAnswers(tmp_path, 10.0, clock=lambda: moment[0])

    def slurm(queue: Queue) -> Slurm:
        return Slurm(lambda command: command, {}, queue._answer, shared=shared)

    statuses_of([run], lambda _: slurm(Queue(("1", "PENDING", Path("/x")))), lambda: NOW)
    moment[0] = NOW + 45
    found = statuses_of([run], lambda _: slurm(Queue(silent=True)), lambda: NOW + 45)
    assert [(status.state, status.sure) for status in found.statuses] == [(State.QUEUED, False)]
    (problem,) = found.problems
    assert problem.message == "squeue did not answer within 10 s; Slurm's data is as of 45 s ago"


def test_a_running_run_has_pace_time_left_and_gpus_and_fits_the_schema(fabricate: Fabricate) -> None:
    rates = {"nodes_per_second": 1000, "edges_per_second": 25_000}
    steps = [{"time": NOW - 20 + step, "step": step, "steps": 100, "loss": 1.0, **rates} for step in range(1, 11)]
    gpus = [{"index": 0, "utilisation": 90}, {"index": 1, "utilisation": 70}, {"index": 2, "utilisation": None}]
    idle = {str(rank): {"phase": "training", "idle": 480.0} for rank in range(4)}
    run = fabricate(
        A,
        {
            "submission.json": {"job_id": "1", "time": 5},
            "attempts/0/host.json": {"start": NOW - 30},
            "attempts/0/events/rank_00000.jsonl": [{"event": "stage", "stage": "training"}],
            "attempts/0/metrics.jsonl": [{"time": NOW - 25, "val_accuracy": 0.5}, *steps],
            "attempts/0/telemetry/node1.jsonl": [{"time": NOW, "seconds": 5, "gpus": gpus, "ranks": idle}],
        },
    )
    content = json_output.status(statuses_of([run], Queue(("1", "RUNNING", run.path)), lambda: NOW))
    assert violations(content, json.loads(json_output.STATUS_SCHEMA.read_text())) == []
    (one,) = content["runs"]
    assert (one["stage"], one["progress"], one["val_accuracy"]) == ("training", 0.1, 0.5)
    assert one["steps_per_second"] == 1.0
    assert one["seconds_left"] == 80.0  # 90 steps, and the last one was 10 s ago
    assert (one["gpu_percent"], one["nodes_per_second"], one["edges_per_second"]) == (80.0, 1000, 25_000)
    assert one["idle_since"] == NOW - 480


def test_the_schema_rejects_other_records(fabricate: Fabricate) -> None:
    content = json_output.status(statuses_of([fabricate(A, {"finished.json": {}})], Queue(), lambda: NOW))
    schema = json.loads(json_output.STATUS_SCHEMA.read_text())
    for change in ({"stage": "asleep"}, {"further": 1}, {"loss": "nan"}, {"metrics": {"a": None, "b": []}}):
        assert violations({**content, "runs": [content["runs"][0] | change]}, schema), change
    del content["runs"][0]["id"]
    assert violations(content, schema)


def test_runs_can_be_filtered_by_name_state_and_age(fabricate: Fabricate, folder: Path) -> None:
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now - 5000))
    a, b, c = (f"{name}-{stamp}-{name * 4}" for name in "abc")
    fabricate(a, {"finished.json": {}}, created=now - 100)
    fabricate(b, {"attempts/0/host.json": {"start": 1, "end": 2, "exit_code": 1}}, created=now - 5000)
    fabricate(c, {"finished.json": {}}, created=now - 9000)

    def ids(wanted: Filter, count: int | None = None) -> list[str]:
        return [status.record.run.id for status in newest(folder, wanted, count).statuses]

    assert len(ids(Filter())) == 3
    assert ids(Filter(names=("b*", "a"))) == [run for run in ids(Filter()) if run in (a, b)]
    assert ids(Filter(states=frozenset({State.FAILED}))) == [b]
    assert ids(Filter(seconds=6000)) == [run for run in ids(Filter()) if run in (a, b)]
    assert ids(Filter(states=frozenset({State.FINISHED})), 1) == [run for run in ids(Filter()) if run in (a, c)][:1]
    assert ids(Filter(names=("[",))) == []


def test_a_short_age_reads_only_recent_runs(fabricate: Fabricate, folder: Path) -> None:
    day = 24 * 3600
    for age in range(10):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(time.time() - age * day))
        fabricate(f"a-{stamp}-aaaa", {"run.json": "damaged: reading it reports a problem"})
    assert len(newest(folder, Filter(seconds=60), None).problems) == 2


def test_repeated_reports_do_not_read_ended_runs_again(fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fabricate(A, {"finished.json": {"time": 5}, "attempts/0/host.json": {"end": 5, "exit_code": 0}})
    ended = EndedRuns(clock=lambda: time.time() + 2 * QUIET_SECONDS)
    first = statuses_of([run], Queue(), lambda: NOW, ended)
    monkeypatch.setattr("clusterctl.launcher.observe.ended_runs.read_record", None)
    assert statuses_of([run], Queue(), lambda: NOW, ended) == first

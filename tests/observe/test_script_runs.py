"""How a batch script of the user's own ended: what Slurm says is noted in its run, once for all runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.queue import JobState, parse_ends
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, to_record

NOW = 1_800_000_000.0
HOST = {"attempt": 0, "job_id": "12", "restart_count": 0, "nodes": "n1", "start": NOW - 100}


class Controller:
    """squeue and sacct for one job, counting the questions."""

    def __init__(self, state: str, code: int = 0, restarts: int = 0, *, gone: bool = False) -> None:
        self.state, self.code, self.restarts, self.gone = state, code, restarts, gone
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        command = Path(argv[0]).name
        self.asked.append("ends" if any("exit_code" in word for word in argv) else command)
        fields = {
            "JobArrayID": "12",
            "State": self.state,
            "Reason": "None",
            "NodeList": "n1",
            "StartTime": int(NOW - 100),
        }
        fields |= {"EndTime": int(NOW - 5), "RestartCnt": self.restarts, "WorkDir": "/home", "exit_code": self.code}
        text = ""
        if command == "squeue" and not self.gone:
            names = [field.partition(":")[0] for field in argv[argv.index("-O") + 1].split(",")]
            text = "".join(f"{fields[name]}\x1f" for name in names) + "\n"
        if command == "sacct":
            text = "\x1f".join(["12", self.state, f"{self.code >> 8}:{self.code & 127}", "n1", "None"]) + "\n"
        return subprocess.CompletedProcess(argv, 0, text, "")

    def slurm(self, cluster: Cluster) -> Slurm:
        return Slurm(lambda command: f"/bin/{command}", {}, self, lambda: NOW)


def made(folder: Path, host: dict[str, Any] | None = HOST, kind: str = "slurm") -> RunDir:
    run = RunDir(folder / "train-20260102-030405-00a1")
    (run.path / "attempts").mkdir(parents=True)
    job = to_record(Job(name="train", workload="script", argv=("train.sh",)))
    record = {"schema_version": 2, "created": NOW - 200, "job": job, "cluster": to_record(Cluster(name="c", kind=kind))}
    run.run_json.write_text(json.dumps(record))
    run.submission_json.write_text(json.dumps({"job_id": "12", "time": NOW - 199}))
    if host:
        run.attempt(0).path.mkdir()
        run.attempt(0).host_json.write_text(json.dumps(host))
    return run


def state_of(run: RunDir, controller: Controller) -> tuple[State, int | None]:
    (status,) = statuses_of([run], controller.slurm, lambda: NOW).statuses
    return status.state, status.exit_code


@pytest.mark.parametrize(
    ("state", "code", "shown"),
    [
        ("COMPLETED", 0, (State.FINISHED, 0)),
        ("FAILED", 3 << 8, (State.FAILED, 3)),
        ("FAILED", 15, (State.FAILED, 143)),  # a signal
        ("CANCELLED", 15, (State.CANCELLED, 143)),
        ("TIMEOUT", 15, (State.TIMED_OUT, 143)),
        ("PREEMPTED", 15, (State.PREEMPTED, 143)),
        ("OUT_OF_MEMORY", 0, (State.FAILED, 0)),
        ("NODE_FAIL", 1, (State.FAILED, 129)),
    ],
)
def test_the_end_is_noted_and_asked_for_once(tmp_path: Path, state: str, code: int, shown: tuple[State, int]) -> None:
    run, controller = made(tmp_path), Controller(state, code)
    assert state_of(run, controller) == shown
    assert controller.asked == ["squeue", "ends"]
    assert state_of(run, controller) == shown
    assert controller.asked == ["squeue", "ends"]
    assert read_json(run.attempt(0).host_json).items() >= {**HOST, "end": NOW - 5, "job_state": state}.items()


def test_a_running_script_is_not_asked_about_further(tmp_path: Path) -> None:
    run, controller = made(tmp_path), Controller("RUNNING")
    assert state_of(run, controller) == (State.TRAINING, None)
    assert controller.asked == ["squeue"]


def test_the_accounting_knows_what_squeue_has_forgotten(tmp_path: Path) -> None:
    run, controller = made(tmp_path), Controller("FAILED", 7 << 8, gone=True)
    assert state_of(run, controller) == (State.FAILED, 7)
    assert controller.asked == ["squeue", "sacct"]
    assert state_of(run, controller) == (State.FAILED, 7)
    assert controller.asked == ["squeue", "sacct"]


def test_a_start_that_could_not_be_recorded_becomes_an_attempt(tmp_path: Path) -> None:
    run = made(tmp_path, host=None)
    assert state_of(run, Controller("FAILED", 5 << 8)) == (State.FAILED, 5)
    assert read_json(run.attempt(0).host_json)["nodes"] == "n1"


def test_the_end_of_a_requeued_job_is_that_of_its_last_start(tmp_path: Path) -> None:
    run = made(tmp_path)
    second = {**HOST, "attempt": 1, "restart_count": 1}
    run.attempt(1).path.mkdir()
    run.attempt(1).host_json.write_text(json.dumps(second))
    assert state_of(run, Controller("COMPLETED", 0, restarts=1)) == (State.FINISHED, 0)
    assert "exit_code" not in read_json(run.attempt(0).host_json)


def test_a_full_disk_hides_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clusterctl.launcher.observe.script_runs.write_json", full)
    assert state_of(made(tmp_path), Controller("FAILED", 1 << 8))[0] is State.FAILED


def test_wait_statuses_and_codes_with_signals_are_both_read() -> None:
    lines = [
        "12\x1fFAILED\x1f1800000000\x1f256\x1f",
        "13_4\x1fFAILED\x1fN/A\x1f0:9\x1f",
        "foreign",
        "14\x1fX\x1f\x1fy\x1f",
    ]
    first, second = parse_ends("\n".join(lines))
    assert (first.job_id, first.state, first.time, first.code, first.signal) == (
        "12",
        JobState.FAILED,
        1800000000,
        1,
        0,
    )
    assert replace(second, state=JobState.FAILED).signal == 9

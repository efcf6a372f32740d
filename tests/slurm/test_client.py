"""The client of Slurm's commands: what it calls, and how it handles refusals and timeouts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.client import SharedAnswers, run_command
from clusterctl.launcher.slurm.rules import Rules
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.spec import Cluster


class Answers:
    """A runner that gives every command the same answer, and records the calls."""

    def __init__(self, code: int = 0, out: str = "", err: str = "") -> None:
        self.asked: list[list[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self._answer = (code, out, err)

    def __call__(self, argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(argv))
        self.environments.append(environment)
        return subprocess.CompletedProcess(argv, *self._answer)


def slurm(answers: Answers) -> Slurm:
    return Slurm(lambda command: f"/opt/slurm/{command}", {"PATH": "/bin"}, answers, clock=lambda: 77.0)


def test_one_query_covers_all_jobs_of_the_user_with_times_as_epoch_seconds() -> None:
    answers = Answers(out="7\x1fPENDING" + "\x1f" * 7)
    snapshot = slurm(answers).snapshot()
    assert snapshot.taken_at == 77.0
    assert list(snapshot.jobs) == ["7"]
    (argv,) = answers.asked
    assert argv[:4] == ["/opt/slurm/squeue", "--me", "-h", "--states=all"]
    assert answers.environments == [{"PATH": "/bin", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}]


def test_a_refusal_carries_slurms_message() -> None:
    answers = Answers(1, err="squeue: error: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(SlurmError, match=r"squeue: Unable to contact slurm controller \(connect failure\)") as caught:
        slurm(answers).snapshot()
    assert "scontrol ping" in caught.value.hint


def test_jobs_are_cancelled_with_one_call_and_ended_ones_are_no_error() -> None:
    answers = Answers(1, err="scancel: error: Kill job error on job id 8: Invalid job id specified\n")
    slurm(answers).cancel(["7", "8"])
    assert answers.asked == [["/opt/slurm/scancel", "7", "8"]]


def test_another_users_job_cannot_be_cancelled() -> None:
    answers = Answers(1, err="scancel: error: Kill job error on job id 9: Access/permission denied\n")
    with pytest.raises(SlurmError, match="Access/permission denied"):
        slurm(answers).cancel(["9"])


def test_held_jobs_are_released_and_running_ones_requeued() -> None:
    answers = Answers()
    slurm(answers).release(["7"])
    slurm(answers).requeue(["8"])
    assert [argv[1:] for argv in answers.asked] == [["release", "7"], ["requeue", "8"]]


@pytest.mark.parametrize("by_qos", [False, True])
def test_the_rules_of_a_site_are_asked_once_for_all_processes_of_a_user(tmp_path: Path, by_qos: bool) -> None:
    """Those of the QOS only where these decide."""
    answers = Answers(out=f"PreemptType = preempt/{'qos' if by_qos else 'partition_prio'}\n")
    for _ in range(3):
        slurm = Slurm(str, {}, answers, shared=SharedAnswers(tmp_path, 10.0))
        assert (slurm.rules().by_qos is not None) is by_qos
    commands = [argv[0] for argv in answers.asked]
    assert commands == ["scontrol", "scontrol", *["sacctmgr"] * by_qos]


def test_a_silent_slurm_has_no_rules() -> None:
    answers = Answers(1, err="slurm_load_ctl_conf error: Unable to contact slurm controller\n")
    assert slurm(answers).rules() == Rules()
    assert len(answers.asked) == 1


def test_a_missing_command_is_reported_with_a_hint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="squeue is not on PATH") as caught:
        Slurm.of(Cluster(name="site")).snapshot()
    assert caught.value.exit_code == 4
    assert caught.value.hint


def test_a_command_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    squeue.chmod(0o700)
    silent = Slurm(lambda _: str(squeue), {"PATH": "/bin:/usr/bin"}, partial(run_command, timeout=0.5))
    with pytest.raises(SlurmError, match="squeue did not answer"):
        silent.snapshot()
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline


def test_a_command_that_cannot_be_run_is_a_slurm_error(tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/nonexistent\n")
    squeue.chmod(0o700)
    with pytest.raises(SlurmError, match="cannot run "):
        Slurm(lambda _: str(squeue), {}).snapshot()


def test_names_that_are_not_utf8_are_read_like_paths(tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_bytes(b"#!/bin/sh\nprintf '7\\037RUNNING" + b"\\037" * 6 + b"/runs/\\377\\037'\n")
    squeue.chmod(0o700)
    snapshot = Slurm(lambda _: str(squeue), {}).snapshot()
    assert snapshot.jobs["7"].work_dir == "/runs/\udcff"

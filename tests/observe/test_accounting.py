"""The outcome of jobs that squeue has forgotten: accounting is queried once, and its answer cached."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from clusterctl.launcher.api import cancel
from clusterctl.launcher.diagnosis.diagnose import diagnose
from clusterctl.launcher.diagnosis.traces import gather, with_accounting
from clusterctl.launcher.observe.slurm_log import AGAIN_SECONDS, accounted
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.jobs import Accounted
from clusterctl.launcher.slurm.queue import SEPARATOR
from clusterctl.shared.errors import Cause, SlurmError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]
RUNS = [f"{name}-20260101-000000-{name * 4}" for name in "abcd"]
NOW = 1_000_500.0
ENDED = {"start": 1_000_000, "end": 1_000_100, "exit_code": 143, "signal": "TERM"}  # neither a time limit nor a cancel


class Site:
    """A Slurm whose squeue has forgotten every job. sacct prints `lines` (fields separated by `|`), or fails."""

    def __init__(self, *lines: str, down: bool = False) -> None:
        self.lines, self.down = lines, down
        self.asked: list[str] = []

    def __call__(self, cluster: object) -> Slurm:
        return Slurm(lambda command: command, {}, self._answer)

    def _answer(self, argv: Sequence[str], environment: object) -> subprocess.CompletedProcess[str]:
        if argv[0] == "squeue":
            return subprocess.CompletedProcess(argv, 0, "", "")
        self.asked.append(argv[-1])
        if self.down:
            return subprocess.CompletedProcess(argv, 1, "", "Slurm accounting storage is disabled")
        return subprocess.CompletedProcess(argv, 0, "\n".join(self.lines).replace("|", SEPARATOR), "")

    def states(self, *runs: RunDir, now: float = NOW) -> list[State]:
        return [status.state for status in statuses_of(runs, self, lambda: now).statuses]


@pytest.fixture
def lost(fabricate: Fabricate) -> list[RunDir]:
    """Four runs, of jobs 10 to 13, that recorded no end although they have started."""
    files = [{"submission.json": {"job_id": str(10 + number)}, "slurm.log": ""} for number in range(4)]
    return [fabricate(run, tables) for run, tables in zip(RUNS, files, strict=True)]


def test_one_query_covers_all_runs_and_its_answer_is_cached(lost: list[RunDir]) -> None:
    site = Site(
        "10|NODE_FAIL|1:0|n1|None", "11|CANCELLED by 7|0:15|n1|None", "11.0|FAILED|15:0|n1|", "12|TIMEOUT|0:0||"
    )
    expected = [State.FAILED, State.CANCELLED, State.TIMED_OUT, State.LOST]
    assert site.states(*lost) == expected
    assert site.asked == ["10,11,12,13"]
    assert site.states(*lost) == expected
    assert len(site.asked) == 1


def test_the_accounting_shows_who_cancelled_an_apparently_preempted_job(fabricate: Fabricate) -> None:
    run = fabricate(RUNS[0], {"submission.json": {"job_id": "10"}, "attempts/0/host.json": {"job_id": "10", **ENDED}})
    assert Site().states(run) == [State.PREEMPTED]
    run.accounting_json.unlink()
    assert Site("10|CANCELLED by 7|0:15|n1|None").states(run) == [State.CANCELLED]


def test_without_accounting_states_stay_lost_and_it_is_queried_once_an_hour(lost: list[RunDir]) -> None:
    site = Site(down=True)
    for now in (NOW, NOW + 5, NOW + AGAIN_SECONDS - 1):
        assert site.states(*lost, now=now) == [State.LOST] * 4
    assert len(site.asked) == 1
    site.states(*lost, now=NOW + AGAIN_SECONDS)
    assert len(site.asked) == 2


HOST = {"job_id": "10", "start": 1_000_000}


@pytest.fixture
def beating(fabricate: Fabricate) -> tuple[RunDir, Path]:
    """A run that has recorded no end, and its file of heartbeats, which is as old as NOW."""
    run = fabricate(RUNS[0], {"submission.json": {"job_id": "10"}, "attempts/0/host.json": HOST, "slurm.log": ""})
    beats = run.attempt(0).beats(1)
    beats.parent.mkdir(parents=True)
    beats.write_bytes(b"")
    os.utime(beats, (NOW, NOW))
    return run, beats


def test_a_run_that_has_just_written_is_not_lost_but_asked_of_the_wrong_slurm(beating: tuple[RunDir, Path]) -> None:
    run, beats = beating
    for age, is_lost in ((1, False), (9, False), (30, True)):
        os.utime(beats, (NOW - age, NOW - age))
        found = statuses_of([run], Site(down=True), lambda: NOW)
        (status,) = found.statuses
        assert (status.state is State.LOST) == is_lost
        assert status.sure == is_lost, "what only reads must not take it for ended, nor start it again"
        warned = [problem.message for problem in found.problems if "does not know job 10" in problem.message]
        assert bool(warned) == (not is_lost)
    os.utime(beats, (NOW, NOW))
    for more in ({"end": 1_000_100, "exit_code": 3}, {"end": 1_000_100, "exit_code": 143, "signal": "TERM"}):
        write_json(run.attempt(0).host_json, HOST | more)
        assert statuses_of([run], Site(down=True), lambda: NOW).statuses[0].sure, "its files show the end"


def test_the_wrong_slurm_is_not_asked_to_cancel(beating: tuple[RunDir, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's id may be that of another job there."""
    run, _ = beating
    monkeypatch.setattr(cancel, "statuses_of", lambda runs: statuses_of(runs, Site(down=True), lambda: NOW))
    monkeypatch.setattr(Slurm, "cancel", lambda *_: pytest.fail("asked"))
    with pytest.raises(SlurmError, match="does not know job 10, but its ranks write"):
        cancel.cancel([run])
    assert not run.cancel_json.exists()


def test_a_job_that_is_running_in_the_accounting_is_queried_again(lost: list[RunDir]) -> None:
    assert Site("10|RUNNING|0:0|n1|").states(lost[0]) == [State.LOST]
    assert Site("10|TIMEOUT|0:0|n1|").states(lost[0], now=NOW + AGAIN_SECONDS) == [State.TIMED_OUT]


def test_runs_of_one_allocation_share_the_answer(lost: list[RunDir]) -> None:
    site = Site("10|TIMEOUT|0:0|n1|")
    answers = accounted({lost[0]: "10", lost[1]: "10"}, site(None).accounted, clock=lambda: NOW)
    assert [answers[run][0].state for run in lost[:2]] == ["TIMEOUT", "TIMEOUT"]
    assert site.asked == ["10"]


def test_why_uses_the_cached_answer_and_queries_again_if_there_was_none(lost: list[RunDir]) -> None:
    site = Site("10|CANCELLED by 7|0:15|n1|None")
    status, in_vain = statuses_of(lost[:2], site, lambda: NOW).statuses
    assert with_accounting(gather(status), site).accounted[0].by == "7"
    assert site.asked == ["10,11"]
    assert with_accounting(gather(in_vain), site).accounted == ()
    assert site.asked == ["10,11", "11"]
    silent = with_accounting(gather(in_vain), Site(down=True))
    assert "accounting storage is disabled" in silent.unknown[-1]


SHOWN = """JobId=10 JobName=cora
   UserId=ada(1000) GroupId=ada(1000)
   JobState=FAILED Reason=RaisedSignal:9(Killed) Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:9
   DerivedExitCode=1:0
   NodeList=n[1-2]
"""


@pytest.mark.parametrize("forgotten", [False, True])
def test_without_accounting_scontrol_is_queried_for_recent_jobs(fabricate: Fabricate, forgotten: bool) -> None:
    """The batch script was killed before it could record its end."""
    host = {"job_id": "10", "start": 1_000_000}
    run = fabricate(RUNS[0], {"submission.json": {"job_id": "10"}, "attempts/0/host.json": host})
    queue = SEPARATOR.join(["10", "FAILED", "None", "n[1-2]", "1000000", "1000100", "0", str(run.path), ""])

    def answer(argv: Sequence[str], _: object) -> subprocess.CompletedProcess[str]:
        if argv[0] == "scontrol" and forgotten:
            return subprocess.CompletedProcess(argv, 1, "", "slurm_load_jobs error: Invalid job id specified")
        output = {"squeue": queue, "scontrol": SHOWN}.get(argv[0], "")
        return subprocess.CompletedProcess(argv, int(argv[0] == "sacct"), output, "")

    found = diagnose(run, lambda _: Slurm(lambda command: command, {}, answer))
    assert found.status.state is State.FAILED
    if forgotten:
        assert (found.headline.cause_class, found.headline.certainty) == (Cause.UNKNOWN, "unknown")
    else:
        assert (found.headline.cause_class, found.headline.certainty) == (Cause.KILLED, "certain")
        assert found.headline.cause.startswith("its batch script was killed by SIGKILL")


def test_a_cached_answer_about_an_earlier_job_is_ignored(lost: list[RunDir]) -> None:
    Site("10|TIMEOUT|0:0|n1|").states(lost[0])
    assert accounted({lost[0]: "99"}, Site()(None).accounted) == {}


@pytest.mark.parametrize("content", ["", "[]", "null", '{"job_id": "10"}', '{"job_id": "10", "time": 1, "lines": [{}]}',
                                     '{"job_id": "10", "time": 1e999, "lines": [7]}'])  # fmt: skip
def test_a_damaged_cache_file_is_ignored(lost: list[RunDir], content: str) -> None:
    lost[0].accounting_json.write_text(content)
    assert Site("10|TIMEOUT|0:0|n1|").states(lost[0]) == [State.TIMED_OUT]


def test_an_impatient_query_raises_the_error(lost: list[RunDir]) -> None:
    with pytest.raises(SlurmError, match="disabled"):
        accounted({lost[0]: "10"}, Site(down=True)(None).accounted, patient=False)


STARTED = {"submission.json": {"job_id": "10"}, "slurm.log": "", "attempts/0/host.json": {"job_id": "10", "start": 1}}


def queue_with(run: RunDir, state: str) -> Callable[[object], Slurm]:
    line = SEPARATOR.join(["10", state, "None", "n1", "1000000", "1000100", "0", str(run.path), ""])

    def answer(argv: Sequence[str], _: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(argv, int(argv[0] != "squeue"), line if argv[0] == "squeue" else "", "none")

    return lambda _: Slurm(lambda command: command, {}, answer)


@pytest.mark.parametrize(("job_state", "state"), [("FAILED", State.FAILED), ("CANCELLED", State.CANCELLED)])
def test_an_end_that_squeue_showed_is_remembered_where_there_is_no_accounting(
    fabricate: Fabricate, job_state: str, state: State
) -> None:
    """The batch script was killed, and recorded nothing."""
    run = fabricate(RUNS[0], STARTED)
    assert statuses_of([run], queue_with(run, job_state), lambda: NOW).statuses[0].state is state
    site = Site(down=True)
    assert site.states(run) == [state]
    assert site.asked == []
    with_accounting(gather(statuses_of([run], site, lambda: NOW).statuses[0]), Site("10|RUNNING|0:0|n1|"))
    assert site.states(run) == [state]  # although an answer without the end was kept, too
    write_json(run.attempt(0).host_json, {"attempt": 0, "job_id": "10", "start": 1, "restart_count": 1})
    assert site.states(run, now=NOW + 2 * AGAIN_SECONDS) == [State.LOST]  # Slurm had started it again


@pytest.mark.parametrize("code", [1, 3])
def test_a_run_that_its_setup_ended_stays_failed_when_slurm_forgets_it(fabricate: Fabricate, code: int) -> None:
    host = {"job_id": "10", "start": 1, "end": 2, "exit_code": code, "signal": "", "setup_ended": 1}
    run = fabricate(RUNS[0], {**STARTED, "attempts/0/host.json": host})
    assert Site(down=True).states(run) == [State.FAILED]


def test_what_slurm_said_of_a_job_stays_with_it_after_a_resume(fabricate: Fabricate) -> None:
    ended = {"time": 1.0, "job_id": "10", "lines": [asdict(Accounted("10", "FAILED", "", 0, 9, "n1"))]}
    run = fabricate(RUNS[0], {**STARTED, "submissions/0/accounting.json": ended})
    record = read_json(run.run_json)
    write_json(run.submissions / "0" / "run.json", record)
    note = {"time": 5.0, "attempts": 1, "job_id": "10", "stage": "failed"}
    write_json(run.run_json, record | {"resumes": [note]})
    write_json(run.submission_json, {"job_id": "11"})
    found = diagnose(run, Site("11|CANCELLED by 0|0:15|n1|"))
    (past,) = found.history
    assert past.cause_class is Cause.KILLED
    assert past.cause.startswith("its batch script was killed by SIGKILL")

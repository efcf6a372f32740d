"""How the batch script goes on in another job where the site does not requeue this one, with stand-ins for Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from support.batch_host import ALL_DONE, CHECKPOINT, CLUSTER, ONE_KILLED, Host, asks

from clusterctl.launcher.observe.run_record import Successor, read_successor
from clusterctl.shared.record.marks import EXIT_RESTART, Refusal
from clusterctl.shared.spec import Cluster
from clusterctl.shared.spec.job import Restart

REQUEUE_IS_OFF = "JobState=RUNNING Reason=None Requeue=0 Restarts=0\n   Partition=main"
QUEUED = 'echo "sbatch: a word of the site" >&2; env -0 >"${0%/*}/given"; pwd >"${0%/*}/where"; echo "13;cluster"'


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A site that does not requeue jobs, as Slurm shows this job."""
    return site(tmp_path)


def site(
    folder: Path, job: str = REQUEUE_IS_OFF, partition: str = "OFF", cluster: Cluster = CLUSTER, **restart: Any
) -> Host:
    host = Host(folder, cluster=cluster, restart=Restart(where="queue", **restart))
    host.scontrol = (
        f'case "$*" in\n"show job 13") echo "JobState=PENDING Reason=Dependency Requeue=1" ;;\n'
        f'"show job"*) echo {quote(job)} ;;\n"show partition"*) echo "   GraceTime=0 PreemptMode={partition} X=1" ;;\n'
        'requeue*) echo "Requested operation is presently disabled for job 12" >&2; exit 1 ;;\nesac'
    )
    host.others = {"sbatch": QUEUED, "squeue": "", "scancel": ""}
    return host


def asked(host: Host, word: str) -> list[str]:
    return [line for line in host.asked.read_text().splitlines() if line.startswith(word)]


def waiting(host: Host, text: str) -> Host:
    host.others["squeue"] = f"printf {quote(text)}"
    return host


SUBMITTED = "sbatch --parsable --dependency=afterany:12 script.sh"


def test_a_killed_rank_goes_on_in_another_job(host: Host) -> None:
    assert host.call(ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert asked(host, "sbatch") == [SUBMITTED]
    assert asked(host, "requeue") == asked(host, "scancel") == []
    assert read_successor(host.run) == Successor("12", "13")
    assert host.host()["requeued"] is True
    assert "refused" not in host.host()


@pytest.mark.parametrize(
    ("mode", "usual", "succeeded"),
    [
        ("cancel", "REQUEUE", True),
        ("gang,cancel", "REQUEUE", True),
        ("requeue", "CANCEL", False),
        ("cluster", "CANCEL", True),
        ("cluster", "REQUEUE", False),
        ("", "CANCEL", True),  # sacctmgr does not answer
    ],
)
def test_where_the_qos_decides_it_is_asked_whether_preempted_jobs_are_cancelled(
    tmp_path: Path, mode: str, usual: str, succeeded: bool
) -> None:
    """Slurm then ignores the mode of the partition, here the opposite one."""
    job = "JobState=RUNNING Requeue=1\n   Account=physics QOS=low\n   Partition=main"
    host = site(tmp_path, job=job, partition="OFF" if succeeded else "CANCEL")
    config = f"PreemptMode             = {usual}\nPreemptType             = preempt/qos"
    host.scontrol = host.scontrol.replace(
        '"show partition"', f'"show config") echo {quote(config)} ;;\n"show partition"'
    )
    host.others["sacctmgr"] = f'[ "${{*#*name=low}}" != "$*" ] && echo {mode}' if mode else "exit 1"
    host.call("sleep 1\n" + ALL_DONE)
    assert asked(host, "sbatch") == ([SUBMITTED] if succeeded else [])


@pytest.mark.parametrize(
    ("srun", "code", "refused"),
    [
        (ALL_DONE, 0, None),
        ("exit 3", 3, None),
        (ONE_KILLED + "exit 137", 137, Refusal.NO_PROGRESS),
        ('touch "$CLUSTERCTL_RUN_DIR/cancel.json"\n' + ONE_KILLED + CHECKPOINT + "exit 137", 137, Refusal.CANCELLED),
    ],
    ids=["finished", "failed", "without progress", "cancelled"],
)
def test_the_other_job_is_cancelled_once_the_run_has_ended(
    host: Host, srun: str, code: int, refused: Refusal | None
) -> None:
    waiting(host, "14 afterok:13(unfulfilled)\n")
    assert host.call("until [ -s successor.json ]; do sleep 0.1; done\n" + srun) == code
    assert host.host().get("refused") == refused
    assert asked(host, "scancel") == ["scancel 13"]
    assert asked(host, "update") == ["update JobId=14 Dependency=afterok:12"], "what waits, waits for this job again"


def test_a_failing_setup_line_cancels_it_too(tmp_path: Path) -> None:
    host = site(tmp_path)
    text = host.script.read_text()
    host.script.write_text(text.replace("cctl_setup=''", "cctl_setup=$'\\nsleep 1; source /is/missing'"))
    assert host.call(ALL_DONE) == 1
    assert asked(host, "scancel") == ["scancel 13"]


def test_it_gets_the_variables_that_the_job_was_submitted_with(host: Host) -> None:
    host.environment = {"TOKEN": "a secret\nof two lines", "BASH_FUNC_module%%": "() { :; }", "SLURM_CONF": "/etc/s"}
    host.environment |= {"SBATCH_QOS": "x", "CUDA_VISIBLE_DEVICES": "3", "SLURM_TMPDIR": "/tmp/12"}
    text = host.script.read_text()
    host.script.write_text(text.replace("cctl_setup=''", "cctl_setup=$'\\nexport TOKEN=other NEW=1'"))
    host.call(ONE_KILLED + CHECKPOINT + "exit 137")
    given = dict(one.split("=", 1) for one in host.srun.with_name("given").read_text().split("\0") if "=" in one)
    assert given["TOKEN"] == "a secret\nof two lines"
    assert "BASH_FUNC_module%%" in given
    assert given["SLURM_CONF"] == "/etc/s"
    assert (given["cctl_succeeds"], given["cctl_starts"]) == ("12", "1")
    assert {name for name in given if name.startswith(("SLURM_", "SBATCH_", "CUDA_", "CLUSTERCTL_", "NEW"))} == {
        "SLURM_CONF"
    }
    assert host.srun.with_name("where").read_text().rstrip("\n") == str(host.run.path)
    assert "secret" not in host.asked.read_text()


@pytest.mark.parametrize(
    ("job", "partition", "queued"),
    [
        (REQUEUE_IS_OFF.replace("Requeue=0", "Requeue=1"), "REQUEUE", False),
        (REQUEUE_IS_OFF.replace("Requeue=0", "Requeue=1"), "CANCEL", True),
        (REQUEUE_IS_OFF.replace("Requeue=0", "Requeue=1"), "GANG,SUSPEND", False),
        (REQUEUE_IS_OFF, "OFF", True),
        ("", "", False),  # Slurm does not answer
    ],
)
def test_the_site_decides(tmp_path: Path, job: str, partition: str, queued: bool) -> None:
    host = site(tmp_path, job, partition)
    assert host.call("sleep 1\n" + ALL_DONE) == 0
    assert bool(asked(host, "sbatch")) == queued
    assert asked(host, "scancel") == ["scancel 13"] * queued


def test_what_slurm_showed_before_the_submission_needs_no_question_on_the_node(tmp_path: Path) -> None:
    """Where nodes cannot ask, too. Without a successor, the job is requeued all the same."""
    host = site(tmp_path, job="", partition="")
    text = host.script.read_text()
    host.script.write_text(text.replace("cctl_cancels= ", "cctl_cancels=yes "))
    host.others["sbatch"] = "echo 'sbatch: error: not from nodes' >&2; exit 1"
    host.scontrol = host.scontrol.replace("requeue*)", "never)")
    assert host.call(ONE_KILLED + CHECKPOINT + "sleep 0.5; exit 137") == 137
    assert asked(host, "sbatch") == [SUBMITTED]
    assert asked(host, "show config") == asked(host, "show partition") == []
    assert (asked(host, "requeue"), host.host()["requeued"]) == (["requeue 12"], True)


@pytest.mark.parametrize(("by", "queued"), [("requeue", False), ("successor", True)])
def test_the_user_may_decide(tmp_path: Path, by: str, queued: bool) -> None:
    host = site(tmp_path, by=by)
    host.call(ONE_KILLED + CHECKPOINT + "exit 137")
    assert bool(asked(host, "sbatch")) == queued
    assert asked(host, "show partition") == []
    assert bool(asked(host, "requeue")) != queued
    assert host.host().get("refused") == (None if queued else Refusal.REQUEUE_FAILED)


def test_a_refused_requeue_is_made_up_for(tmp_path: Path) -> None:
    """The site does not show that it requeues nothing."""
    host = site(tmp_path, REQUEUE_IS_OFF.replace("Requeue=0", "Requeue=1"))
    assert host.call(asks(host, 0) + ALL_DONE) == EXIT_RESTART
    assert asked(host, "requeue") == ["requeue 12"]
    assert asked(host, "sbatch") == [SUBMITTED]
    assert host.host()["requeued"] is True
    assert "requeue_problem" not in host.host()


def test_a_site_that_forbids_sbatch_on_nodes_is_named(host: Host) -> None:
    host.others["sbatch"] = 'echo "sbatch: error: \\"no\\" jobs from nodes" >&2; exit 1'
    assert host.call(ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert host.host()["refused"] == Refusal.REQUEUE_FAILED
    assert host.host()["requeue_problem"] == "sbatch: error: 'no' jobs from nodes"
    assert read_successor(host.run) == Successor("12", "", "sbatch: error: 'no' jobs from nodes")


def test_another_one_is_queued_if_the_user_has_cancelled_it(host: Host) -> None:
    host.scontrol = host.scontrol.replace("JobState=PENDING", "JobState=CANCELLED")
    assert host.call(ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert asked(host, "sbatch") == [SUBMITTED] * 2


def test_starts_are_counted_over_all_jobs(tmp_path: Path) -> None:
    host = site(tmp_path, limit=3)
    host.environment = {"cctl_starts": "1"}
    assert host.call(asks(host, 0) + ALL_DONE, restarts=1) == EXIT_RESTART
    assert len(asked(host, "sbatch")) == 1
    assert host.call(asks(host, 1) + ALL_DONE, restarts=2) == EXIT_RESTART
    assert len(asked(host, "sbatch")) == 1
    assert host.host(1)["refused"] == Refusal.RESTART_LIMIT


@pytest.mark.parametrize(
    ("listed", "updates"),
    [
        ("14 afterok:12(unfulfilled)\n", ["JobId=14 Dependency=afterok:13"]),
        ("14_[0-3] afterany:12_*(unfulfilled)\n", ["JobId=14_[0-3] Dependency=afterany:13"]),
        ("14 afterok:7(unfulfilled),afterok:12(unfulfilled)\n", ["JobId=14 Dependency=afterok:7,afterok:13"]),
        ("14 afterok:12(failed)?afternotok:112(unfulfilled)\n", ["JobId=14 Dependency=afterok:13?afternotok:112"]),
        ("14 after:12+5(unfulfilled)\n15 afterok:112(unfulfilled)\n16 (null)\n17\n18 singleton(unfulfilled)\n", []),
        ("13 afterany:12(unfulfilled)\n14 afterok:12_1(unfulfilled)\n", []),
    ],
)
def test_what_waits_for_the_run_waits_for_its_last_job(host: Host, listed: str, updates: list[str]) -> None:
    waiting(host, listed).call(ONE_KILLED + CHECKPOINT + "exit 137")
    assert list(dict.fromkeys(line.removeprefix("update ") for line in asked(host, "update"))) == updates


def test_what_was_queued_after_the_other_job_waits_for_it_too(host: Host) -> None:
    """A dependant whose submission began before."""
    host.others["squeue"] = 'cat "${0%/*}/queue" 2>/dev/null'
    queue = quote(str(host.srun.with_name("queue")))
    late = "until [ -s successor.json ]; do sleep 0.1; done\nsleep 1\n"
    late += f"echo '14 afterok:12(unfulfilled)' >{queue}\n"
    host.call(late + ONE_KILLED + CHECKPOINT + "exit 137")
    assert asked(host, "update") == ["update JobId=14 Dependency=afterok:13"]


def test_an_element_of_an_array_has_its_own(host: Host) -> None:
    host.environment = {"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}
    host.call(ONE_KILLED + CHECKPOINT + "exit 137")
    assert asked(host, "sbatch") == [SUBMITTED.replace(":12", ":10_3")]
    assert read_successor(host.run) == Successor("10_3", "13")


ENDS = {
    "it asked for it": ({"exit_code": 75, "signal": "", "requeued": True}, "", True),
    "killed while it asked": ({"exit_code": 75, "signal": "", "requeuing": True}, "", True),
    "killed without a word": ({}, "", True),
    "preempted": ({"exit_code": 143, "signal": "TERM"}, "DUE TO PREEMPTION ***", True),
    "preempted and killed": ({}, "DUE TO PREEMPTION ***", True),
    "a lost node": ({}, "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", True),
    "several nodes, one lost": ({"exit_code": 143, "signal": "TERM"}, "-n1: DUE TO NODE FAILURE, SEE LOG ***", True),
    "several nodes, cancelled": ({"exit_code": 143, "signal": "TERM"}, "-n1: ***", False),
    "another lost node": ({"exit_code": 1, "signal": "LOST"}, "", True),
    "cancelled": ({"exit_code": 143, "signal": "TERM"}, "***", False),
    "cancelled and killed": ({}, "***", False),
    "the time limit": ({"exit_code": 143, "signal": "TERM"}, "DUE TO TIME LIMIT ***", False),
    "terminated by hand": ({"exit_code": 143, "signal": "TERM"}, "", False),
    "failed": ({"exit_code": 3, "signal": ""}, "", False),
    "refused": ({"exit_code": 75, "signal": "", "refused": "no-progress"}, "", False),
    "finished": ({"exit_code": 0, "signal": ""}, "", False),
}


@pytest.mark.parametrize("how", ENDS)
def test_it_leaves_at_once_unless_the_run_goes_on(host: Host, how: str) -> None:
    record, words, needed = ENDS[how]
    ended(host, {"attempt": 0, "job_id": "12", "restart_count": 0, **record}, words)
    host.environment, host.job = {"cctl_succeeds": "12", "cctl_starts": "1"}, "13"
    # Jobs that wait for the run's success wait for this job by now.
    assert host.call(ALL_DONE) == (0 if needed or how == "finished" else 1)
    assert host.run.attempt(1).path.exists() == needed
    if needed:
        assert host.host(1)["job_id"] == "13"


def ended(host: Host, record: dict[str, Any], words: str = "") -> None:
    before = host.run.attempt(0)
    before.path.mkdir()
    before.host_json.write_text(json.dumps(record) + "\n")
    look_alikes = (
        "=== 0 ===\nslurmstepd: error: *** JOB 112 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***\n"
    )
    look_alikes += "a program says: JOB 12 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***\n"
    node, words = words.split(": ") if words.startswith("-") else ("", words)
    line = f"slurmstepd{node}: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-02T03:04:05 {words}\n" if words else ""
    (host.run.path / "slurm.log").write_text(look_alikes + line)


def test_it_leaves_a_run_alone_that_was_submitted_again(host: Host) -> None:
    ended(host, {"attempt": 0, "job_id": "15", "restart_count": 0})
    host.environment, host.job = {"cctl_succeeds": "12"}, "13"
    assert host.call(ALL_DONE) == 1
    assert not host.run.attempt(1).path.exists()


def test_it_leaves_a_cancelled_run_alone(host: Host) -> None:
    ended(host, {"attempt": 0, "job_id": "12", "exit_code": 75, "requeued": True})
    host.run.cancel_json.touch()
    host.environment, host.job = {"cctl_succeeds": "12"}, "13"
    assert host.call(ALL_DONE) == 1
    assert not host.run.attempt(1).path.exists()


def test_it_goes_on_when_slurm_requeues_it(host: Host) -> None:
    """Its own attempts are not those of the job that it waited for."""
    ended(host, {"attempt": 0, "job_id": "13", "restart_count": 0, "exit_code": 143, "signal": "TERM"})
    host.environment, host.job = {"cctl_succeeds": "12"}, "13"
    assert host.call(ALL_DONE, restarts=1) == 0
    assert host.host(1)["restart_count"] == 1


def test_a_preempted_job_that_may_save_goes_on_whatever_its_progress(host: Host) -> None:
    """In the grace time the job still runs; its script says so itself, since Slurm will not."""
    host.scontrol = host.scontrol.replace("Requeue=0", "Requeue=0 PreemptTime=2026-01-02T03:04:05")
    term = (
        'until [ -s successor.json ]; do sleep 0.1; done\ntouch "$attempt/marks/00000.term"; kill -TERM $PPID; exit 143'
    )
    assert host.call(term) == 143
    assert (host.host()["signal"], host.host()["requeued"]) == ("TERM", True)
    assert asked(host, "scancel") == []


AHEAD = '{"of": "12", "job_id": "13", "jobs": "12 13 14"}\n'


@pytest.fixture
def site_without_sbatch(tmp_path: Path) -> Host:
    """Where jobs may not call sbatch: the submission has queued two other jobs."""
    host = site(tmp_path, cluster=Cluster(name="c", successors=2))
    host.run.successor_json.write_text(AHEAD)
    host.others["squeue"] = (
        r"printf '13 afterany:12(unfulfilled)\n14 afterany:12(unfulfilled),afterany:13(unfulfilled)\n"
        r"15 afterok:14(unfulfilled)\n16 afterok:12(unfulfilled)\n'"
    )
    return host


def test_jobs_that_the_submission_has_queued_are_used(site_without_sbatch: Host) -> None:
    host = site_without_sbatch
    assert host.call("sleep 1\n" + ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert host.host()["requeued"] is True
    assert asked(host, "sbatch") == asked(host, "requeue") == asked(host, "scancel") == []
    assert asked(host, "update") == ["update JobId=16 Dependency=afterok:14"], "only strangers to the run are moved"
    assert host.run.successor_json.read_text() == AHEAD


def test_all_of_them_are_cancelled_once_the_run_has_ended(site_without_sbatch: Host) -> None:
    host = site_without_sbatch
    assert host.call(ALL_DONE) == 0
    assert asked(host, "scancel") == ["scancel 13 14"]
    assert asked(host, "update") == ["update JobId=15 Dependency=afterok:12"]


def test_a_job_does_not_queue_others_before_the_submission_has(site_without_sbatch: Host) -> None:
    host = site_without_sbatch
    host.run.successor_json.unlink()
    late = f"sleep 1\necho {quote(AHEAD)} >successor.json\n"
    assert host.call(late + ONE_KILLED + CHECKPOINT + "exit 137") == 137
    assert asked(host, "sbatch") == []


def test_the_next_one_goes_on_in_turn_and_counts_all_starts(site_without_sbatch: Host) -> None:
    host = site_without_sbatch
    ended(host, {"attempt": 0, "job_id": "12", "restart_count": 0, "exit_code": 75, "requeued": True})
    requeued = {"attempt": 1, "job_id": "12", "restart_count": 1, "exit_code": 75, "requeued": True}
    host.run.attempt(1).path.mkdir()
    host.run.attempt(1).host_json.write_text(json.dumps(requeued) + "\n")
    host.environment, host.job = {"cctl_succeeds": "12"}, "13"
    host.scontrol = host.scontrol.replace("job 13", "job 14")
    seen = 'echo "$CLUSTERCTL_STARTS" >starts\n'
    assert host.call(seen + ONE_KILLED + CHECKPOINT.replace("-7", "-9") + "exit 137") == 137
    assert (host.run.path / "starts").read_text() == "2\n"
    assert host.host(2)["requeued"] is True
    assert asked(host, "scancel") == asked(host, "sbatch") == []
    host.environment, host.job = {"cctl_succeeds": "12 13"}, "14"
    assert host.call(ALL_DONE) == 0
    assert host.host(3)["job_id"] == "14"


@pytest.mark.parametrize(("code", "left"), [(0, 0), (3, 1)])
def test_the_last_one_leaves_like_the_first_if_the_run_has_ended(
    site_without_sbatch: Host, code: int, left: int
) -> None:
    """The job between has left, too, and has made no attempt."""
    host = site_without_sbatch
    ended(host, {"attempt": 0, "job_id": "12", "restart_count": 0, "exit_code": code, "signal": ""})
    host.environment, host.job = {"cctl_succeeds": "12 13"}, "14"
    assert host.call(ALL_DONE) == left
    assert not host.run.attempt(1).path.exists()


def test_all_of_them_leave_out_a_broken_node(site_without_sbatch: Host) -> None:
    host = site_without_sbatch
    text = host.script.read_text()
    host.script.write_text(text.replace("cctl_unfit= #", "cctl_unfit=n7 #"))
    host.call(ONE_KILLED + CHECKPOINT + "exit 137")
    assert "update JobId=13,14 ExcNodeList=n7" in asked(host, "update")


def test_secrets_are_in_no_command_line_of_a_restart_in_the_job(tmp_path: Path) -> None:
    host = Host(tmp_path, restart=Restart(by="requeue"))
    env = host.srun.with_name("env")
    env.write_text('#!/bin/bash\nprintf "%s\\n" "$@" >>"${0%/*}/words"\nexec /usr/bin/env "$@"\n')
    env.chmod(0o755)
    host.environment = {"TOKEN": "a secret"}
    again = f'[ "$CLUSTERCTL_ATTEMPT" -ge 1 ] || {{\n{ONE_KILLED}exit 137\n}}\necho "$TOKEN" >seen\n' + ALL_DONE
    assert host.call(again) == 0
    words = host.srun.with_name("words").read_text()
    assert "cctl_agains=1" in words
    assert "a secret" not in words
    assert (host.run.path / "seen").read_text() == "a secret\n"

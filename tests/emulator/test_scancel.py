"""Cancelling jobs and sending them signals."""

from __future__ import annotations

import pytest

LISTEN = """trap 'echo batch heard' USR1
srun bash -c 'trap "echo task heard" USR1; touch ready; until [ -e leave ]; do sleep 0.05; done'
until [ -e leave ]; do sleep 0.05; done"""


def test_a_pending_job_is_cancelled_immediately(cluster):
    job = cluster.submit("true", "--hold")
    cluster.call("scancel", job)
    assert cluster.field(job) == "CANCELLED"


def test_a_cancelled_job_gets_term_and_can_exit_cleanly(cluster):
    text = """trap 'echo script' TERM
srun bash -c 'trap "echo task; exit 4" TERM; touch ready; while :; do sleep 0.05; done'
echo code $?"""
    job = cluster.submit(text)
    cluster.wait_for_ready()
    cluster.call("scancel", job)
    assert cluster.wait(job) == "CANCELLED"
    log = cluster.log(job)
    assert "task\n" in log
    assert "script\n" in log
    assert log.endswith("code 4\n")


def test_one_command_cancels_several_jobs(cluster):
    first, second = cluster.submit("true", "--hold"), cluster.submit("sleep 60")
    cluster.call("scancel", first, second)
    assert (cluster.wait(first), cluster.wait(second)) == ("CANCELLED", "CANCELLED")


@pytest.mark.parametrize(("option", "heard"), [("", {"task"}), ("--batch", {"batch"}), ("--full", {"batch", "task"})])
def test_a_signal_goes_to_the_steps_by_default(cluster, option, heard):
    job = cluster.submit(LISTEN)
    cluster.wait_for_ready()
    cluster.call("scancel", *([option] if option else []), "--signal=USR1", job)
    if "task" in heard:
        cluster.until(lambda: "task heard" in cluster.log(job), "the task's answer")
    (cluster.work / "leave").touch()
    assert cluster.wait(job) == "COMPLETED"
    assert {line.removesuffix(" heard") for line in cluster.log(job).splitlines() if "heard" in line} == heard


def test_cancelling_an_ended_job_is_no_error(cluster):
    job = cluster.submit("true")
    cluster.wait(job)
    assert cluster.call("scancel", job) == ""
    assert cluster.field(job) == "COMPLETED"


def test_an_unknown_job_is_an_error_and_the_known_ones_are_still_cancelled(cluster):
    job = cluster.submit("true", "--hold")
    done = cluster.run("scancel", "99", "x", job)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "scancel: error: Kill job error on job id 99: Invalid job id specified",
        "scancel: error: Kill job error on job id x: Invalid job id specified",
    ]
    assert cluster.field(job) == "CANCELLED"


def test_no_job_is_an_error(cluster):
    assert cluster.run("scancel").stderr == "scancel: error: No job identification provided\n"

"""Any Slurm job, from scontrol, sacct and squeue."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.jobs import (
    SlurmJob,
    is_of,
    job_typed,
    parse_jobs,
    parse_listed,
    resolved_path,
    usual_path,
)
from clusterctl.launcher.slurm.queue import SEPARATOR, JobState
from clusterctl.shared.errors import SlurmError

# Slurm 22.05 with SLURM_TIME_FORMAT=%s.
FAILED = """JobId=812 JobName=train my net
   UserId=nia(1001) GroupId=nia(1001) MCS_label=N/A
   Priority=4294901748 Nice=0 Account=(null) QOS=normal
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=0 Restarts=1 BatchFlag=1 Reboot=0 ExitCode=3:0
   RunTime=00:00:05 TimeLimit=1-02:00:00 TimeMin=N/A
   SubmitTime=1767322800 EligibleTime=1767322800
   StartTime=1767322801 EndTime=1767322806 Deadline=N/A
   Partition=main AllocNode:Sid=login:42
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=node[07-08]
   BatchHost=node07
   NumNodes=2 NumCPUs=16 NumTasks=4 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   TRES=cpu=16,node=2,billing=16
   MinCPUsNode=4 MinMemoryNode=62.5G MinTmpDiskNode=0
   Features=a100&nvlink DelayBoot=00:00:00
   OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/nia/my work/train.sh --lr=0.1
   WorkDir=/home/nia/my work
   StdErr=/home/nia/my work/err=812.txt
   StdIn=/dev/null
   StdOut=/home/nia/my work/out 812.txt
   TresPerNode=gres:gpu:a100:2
"""
PENDING = """JobId=901 ArrayJobId=901 ArrayTaskId=3-9%2 ArrayTaskThrottle=2 JobName=sweep
   UserId=nia(1001) GroupId=nia(1001) MCS_label=N/A
   JobState=PENDING Reason=Resources Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   TimeLimit=UNLIMITED
   SubmitTime=1767322800 StartTime=1767329999 EndTime=Unknown
   Partition=main NodeList=(null)
   NumNodes=2-4 NumCPUs=2 NumTasks=2 CPUs/Task=1
   MinCPUsNode=1 MinMemoryCPU=4G
   WorkDir=/home/nia

JobId=903 ArrayJobId=901 ArrayTaskId=1 JobName=sweep
   UserId=nia(1001) GroupId=nia(1001) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   StartTime=1767322801 EndTime=Unknown
   NodeList=node1
   NumNodes=1 NumCPUs=1 NumTasks=1
   WorkDir=/home/nia
"""


@pytest.mark.parametrize(
    ("typed", "job"),
    [
        ("123", "123"),
        ("123_4", "123_4"),
        ("123.0", "123"),
        ("123.batch", "123"),
        ("123_4.extern", "123_4"),
        ("cora", None),
        ("123.out", None),
        ("12_[3-5]", None),
        ("١٢٣", None),
        ("", None),
        ("12345678901", None),
    ],
)
def test_a_job_may_be_typed_with_its_element_or_step(typed: str, job: str | None) -> None:
    assert job_typed(typed) == job


def test_scontrol_describes_a_job_whose_names_contain_blanks_and_equals_signs() -> None:
    (job,) = parse_jobs(FAILED)
    assert (job.job_id, job.number, job.name, job.state) == ("812", "812", "train my net", JobState.FAILED)
    assert (job.user, job.user_id) == ("nia", 1001)
    assert (job.exit_code, job.signal, job.restarts, job.requeues) == (3, 0, 1, False)
    assert (job.submitted, job.started, job.ended) == (1767322800, 1767322801, 1767322806)
    assert (job.nodes, job.node_count, job.first_node, job.tasks) == ("node[07-08]", 2, "node07", 4)
    assert [job.runs_on(node) for node in ("node07", "node8", "node09", "node", "xnode07")] == [
        True,
        True,
        *[False] * 3,
    ]
    assert (job.cpus, job.memory, str(job.gpus_per_node), job.is_exclusive) == (16, 64000, "a100:2", True)
    assert (job.constraint, job.limit) == ("a100&nvlink", 93600)
    assert job.work_dir == "/home/nia/my work"
    assert (job.stdout, job.stderr) == ("/home/nia/my work/out 812.txt", "/home/nia/my work/err=812.txt")


def test_an_array_has_a_record_for_each_element_and_one_for_those_that_wait() -> None:
    waiting, running = parse_jobs(PENDING)
    assert (waiting.job_id, waiting.number, waiting.nodes, waiting.limit) == ("901", "901", "", None)
    assert (waiting.started, waiting.node_count, waiting.memory) == (None, 2, 4096)
    assert (running.job_id, running.number, running.started, running.ended) == ("901_1", "903", 1767322801, None)
    assert running.exit_code is None
    assert is_of("901_1", "901")
    assert not is_of("9011", "901")


def test_a_name_cannot_claim_another_owner() -> None:
    """Otherwise, a job of another user could lead `why` to a file that it names."""
    forged = FAILED.replace("JobName=train my net", "JobName=x\n   UserId=me(0)\n   StdOut=/home/me/secret")
    (job,) = parse_jobs(forged)
    assert job.user_id is None


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error", "JobId=x", "JobId=5", "JobId=5 JobName=\n   ExitCode=\x1b"]
)
def test_anything_else_is_read_without_an_error(text: str) -> None:
    assert all(job.job_id == "5" for job in parse_jobs(text))


def test_paths_of_output_are_resolved_as_slurm_does() -> None:
    job = SlurmJob("12_7", number="19", name="net", user="nia", nodes="gpu[03-04]", work_dir="/home/nia")
    assert resolved_path("%A-%3a/%x.%j.%N.%%.out", job) == "/home/nia/12-007/net.19.gpu03.%.out"
    assert resolved_path("/logs/%u_%J", job) == "/logs/nia_19"
    assert usual_path(job) == "/home/nia/slurm-12_7.out"
    assert usual_path(SlurmJob("12", number="12", work_dir="/w")) == "/w/slurm-12.out"


ROW = ["812", "812", "1001", "nia", "CANCELLED by 1002", "0:15", "node1", "main", "1"]
ROW += ["1767322800", "1767322801", "1767322806", "01:00:00", "/home/nia", "my net"]
STEP = [
    "812.0",
    "812.0",
    "",
    "",
    "FAILED",
    "1:0",
    "node1",
    "",
    "1",
    "1767322801",
    "1767322801",
    "1767322805",
    "",
    "",
    "python",
]


def slurm(**answers: tuple[int, str, str]) -> tuple[Slurm, list[Sequence[str]]]:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], environment: object) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        code, out, err = answers[argv[0]]
        if "StdOut" in str(argv) and "old" in answers:
            code, out, err = 1, "", 'sacct: error: Invalid field requested: "StdOut"'
        return subprocess.CompletedProcess(argv, code, out, err)

    return Slurm(lambda command: command, {}, run), asked


def test_sacct_says_who_cancelled_a_job_and_how_its_steps_ended() -> None:
    rows = [[*ROW, "out-%j", ""], [*STEP, "", ""]]
    client, asked = slurm(sacct=(0, "\n".join(SEPARATOR.join(row) for row in rows) + "\n", ""))
    (job,) = client.accounted_jobs(["812"])
    assert len(asked) == 1
    assert (job.state, job.user_id, job.limit, job.stdout) == (JobState.CANCELLED, 1001, 3600, "/home/nia/out-812")
    assert job.stderr == job.stdout
    assert [(step.step, step.state, step.by, step.exit_code) for step in job.steps] == [
        ("812", "CANCELLED", "1002", 0),
        ("812.0", "FAILED", "", 1),
    ]


def test_an_older_sacct_is_asked_again_without_paths() -> None:
    client, asked = slurm(sacct=(0, SEPARATOR.join(ROW) + "\n", ""), old=(0, "", ""))
    (job,) = client.accounted_jobs(["812"])
    assert (job.stdout, job.state) == ("", JobState.CANCELLED)
    assert len(asked) == 2


def test_a_site_without_accounting_is_an_error() -> None:
    client, _ = slurm(sacct=(1, "", "Slurm accounting storage is disabled"))
    with pytest.raises(SlurmError, match="accounting storage is disabled"):
        client.accounted_jobs(["812"])


def test_a_pending_element_is_found_in_the_record_of_its_array() -> None:
    client, _ = slurm(scontrol=(0, PENDING.partition("\n\n")[0], ""))
    (job,) = client.job("901_5")
    assert (job.job_id, job.state) == ("901_5", JobState.PENDING)


def test_a_job_that_the_controller_has_forgotten_is_none() -> None:
    client, _ = slurm(scontrol=(1, "", "slurm_load_jobs error: Invalid job id specified"))
    assert client.job("812") == []


def test_squeue_lists_all_jobs_with_one_request() -> None:
    row = ["812_3", "RUNNING", "None", "nia", "main", "2", "node[1-2]", "1767322800", "1767322801", "N/A", "1:00:00"]
    line = SEPARATOR.join([*row, "/home/nia", "a\tname", ""])
    client, asked = slurm(squeue=(0, f"{line}\nforeign line\n", ""))
    (job,) = client.jobs()
    assert len(asked) == 1
    assert (job.job_id, job.name, job.state, job.reason) == ("812_3", "a\tname", JobState.RUNNING, "")
    assert (job.started, job.ended, job.limit, job.work_dir) == (1767322801, None, 3600, "/home/nia")
    assert parse_listed("") == []

"""What squeue shows, and in which format."""

from __future__ import annotations

import time

import pytest

FIELDS = ["JobID", "State", "Reason", "NodeList", "SubmitTime", "StartTime", "EndTime", "RestartCnt", "exit_code"]
FIELDS += ["TimeLimit", "NumNodes", "Name", "WorkDir"]
FORMAT = ",".join(f"{field}:\x1f" for field in FIELDS)


def rows(cluster, *arguments):
    text = cluster.call("squeue", "--me", "-h", *arguments, "-O", FORMAT, SLURM_TIME_FORMAT="%s")
    return [dict(zip(FIELDS, line.split("\x1f"), strict=False)) for line in text.splitlines()]


def test_every_field_of_an_ended_job_is_filled(cluster):
    name = "a%i|b, 'c' \"ü\" $HOME which is longer than twenty columns"
    before = int(time.time())
    job = cluster.submit("exit 2", f"--job-name={name}", "--time=1-02:03:04")
    cluster.wait(job)
    row = rows(cluster, "--states=all")[0]
    times = [int(row.pop(field)) for field in ("SubmitTime", "StartTime", "EndTime")]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= time.time()
    assert row == {
        "JobID": job,
        "State": "FAILED",
        "Reason": "NonZeroExitCode",
        "NodeList": "node1",
        "RestartCnt": "0",
        "exit_code": "512",
        "TimeLimit": "1-02:03:04",
        "NumNodes": "1",
        "Name": name,
        "WorkDir": str(cluster.work),
    }


def test_a_held_job_has_no_nodes_or_times(cluster):
    cluster.submit("true", "--hold")
    row = rows(cluster)[0]
    assert [row[field] for field in ("State", "Reason", "NodeList", "StartTime", "EndTime", "TimeLimit")] == [
        "PENDING",
        "JobHeldUser",
        "",
        "N/A",
        "N/A",
        "UNLIMITED",
    ]


def test_ended_jobs_are_shown_on_request(cluster):
    ended = cluster.submit("true")
    cluster.wait(ended)
    held = cluster.submit("true", "--hold")
    assert [row["JobID"] for row in rows(cluster)] == [held]
    assert [row["JobID"] for row in rows(cluster, "-t", "all")] == [ended, held]
    assert [row["JobID"] for row in rows(cluster, "-t", "CD,pending")] == [ended, held]
    assert [row["JobID"] for row in rows(cluster, "-t", "all", f"--jobs={ended}")] == [ended]


def test_columns_are_cut_at_20_by_default(cluster):
    cluster.submit("true", "--hold", "--job-name=abcdefghijklmnopqrstuvwxyz")
    show = lambda text: cluster.call("squeue", "-h", "-O", text)[:-1]  # noqa: E731
    assert show("Name") == "abcdefghijklmnopqrst"
    assert show("JobID,NumNodes:3,Name:.5|,JobID:.4!") == f"{'1':20}1  abcde|   1!"
    assert cluster.call("squeue", "-h", "-o", "%.5i|%3j|%T/%t %%") == "    1|abc|PENDING/PD %%\n"


def test_the_header_names_the_columns(cluster):
    assert cluster.call("squeue", "-O", "JobID:|,State:") == "JOBID|STATE\n"
    assert cluster.call("squeue").split()[0] == "JOBID"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-t", "asleep"], "Invalid job state specified: asleep"),
        (["-O", "Colour:"], "Invalid job format specification: Colour"),
        (["-o", "%?%y"], "Invalid job format specification: y"),
        (["--jobs=7"], "Invalid job id specified"),
        (["--jobs=../.."], "Invalid job id specified"),
        (["--json"], "unrecognized option '--json'"),
    ],
)
def test_invalid_arguments_are_rejected(cluster, arguments, words):
    done = cluster.run("squeue", *arguments)
    assert (done.returncode, done.stderr) == (1, f"squeue: error: {words}\n")

"""Job arrays: parsing, display, and that pending elements cost one process. Their behaviour on both back ends is tested
in tests/end_to_end/test_arrays.py.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.emulator import jobs
from clusterctl.launcher.emulator.jobs import EmulatedState, JobRecord
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.plain_text import ranges

WAIT = "touch ready.$SLURM_ARRAY_TASK_ID; until [ -e leave ]; do sleep 0.02; done"


def record(tasks, throttle=0):
    return JobRecord(EmulatedState.PENDING, "None", 0.0, array=12, tasks=tasks, throttle=throttle)


@pytest.mark.parametrize(
    ("text", "indices", "throttle"),
    [
        ("0-9", range(10), 0),
        ("0-9%4", range(10), 4),
        ("1,3,5-8", (1, 3, 5, 6, 7, 8), 0),
        ("0-20:5", (0, 5, 10, 15, 20), 0),
        ("0-10:4%2", (0, 4, 8), 2),
        ("5,3,3", (3, 5), 0),
        ("[1-3]", (1, 2, 3), 0),
        ("1-3%2,5", (1, 2, 3, 5), 2),
        ("1,,2,", (1, 2), 0),
        ("0-9%x", range(10), 0),
        ("0-9%-1", range(10), 0),
        ("1000", (1000,), 0),
        ("", (), 0),
    ],
)
def test_index_lists_are_parsed_like_slurm(text, indices, throttle):
    assert (jobs.parse_indices(text), jobs.throttle_of(text)) == (list(indices), throttle)


@pytest.mark.parametrize(
    "text", ["x", "5-1", "1-2-3", "1001", "0-1001", "0-10:0", "-3", "0x3", "0-9:", "2:3", "1 2", "١", "9" * 5000]
)
def test_an_invalid_index_list_fails_with_slurms_message(text):
    with pytest.raises(SlurmError, match="Batch job submission failed: Invalid job array specification"):
        jobs.parse_indices(text)


@given(st.sets(st.integers(0, jobs.MAX_ARRAY_SIZE - 1), min_size=1).map(sorted))
def test_written_indices_parse_back(indices):
    assert jobs.parse_indices(ranges(indices)) == indices
    assert jobs.parse_target(f"12_[{ranges(indices)}]") == (12, indices)


@pytest.mark.parametrize(
    ("indices", "throttle", "text"),
    [
        ([], 0, "N/A"),
        ([3], 4, "3"),
        (range(4, 10), 4, "4-9%4"),
        ([1, 5, 9, 10, 11], 0, "1,5,9-11"),
        (range(0, 21, 5), 0, "0,5,10,15,20"),
        (range(0, 101, 5), 3, "0-100:5%3"),
        (
            [*range(1, 41), *range(901, 953, 2)],
            7,
            "1-40,901,903,905,907,909,911,913,915,917,919,921,923,925,927...%7",
        ),
    ],
)
def test_pending_elements_are_shown_like_squeue(indices, throttle, text):
    assert jobs.shown_elements(record(indices, throttle)) == text


@pytest.mark.parametrize("text", ["", "x", "12_", "12_x", "12_[", "12_[]", "12_[,]", "12_[3", "12_5000", "12_[5-3]"])
def test_an_invalid_job_id_is_rejected(text):
    with pytest.raises(SlurmError, match="Invalid job id specified"):
        jobs.parse_target(text)


def test_pending_elements_are_one_job_with_one_process(cluster):
    blocker = cluster.submit("touch ready; until [ -e leave ]; do sleep 0.02; done", "--nodes=2", "--exclusive")
    cluster.wait_for_ready()
    array = cluster.submit("true", "--array=0-999%4")
    assert sorted(path.name for path in (cluster.state / "jobs").iterdir()) == [blocker, array]
    assert cluster.call("squeue", "-h", "-o", "%i %K %T", "-j", array) == f"{array}_[0-999%4] 0-999%4 PENDING\n"
    assert len(cluster.call("squeue", "-h", "-r", "-j", array).splitlines()) == 1000
    cluster.call("scancel", array)
    (cluster.work / "leave").touch()
    assert cluster.wait(blocker) == "COMPLETED"
    assert cluster.field(array) == "CANCELLED"
    assert sorted(path.name for path in (cluster.state / "jobs").iterdir()) == [blocker, array]


def test_each_element_has_its_own_index_variables_and_log(cluster):
    names = "JOB_ID ARRAY_JOB_ID ARRAY_TASK_ID ARRAY_TASK_COUNT ARRAY_TASK_MIN ARRAY_TASK_MAX ARRAY_TASK_STEP"
    text = f"#SBATCH --array=0-20:5 --output=%A_%4a_%j.out\nfor name in {names}; do eval echo \\$SLURM_$name; done"
    array = int(cluster.submit(text))
    jobs = dict(zip((0, 5, 10, 15, 20), (array + 1, array + 2, array + 3, array + 4, array), strict=True))
    logs = [cluster.work / f"{array}_{index:04}_{job}.out" for index, job in jobs.items()]
    cluster.until(lambda: not cluster.call("squeue", "-h"), "the end of all")
    for (index, job), log in zip(jobs.items(), logs, strict=True):
        assert log.read_text().split() == [str(value) for value in (job, array, index, 5, 0, 20, 5)]


def test_a_job_submitted_by_an_element_is_not_in_the_array(cluster):
    (cluster.work / "other.sh").write_text("#!/bin/bash\nenv | grep ARRAY\n")
    cluster.submit("sbatch other.sh", "--array=7", "--output=array.out")
    cluster.until(lambda: (cluster.work / "slurm-2.out").exists() and cluster.wait("2") != "", "the other job")
    assert cluster.field("2") == "FAILED"  # grep found nothing
    assert cluster.log("2") == ""


def test_killing_an_arrays_supervisor_loses_only_its_pending_elements(cluster):
    array = cluster.submit(WAIT, "--array=0-9%1")
    cluster.until((cluster.work / "ready.0").exists, "the first element")
    waiting = cluster.submit("true", f"--dependency=afterok:{array}_5", "--kill-on-invalid-dep=yes")
    os.kill(cluster.supervisor(array), signal.SIGKILL)
    assert cluster.wait(waiting) == "CANCELLED"
    shown = cluster.call("squeue", "-h", "--states=all", "-j", array, "-o", "%i %T")
    assert set(shown.splitlines()) == {f"{array}_[1-9%1] NODE_FAIL", f"{array}_0 RUNNING"}
    (cluster.work / "leave").touch()
    cluster.until(lambda: cluster.field(f"{array}_0") == "COMPLETED", "the end of the element")


def test_a_throttled_array_lets_other_jobs_pass(cluster):
    cluster.submit(WAIT, "--array=0-9%1")
    cluster.until((cluster.work / "ready.0").exists, "the first element")
    assert cluster.finish("true")[0] == "COMPLETED"


def test_array_elements_start_before_later_jobs(cluster):
    text = "echo $SLURM_ARRAY_TASK_ID >>order"
    blocker = cluster.submit("touch ready; until [ -e leave ]; do sleep 0.02; done", "--nodes=2", "--exclusive")
    cluster.wait_for_ready()
    array = cluster.submit(text, "--array=0-2", "--nodes=2", "--exclusive")
    later = cluster.submit("echo later >>order", "--nodes=2", "--exclusive")
    (cluster.work / "leave").touch()
    assert cluster.wait(later) == cluster.wait(blocker) == "COMPLETED"
    assert (cluster.work / "order").read_text().split() == ["0", "1", "2", "later"]
    assert cluster.call("squeue", "-h", "-j", array) == ""


def test_a_requeued_element_stays_ahead_of_later_jobs(cluster):
    text = """echo $SLURM_ARRAY_TASK_ID >>order
[ "$SLURM_ARRAY_TASK_ID$SLURM_RESTART_COUNT" != 0 ] || { touch ready; sleep 60; }"""
    array = cluster.submit(text, "--array=0-1", "--nodes=2", "--exclusive")
    cluster.wait_for_ready()
    later = cluster.submit("echo later >>order", "--nodes=2", "--exclusive")
    cluster.call("scontrol", "requeue", f"{array}_0")
    assert cluster.wait(later) == "COMPLETED"
    assert (cluster.work / "order").read_text().split() == ["0", "0", "1", "later"]


def test_pending_elements_can_be_released_separately(cluster):
    array = cluster.submit("echo $SLURM_ARRAY_TASK_ID >>order", "--array=0-5", "--hold")
    cluster.call("scontrol", "release", f"{array}_[2-3]")
    cluster.until(lambda: len(cluster.call("squeue", "-h", "-j", array).splitlines()) == 1, "the end of two elements")
    assert cluster.call("squeue", "-h", "-j", array, "-o", "%i %r") == f"{array}_[0-1,4-5] JobHeldUser\n"
    assert sorted((cluster.work / "order").read_text().split()) == ["2", "3"]
    cluster.call("scontrol", "release", array)
    cluster.until(lambda: cluster.call("squeue", "-h", "-j", array) == "", "the end of all")


def test_scontrol_shows_arrays_and_names_elements_in_errors(cluster):
    array = cluster.submit("true", "--array=0-3%2", "--hold")
    shown = cluster.call("scontrol", "show", "job", array)
    assert f"JobId={array} ArrayJobId={array} ArrayTaskId=0-3%2 ArrayTaskThrottle=2 JobName=job.sh\n" in shown
    done = cluster.run("scontrol", "requeue", f"{array}_2")
    assert (done.returncode, done.stderr) == (1, f"Job is pending execution for job {array}_2\n")
    done = cluster.run("scontrol", "requeue", f"{array}_7")
    assert (done.returncode, done.stderr) == (1, f"Invalid job id specified for job {array}_7\n")
    assert cluster.call("scontrol", "show", "config") == "MaxArraySize            = 1001\n"


def test_killing_an_elements_supervisor_loses_only_that_element(cluster):
    array = cluster.submit(WAIT, "--array=0-1", "--output=/dev/null")
    for index in (0, 1):
        cluster.until((cluster.work / f"ready.{index}").exists, "both elements")
    os.kill(cluster.supervisor(cluster.field(f"{array}_0", "A")), signal.SIGKILL)
    cluster.until(lambda: cluster.field(f"{array}_0") == "NODE_FAIL", "the lost element")
    (cluster.work / "leave").touch()
    cluster.until(lambda: cluster.field(f"{array}_1") == "COMPLETED", "the other one")


def test_time_limit_and_node_failure_affect_one_element(cluster):
    text = """echo $SLURM_ARRAY_TASK_ID:${SLURM_RESTART_COUNT:-0} >>begun
[ "$SLURM_ARRAY_TASK_ID" = 1 ] && exit 0
touch ready; srun sleep 60"""
    array = cluster.submit(text, "--array=0-1%1", "--time=0:02", "--output=/dev/null")
    cluster.wait_for_ready()
    cluster.call("scontrol", "update", "nodename=node1", "state=down", "reason=power")
    cluster.until(lambda: cluster.field(f"{array}_0") == "TIMEOUT", "the time limit of the second start")
    cluster.until(lambda: cluster.field(f"{array}_1") == "COMPLETED", "the other element")
    assert (cluster.work / "begun").read_text().split() == ["0:0", "0:1", "1:0"]


@pytest.mark.parametrize("running", [4, *(pytest.param(count, marks=pytest.mark.long) for count in (0, 1, 9))])
def test_cancelling_an_array_catches_elements_that_are_starting(make_cluster, running):
    cluster = make_cluster(nodes=4, cpus=4)
    array = cluster.submit("sleep 60", "--array=0-99", "--output=/dev/null")
    cluster.until(lambda: len(cluster.call("squeue", "-h", "-t", "R").split("\n")) > running, "starts")
    cluster.call("scancel", array)
    cluster.until(lambda: not cluster.call("squeue", "-h"), "the end of all")
    assert set(cluster.field(array).split()) == {"CANCELLED"}


def test_a_throttle_has_no_effect_outside_an_array(cluster):
    blocker = cluster.submit("touch ready; until [ -e leave ]; do sleep 0.02; done")
    cluster.wait_for_ready()
    job = cluster.submit("true", "--hold")
    cluster.call("scontrol", "update", f"JobId={job}", "ArrayTaskThrottle=1")
    cluster.call("scontrol", "release", job)
    assert cluster.wait(job) == "COMPLETED"
    (cluster.work / "leave").touch()
    assert cluster.wait(blocker) == "COMPLETED"

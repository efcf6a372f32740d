"""What a job that waits for others is asked for; how it then waits is tested on both back ends (tests/end_to_end)."""

from __future__ import annotations

import os
import signal

import pytest

from clusterctl.emulator.dependencies import parse, verdict
from clusterctl.emulator.jobs import EmulatedState, JobRecord
from clusterctl.errors import SlurmError


def test_a_list_names_jobs_of_several_kinds_each_once():
    found = parse("afterok:7:8,afterany:9_3,AFTEROK:7,after:1_[4-5]")
    assert found == [
        ("afterok", "7", False),
        ("afterok", "8", False),
        ("afterany", "9_3", False),
        ("after", "1_4", False),
        ("after", "1_5", False),
    ]
    assert parse("") == []


@pytest.mark.parametrize(
    "text",
    [
        "afterok",
        "afterok:",
        "afterok:x",
        "after0k:1",
        "foo:1",
        "afterok:1,",
        "afterok:1,,after:2",
        "afterok:²",
        "afterok:1_",
        "afterok:1_[2",
    ],
)
def test_nonsense_is_refused_in_slurms_words(text):
    with pytest.raises(SlurmError, match="Batch job submission failed: Job dependency problem"):
        parse(text)


@pytest.mark.parametrize("text", ["afterok:1?afterany:2", "singleton", "after:1+5", "aftercorr:3"])
def test_what_is_not_done_is_refused(text):
    with pytest.raises(SlurmError, match="the emulator does not do --dependency="):
        parse(text)


@pytest.mark.parametrize(
    ("state", "after", "afterany", "afterok", "afternotok"),
    [
        ("PENDING", None, None, None, None),  # also between two starts
        ("RUNNING", True, None, None, None),
        ("COMPLETING", None, None, None, None),  # it may be on its way back to the queue
        ("COMPLETED", True, True, True, False),
        ("FAILED", True, True, False, True),
        ("CANCELLED", True, True, False, True),
        ("TIMEOUT", True, True, False, True),
        ("NODE_FAIL", True, True, False, True),
        ("PREEMPTED", True, True, False, True),
    ],
)
def test_the_state_of_a_job_decides_whether_what_waits_for_it_may_start(state, after, afterany, afterok, afternotok):
    record = JobRecord(EmulatedState(state), "None", 0.0)
    kinds = ("after", "afterany", "afterok", "afternotok")
    assert [verdict(kind, [record]) for kind in kinds] == [after, afterany, afterok, afternotok]


def test_a_job_that_waits_for_another_lets_those_behind_it_pass(cluster):
    first = cluster.submit("true", "--hold")
    waiting = cluster.submit("echo waiting >>order", f"--dependency=afterok:{first}")
    assert cluster.finish("echo other >>order")[0] == "COMPLETED"
    assert (cluster.field(waiting, "r"), cluster.field(waiting, "E")) == ("Dependency", f"afterok:{first}(unfulfilled)")
    cluster.call("scontrol", "release", first)
    assert cluster.wait(waiting) == "COMPLETED"
    assert (cluster.work / "order").read_text() == "other\nwaiting\n"


def test_a_job_whose_supervisor_was_killed_has_failed_for_those_that_wait(cluster):
    first = cluster.submit("touch ready; sleep 60")
    waiting = cluster.submit("true", f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes")
    cluster.wait_for_ready()
    os.kill(cluster.supervisor(first), signal.SIGKILL)
    assert cluster.wait(waiting) == "CANCELLED"
    assert cluster.field(waiting, "E") == f"afterok:{first}(failed)"

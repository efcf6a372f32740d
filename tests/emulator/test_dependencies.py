"""Parsing and evaluating dependencies. The waiting itself is tested on both back ends (tests/end_to_end)."""

from __future__ import annotations

import os
import signal

import pytest

from clusterctl.launcher.emulator.jobs import EmulatedState, JobRecord
from clusterctl.launcher.emulator.scheduling import parse_dependencies, verdict
from clusterctl.shared.errors import SlurmError


def test_a_dependency_list_is_parsed_without_duplicates():
    found = parse_dependencies("afterok:7:8,afterany:9_3,AFTEROK:7,after:1_[4-5]")
    assert found == [
        ("afterok", "7", False),
        ("afterok", "8", False),
        ("afterany", "9_3", False),
        ("after", "1_4", False),
        ("after", "1_5", False),
    ]
    assert parse_dependencies("") == []


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
def test_an_invalid_dependency_fails_with_slurms_message(text):
    with pytest.raises(SlurmError, match="Batch job submission failed: Job dependency problem"):
        parse_dependencies(text)


@pytest.mark.parametrize("text", ["afterok:1?afterany:2", "singleton", "after:1+5", "aftercorr:3"])
def test_unsupported_dependencies_are_rejected(text):
    with pytest.raises(SlurmError, match="the emulator does not support --dependency="):
        parse_dependencies(text)


@pytest.mark.parametrize(
    ("state", "after", "afterany", "afterok", "afternotok"),
    [
        ("PENDING", None, None, None, None),  # also between two starts
        ("RUNNING", True, None, None, None),
        ("COMPLETING", None, None, None, None),  # it may be about to be requeued
        ("COMPLETED", True, True, True, False),
        ("FAILED", True, True, False, True),
        ("CANCELLED", True, True, False, True),
        ("TIMEOUT", True, True, False, True),
        ("NODE_FAIL", True, True, False, True),
        ("PREEMPTED", True, True, False, True),
    ],
)
def test_which_job_states_satisfy_which_dependencies(state, after, afterany, afterok, afternotok):
    record = JobRecord(EmulatedState(state), "None", 0.0)
    kinds = ("after", "afterany", "afterok", "afternotok")
    assert [verdict(kind, [record]) for kind in kinds] == [after, afterany, afterok, afternotok]


def test_a_dependent_job_does_not_block_the_queue(cluster):
    first = cluster.submit("true", "--hold")
    waiting = cluster.submit("echo waiting >>order", f"--dependency=afterok:{first}")
    assert cluster.finish("echo other >>order")[0] == "COMPLETED"
    assert (cluster.field(waiting, "r"), cluster.field(waiting, "E")) == ("Dependency", f"afterok:{first}(unfulfilled)")
    cluster.call("scontrol", "release", first)
    assert cluster.wait(waiting) == "COMPLETED"
    assert (cluster.work / "order").read_text() == "other\nwaiting\n"


def test_killing_a_supervisor_fails_the_jobs_that_depend_on_it(cluster):
    first = cluster.submit("touch ready; sleep 60")
    waiting = cluster.submit("true", f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes")
    cluster.wait_for_ready()
    os.kill(cluster.supervisor(first), signal.SIGKILL)
    assert cluster.wait(waiting) == "CANCELLED"
    assert cluster.field(waiting, "E") == f"afterok:{first}(failed)"

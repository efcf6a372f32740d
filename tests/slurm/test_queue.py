"""Parsing squeue's output."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.slurm.queue import FIELDS, JobState, parse_queue, together

RUNNING = "12\x1fRUNNING\x1fNone\x1fnode[1-2]\x1f105\x1f1305\x1f1\x1f/runs/a b\x1f"
FAILED = "13\x1fFAILED\x1fNonZeroExitCode\x1fnode1\x1f105\x1f110\x1f0\x1f/runs/x\x1f"


def test_a_running_job_is_read_field_by_field() -> None:
    job = parse_queue(RUNNING, 200.0).jobs["12"]
    assert (job.state, job.reason, job.nodes) == (JobState.RUNNING, "", "node[1-2]")
    assert (job.start_time, job.end_time, job.restart_count, job.work_dir) == (105, 1305, 1, "/runs/a b")


def test_unknown_times_are_read_as_none() -> None:
    assert parse_queue(RUNNING.replace("105", "N/A"), 0.0).jobs["12"].start_time is None


def test_a_state_of_a_later_slurm_is_read_as_unknown_and_active() -> None:
    state = parse_queue(RUNNING.replace("RUNNING", "LEVITATING"), 0.0).jobs["12"].state
    assert state is JobState.UNKNOWN
    assert not state.ended
    assert not state.waiting


def test_short_and_unrelated_lines_are_skipped_and_counted() -> None:
    snapshot = parse_queue(f"slurm_load_jobs: warning\n{RUNNING}\n12\x1fRUN\n\n{FAILED}\n", 5.0)
    assert sorted(snapshot.jobs) == ["12", "13"]
    assert (snapshot.skipped, snapshot.taken_at) == (2, 5.0)


def test_a_separator_in_the_folder_of_a_job_does_not_shift_its_state() -> None:
    job = parse_queue(RUNNING.replace("/runs/a b", "/runs/a\x1fb"), 0.0).jobs["12"]
    assert (job.state, job.work_dir) == (JobState.RUNNING, "/runs/a\x1fb")


def test_a_run_without_a_job_id_is_found_by_its_folder() -> None:
    snapshot = parse_queue(f"{RUNNING}\n{FAILED}", 0.0)
    found = snapshot.in_folder(Path("/runs/a b"))
    assert found is not None
    assert found.job_id == "12"
    assert snapshot.in_folder(Path("/runs")) is None


def array(job: str, state: str = "PENDING") -> str:
    return f"{job}\x1f{state}\x1fNone\x1f\x1f0\x1f0\x1f0\x1f/runs/.sweeps/s/0\x1f"


def test_array_elements_are_found_by_index_whether_pending_or_running() -> None:
    jobs = parse_queue("\n".join([array("12_[3,5-8,20-30:5%4]"), array("12_1", "RUNNING"), FAILED]), 0.0).jobs
    assert jobs["12_1"].state is JobState.RUNNING
    assert [index for index in range(40) if f"12_{index}" in jobs] == [1, 3, 5, 6, 7, 8, 20, 25, 30]
    assert (jobs["12_7"].job_id, jobs["12_7"].state) == ("12_7", JobState.PENDING)
    assert len(jobs) == 3
    assert set(jobs) == {"12", "12_1", "13"}


def test_an_element_without_a_job_id_is_found_by_the_folder_of_its_array() -> None:
    snapshot = parse_queue("\n".join([array("12_[3-9]"), array("12_1", "RUNNING")]), 0.0)
    folder = Path("/runs/.sweeps/s/0")
    found = [snapshot.in_folder(folder, index=index) for index in (1, 2, 3)]
    assert [job and job.job_id for job in found] == ["12_1", None, "12_3"]


def test_array_elements_are_grouped() -> None:
    assert together(["7", "12_3", "12_0", "12_1", "13_5", "12_2", "12_9"]) == ["7", "12_[0-3,9]", "13_[5]"]


def test_no_state_is_both_waiting_and_ended() -> None:
    assert {state for state in JobState if state.waiting and state.ended} == set()
    alive = {state for state in JobState if not state.waiting and not state.ended}
    assert {JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED, JobState.CONFIGURING} <= alive
    assert JobState.PENDING.waiting
    assert JobState.TIMEOUT.ended


@given(st.text())
def test_nonsense_never_raises(text: str) -> None:
    parse_queue(text, 0.0)


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\n"), max_size=30), min_size=6, max_size=9))
def test_nonsense_in_every_field_is_read_or_counted_as_skipped(values: list[str]) -> None:
    snapshot = parse_queue("\x1f".join(["7", *values, ""]), 0.0)
    assert all(job.job_id == "7" for job in snapshot.jobs.values())
    assert len(snapshot.jobs) + snapshot.skipped == 1
    assert bool(snapshot.jobs) == (sum(value.count("\x1f") + 1 for value in values) + 1 >= len(FIELDS))


@pytest.mark.parametrize(
    ("version", "states"),
    [
        ("22.05.8", ["CANCELLED", "FAILED", *["PENDING"] * 5, "RUNNING"]),
        ("23.11", ["COMPLETING", "OUT_OF_MEMORY", *["PENDING"] * 3, "RUNNING"]),
        ("24.11", ["CONFIGURING", "NODE_FAIL", "PENDING", "REQUEUE_HOLD", "RESV_DEL_HOLD", "STAGE_OUT"]),
        ("25.05", ["DEADLINE", "LAUNCH_FAILED", "PENDING", "PREEMPTED", "RUNNING", "UNKNOWN"]),
    ],
)
def test_the_output_of_each_version_is_read_completely(version: str, states: list[str]) -> None:
    text = (Path(__file__).parent / "fixtures" / f"squeue-{version}.txt").read_text()
    snapshot = parse_queue(text, 0.0)
    jobs = list(snapshot.jobs.values())
    assert sorted(job.state.value for job in jobs) == states
    assert snapshot.skipped == 0
    assert all(job.work_dir in ("/runs/cora-20260102-030405-00a1", "/tmp") for job in jobs)
    assert all(job.nodes and job.start_time for job in jobs if job.state is JobState.RUNNING)
    assert all(job.state.waiting for job in jobs if job.state.value.startswith(("PENDING", "RESV", "REQUEUE")))
    assert all(job.state.ended for job in jobs if job.state.value.endswith(("FAIL", "FAILED", "MEMORY", "DEADLINE")))

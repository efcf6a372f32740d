"""The elements of an array of a batch script are runs before they have directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from clusterctl.launcher.observe.run_names import run_ids
from clusterctl.launcher.observe.run_record import array_of, indices_of, make_directory, read_record, read_submission
from clusterctl.launcher.observe.runs import find_run, is_written, name_by_job
from clusterctl.launcher.observe.sweeps import read_sweep
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.node.script_start import element_of
from clusterctl.shared.record.layout import RunDir, SweepDir
from clusterctl.shared.record.plain_text import numbers_in, ranges

ID = "train-20260131-120000-1a2b"


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    """An array of the elements 1, 3 and 7 to 9, submitted as job 12."""
    found = SweepDir(tmp_path / "runs/.sweeps" / ID)
    array = RunDir(found.array(0).path)
    for folder in (array.attempts_folder, array.begun, array.own_srun.parent, found.waiting.parent):
        folder.mkdir(parents=True)
    job = {"name": "train", "workload": "script", "resources": {"sbatch": {"array": "1,3,7-9%2"}}}
    record = {"schema_version": 2, "id": "0", "created": 5.0, "job": job, "cluster": {"name": "c"}}
    array.run_json.write_text(json.dumps({**record, "array": "1,3,7-9", "elements": 5}))
    array.script.write_text(f"#!{array.start} /bin/bash\necho\n")
    array.own_srun.write_text("srun")
    array.submission_json.write_text(json.dumps({"job_id": "12", "time": 6.0}))
    found.sweep_json.write_text(json.dumps({"schema_version": 1, "created": 5.0, "array": "1,3,7-9"}))
    found.waiting.write_text("1,3,7-9")
    return found


def test_they_are_listed_read_and_found_by_their_jobs(sweep: SweepDir) -> None:
    runs, third = sweep.path.parents[1], sweep.run(3)
    assert sorted(run_ids(runs)) == [f"{ID}.{index}" for index in (1, 3, 7, 8, 9)]
    assert [run.id for run in read_sweep(sweep).runs] == [f"{ID}.{index}" for index in (1, 3, 7, 8, 9)]
    assert is_written(runs, third.id)
    assert find_run(runs, third.id) == third
    assert (read_record(third).run, read_record(third).is_script) == (third, True)
    assert read_submission(third) == ("12_3", 6.0)
    assert (name_by_job(runs, "12_3"), name_by_job(runs, "12")) == (third.id, ID)
    assert indices_of(sweep.array(0)) == [1, 3, 7, 8, 9]
    assert not third.path.exists()


def test_other_numbers_are_no_runs(sweep: SweepDir) -> None:
    for other in (sweep.run(2), sweep.run(10), RunDir(sweep.path.parents[1] / "train-20260131-120000-ffff.3")):
        assert array_of(other) is None
        with pytest.raises(ConfigError):
            read_record(other)


def test_a_directory_has_all_that_a_run_has_and_stays_removed(sweep: SweepDir) -> None:
    third = sweep.run(3)
    make_directory(third, "12_3")
    make_directory(third, "12_3")
    record = json.loads(third.run_json.read_text())
    assert (record["id"], record["job"]["resources"]["sbatch"]) == (third.id, {"array": "3"})
    assert read_submission(third).job_id == "12_3"
    assert third.script.read_text() == f"#!{third.start} /bin/bash\necho\n"
    assert third.own_srun.read_text() == "srun"
    assert len(run_ids(third.path.parent)) == 5
    shutil.rmtree(third.path)
    assert third.id not in run_ids(third.path.parent)
    assert array_of(third) is None
    for index in (1, 7, 8, 9):
        make_directory(sweep.run(index), f"12_{index}")
    assert not sweep.waiting.exists(), "nothing is left to look for"
    assert not [*third.path.parent.glob(f".{ID}*")]


def test_an_element_of_another_job_of_the_same_script_is_not_this_one(sweep: SweepDir) -> None:
    array = sweep.array(0).path
    with pytest.raises(LookupError):
        element_of(array, {b"SLURM_ARRAY_JOB_ID": b"13", b"SLURM_ARRAY_TASK_ID": b"3"})
    with pytest.raises(LookupError):
        element_of(array, {b"SLURM_JOB_ID": b"13"})
    assert not sweep.run(3).path.exists()
    started = element_of(array, {b"SLURM_ARRAY_JOB_ID": b"12", b"SLURM_ARRAY_TASK_ID": b"3"})
    assert started == sweep.run(3).path


def test_damaged_lists_hide_nothing_else(sweep: SweepDir) -> None:
    for text in ("", "x", "1-", "0-99999999", "9-1", "\x00"):
        sweep.waiting.write_text(text)
        assert run_ids(sweep.path.parents[1]) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3", [0, 1, 2, 3]), ("7,1,1", [1, 7]), ("1-9:4%2", [1, 5, 9]), ("[1-3]%1", [1, 2, 3]), ("04", [4])],
)
def test_indices_are_read_as_sbatch_reads_them(text: str, numbers: list[int]) -> None:
    assert numbers_in(text) == numbers
    assert numbers_in(ranges(numbers)) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1-3:0", "1,,2", "0-5000000", "\u0661"])
def test_other_texts_are_not_indices(text: str) -> None:
    with pytest.raises(ValueError, match="indices"):
        numbers_in(text)

"""Finding runs by what a user types."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from clusterctl.launcher.observe.run_names import names_beginning, run_ids
from clusterctl.launcher.observe.runs import find_run, name_by_job, newest_first
from clusterctl.shared.errors import ClusterctlError, NotFoundError, UsageError
from clusterctl.shared.record.layout import RunDir

Fabricate = Callable[..., RunDir]
OLD, NEW, BIG = "cora-20260101-000000-aaaa", "cora-20260102-000000-bbbb", "cora-big-20260101-120000-cccc"


@pytest.fixture
def folder(fabricate: Fabricate) -> Path:
    for run in (OLD, BIG, NEW):
        path = fabricate(run).path
    return path.parent


def ids(folder: Path) -> list[str]:
    return [run.id for run in newest_first(folder)]


def test_runs_are_listed_newest_first_whatever_their_names(folder: Path) -> None:
    assert ids(folder) == [NEW, BIG, OLD]


def test_other_folders_are_skipped(folder: Path) -> None:
    (folder / ".code").mkdir()
    (folder / "notes").mkdir()
    (folder / "x-20260103-000000-dddd").mkdir()  # a submission in progress: no run.json yet
    (folder / "y-20260103-000000-dddd").write_text("a file")
    assert ids(folder) == [NEW, BIG, OLD]


def test_runs_of_the_same_second_are_ordered_by_their_files(fabricate: Fabricate) -> None:
    later, sooner = fabricate("a-20260101-000000-aaaa"), fabricate("b-20260101-000000-bbbb")
    os.utime(later.run_json, (2e9, 2e9))
    os.utime(sooner.run_json, (1e9, 1e9))
    assert ids(later.path.parent) == [later.id, sooner.id]


def test_a_missing_folder_has_no_runs(tmp_path: Path) -> None:
    assert ids(tmp_path / "none") == []
    with pytest.raises(NotFoundError, match="no runs in"):
        find_run(tmp_path / "none", "@last")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("@last", NEW), (OLD, OLD), ("cora", NEW), ("cora-big", BIG), ("cora-b", BIG), ("cora-20260101", OLD)],
)
def test_a_run_is_found_by_last_its_id_a_job_name_or_a_prefix(folder: Path, typed: str, meant: str) -> None:
    assert find_run(folder, typed).id == meant


def test_a_run_is_found_by_the_id_of_its_job_and_a_sweep_by_that_of_its_array(
    fabricate: Fabricate, folder: Path
) -> None:
    fabricate(OLD, {"submission.json": {"job_id": "12"}})
    for number in (0, 1):
        fabricate(f"grid-20260103-000000-dddd.{number}", {"submission.json": {"job_id": f"120_{number}"}})
    assert name_by_job(folder, "12") == name_by_job(folder, "12.0") == OLD
    assert name_by_job(folder, "120_1") == "grid-20260103-000000-dddd.1"
    assert name_by_job(folder, "120") == "grid-20260103-000000-dddd"
    for other in ("1", "2", "120_2", "cora", "@last", "120_"):
        assert name_by_job(folder, other) == other


def test_the_newest_of_two_runs_with_the_same_job_is_meant(fabricate: Fabricate, folder: Path) -> None:
    """Slurm's numbers start again after a controller has lost its state."""
    for run in (OLD, NEW):
        fabricate(run, {"submission.json": {"job_id": "12"}})
    assert name_by_job(folder, "12") == NEW


def test_a_runs_own_name_is_meant_before_the_job_of_that_number(fabricate: Fabricate, folder: Path) -> None:
    fabricate(OLD, {"submission.json": {"job_id": "12"}})
    named = "12-20260104-000000-eeee"
    fabricate(named)
    assert name_by_job(folder, "12") == "12"
    assert find_run(folder, "12").id == named


def test_the_number_of_another_job_is_not_a_run(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="1_2 is not a job of a run: clusterctl did not submit it") as caught:
        find_run(folder, "1_2")
    assert "clusterctl why 1_2," in caught.value.hint


def test_an_ambiguous_prefix_lists_the_runs(folder: Path) -> None:
    with pytest.raises(UsageError, match="several runs start with: cora-2") as caught:
        find_run(folder, "cora-2")
    assert OLD in caught.value.hint
    assert NEW in caught.value.hint


def test_an_unknown_name_suggests_the_nearest_one(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="no run named: cra") as caught:
        find_run(folder, "cra")
    assert caught.value.hint == "did you mean cora?"


@pytest.mark.parametrize("typed", ["", "..", "../runs", "/"])
def test_a_path_is_not_a_run_name(folder: Path, typed: str) -> None:
    with pytest.raises(ClusterctlError):
        find_run(folder, typed)


@pytest.mark.parametrize(("typed", "most"), [(OLD, 1), ("@last", 1), ("cora", 1), ("cora-2026010", 2)])
def test_only_runs_that_may_match_are_read(
    typed: str, most: int, fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        folder = fabricate(f"other-20251231-0000{number:02}-aaaa").path.parent
    fabricate(OLD), fabricate(NEW)
    looked: list[str] = []
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path, **how: looked.append(path.name) or stat(path, **how))
    with suppress(UsageError):
        find_run(folder, typed)
    assert looked.count("run.json") <= most


def test_completion_offers_the_newest_names_with_the_prefix(folder: Path, tmp_path: Path) -> None:
    assert names_beginning(run_ids(folder), "", 5) == ["@last", "@failed", "cora", "cora-big", NEW]
    assert names_beginning(run_ids(folder), "cora-2", 9) == [NEW, OLD]
    assert names_beginning(run_ids(folder), "x", 9) == names_beginning(run_ids(tmp_path / "none"), "", 9) == []

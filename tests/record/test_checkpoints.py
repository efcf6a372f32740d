"""Which checkpoints an attempt may resume from, and what makes one valid."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import recorded

from clusterctl.shared.record import checkpoints
from clusterctl.shared.record.checkpoints import Name, Superseded, candidates, lineage
from clusterctl.shared.record.layout import Attempt, RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def claim(run: RunDir, number: int) -> Attempt:
    return recorded.claim(run.attempt(number))


def save(attempt: Attempt, step: int, text: str = "state") -> Path:
    aside = checkpoints.write_aside(attempt, step)
    (aside / "state").write_text(text)
    return checkpoints.complete(attempt, aside, {"fingerprint": {"a": 1}})


def names(attempt: Attempt) -> list[str]:
    return [path.name for path in candidates(attempt)]


def test_the_newest_checkpoint_of_the_last_attempt_comes_first(run: RunDir) -> None:
    first = claim(run, 0)
    save(first, 9)
    save(first, 10)
    second = claim(run, 1)
    checkpoints.note_origin(second, run.checkpoints / "0-10")
    save(second, 11)
    assert names(claim(run, 2)) == ["1-11", "0-10", "0-9"]


def test_late_checkpoints_of_a_superseded_attempt_are_ignored(run: RunDir) -> None:
    first = claim(run, 0)
    save(first, 10)
    late = checkpoints.write_aside(first, 20)
    checkpoints.note_origin(claim(run, 1), run.checkpoints / "0-10")
    with pytest.raises(Superseded, match="attempt 1"):
        checkpoints.complete(first, late, {})
    late.rename(run.checkpoints / "0-20")  # as if it had checked just before attempt 1 started
    assert names(claim(run, 2)) == ["0-10"]


def test_an_attempt_that_started_from_scratch_has_no_ancestors(run: RunDir) -> None:
    save(claim(run, 0), 10)
    checkpoints.note_origin(claim(run, 1), None)
    assert names(claim(run, 2)) == []


def test_an_attempt_without_a_checkpoint_does_not_break_the_lineage(run: RunDir) -> None:
    save(claim(run, 0), 10)
    claim(run, 1)
    assert names(claim(run, 2)) == ["0-10"]


@given(st.dictionaries(st.integers(0, 8), st.none() | st.builds(Name, st.integers(0, 8), st.integers(0, 50))))
def test_a_lineage_is_finite_and_bounded_by_where_successors_resumed(
    origins: dict[int, Name | None],
) -> None:
    bounds = lineage(9, origins)
    assert bounds[9] == math.inf
    assert list(bounds) == sorted(bounds, reverse=True)
    for attempt, bound in bounds.items():
        if bound != math.inf:
            assert Name(attempt, int(bound)) in origins.values()


def test_partial_and_foreign_folders_are_not_candidates(run: RunDir) -> None:
    attempt = claim(run, 0)
    checkpoints.write_aside(attempt, 5)
    (run.checkpoints / "mine").mkdir()
    (run.checkpoints / "0-x").mkdir()
    assert names(claim(run, 1)) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "state").write_text("statf"),
        lambda folder: (folder / "state").write_text("stat"),
        lambda folder: (folder / "state").unlink(),
    ],
)
def test_a_flipped_bit_a_truncated_file_and_a_missing_file_are_damage(run: RunDir, spoil) -> None:
    folder = save(claim(run, 0), 1)
    manifest = checkpoints.read_manifest(folder)
    assert manifest is not None
    assert checkpoints.damage(folder, manifest) == ""
    spoil(folder)
    assert "state" in checkpoints.damage(folder, manifest)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema_version": 9}', '{"schema_version": 1, "files": 3}'])
def test_a_damaged_or_foreign_manifest_is_ignored(run: RunDir, text: str) -> None:
    folder = save(claim(run, 0), 1)
    (folder / "manifest.json").write_text(text)
    assert checkpoints.read_manifest(folder) is None


def test_a_renamed_checkpoint_is_ignored(run: RunDir) -> None:
    folder = save(claim(run, 0), 1)
    assert checkpoints.read_manifest(folder.rename(folder.with_name("0-2"))) is None


def test_a_checkpoint_of_another_training_is_reported_with_the_difference(run: RunDir) -> None:
    manifest = checkpoints.read_manifest(save(claim(run, 0), 1))
    assert manifest is not None
    assert checkpoints.mismatch(manifest, {"a": 1}) == ""
    assert checkpoints.mismatch(manifest, {"a": 2}) == "it was made with a = 1, not 2"
    added = {"loss": "mse"}  # a key that came later
    assert checkpoints.mismatch(manifest, added, {"loss": "mse"}) == ""
    assert checkpoints.mismatch(manifest, added, {"loss": "l1"}) == 'it was made with loss = "l1", not "mse"'


def test_prune_keeps_the_last_of_the_lineage_and_removes_partial_folders(run: RunDir) -> None:
    first = claim(run, 0)
    for step in (1, 2, 3):
        save(first, step)
    checkpoints.write_aside(first, 4)
    second = claim(run, 1)
    checkpoints.note_origin(second, run.checkpoints / "0-2")
    save(second, 3)
    checkpoints.prune(second, 2)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["0-2", "1-3"]


def test_a_checkpoint_survives_one_failed_listing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = claim(run, 0)
    aside = checkpoints.write_aside(attempt, 1)
    (aside / "state").write_text("state")
    scandir, failures = os.scandir, [OSError(errno.EIO, os.strerror(errno.EIO))]

    def scan(path: str) -> Any:
        if failures:
            raise failures.pop()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert checkpoints.read_manifest(checkpoints.complete(attempt, aside, {}))["files"].keys() == {"state"}  # type: ignore[index]


def test_an_error_while_removing_old_checkpoints_is_ignored(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = claim(run, 0)
    for step in (1, 2, 3):
        save(attempt, step)

    def stale(descriptor: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stale)  # shutil.rmtree ignores other errors
        checkpoints.prune(attempt, keep=1)
    assert [name for name in names(attempt) if checkpoints.read_manifest(run.checkpoints / name)] == ["0-3"]

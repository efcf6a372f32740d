"""Removing runs: what is removed, what is kept, and that nothing else is touched."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.launcher.api import clean as api
from clusterctl.launcher.api.clean import CleanUp, DiskKind, clean
from clusterctl.launcher.api.find import Query
from clusterctl.launcher.observe import run_record
from clusterctl.launcher.observe.status import RunStatuses
from clusterctl.launcher.submission.snapshot import find_code, take_snapshot
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.files import read_json, write_json
from clusterctl.shared.record.layout import RunDir, code_folder

Fabricate = Callable[..., RunDir]
OLD, NEW, LIVE = (f"cora-2026010{day}-000000-aaaa" for day in (1, 2, 3))
LONG_AGO = time.time() - 60 * 86400


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "CACHE", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("CLUSTERCTL_UNPACK", str(tmp_path))
    monkeypatch.delenv("CLUSTERCTL_CLUSTER", raising=False)
    return tmp_path / "runs"


@pytest.fixture
def ended(fabricate: Fabricate, runs: Path) -> Callable[..., RunDir]:
    def write(run_id: str = OLD, end: float = LONG_AGO, **files: str) -> RunDir:
        host = {"start": end - 60, "end": end, "exit_code": 0, "signal": ""}
        content = {"attempts/0/host.json": host, "finished.json": {"time": end}, "weights.pt": "w" * 9000}
        content |= {"checkpoints/0-10/manifest.json": "{}", "checkpoints/0-10/rank_0.pt": "c" * 20_000}
        return fabricate(run_id, content | files, created=end - 90)

    return write


def removed(found: CleanUp) -> list[Path]:
    return [one.path for one in found.removals]


def test_an_old_run_is_removed_completely_and_a_recent_one_kept(ended: Callable[..., RunDir]) -> None:
    old, young = ended(), ended(NEW, time.time() - 60)
    (old.work / "sealed").mkdir(parents=True)
    (old.work / "sealed" / "file").touch()
    (old.work / "sealed").chmod(0o500)
    found = clean(older_than="30d")
    assert removed(found) == [old.path]
    assert found.removals[0].bytes >= 29_000
    assert old.path.is_dir()  # nothing is removed before carry_out
    assert removed(found.carry_out()) == [old.path]
    assert not old.path.exists()
    assert young.weights.exists()
    assert sorted(path.name for path in old.path.parent.iterdir()) == [NEW]


def test_checkpoints_only_removes_just_the_checkpoints_of_an_old_run(ended: Callable[..., RunDir]) -> None:
    old = ended()
    (old.checkpoints / "notes.txt").write_text("mine")
    found = clean(older_than="30d", checkpoints_only=True).carry_out()
    assert [(one.kind, one.path) for one in found.removals] == [(DiskKind.CHECKPOINTS, old.checkpoints)]
    assert [path.name for path in old.checkpoints.iterdir()] == ["notes.txt"]
    assert old.weights.exists()


def test_links_are_not_followed(ended: Callable[..., RunDir], tmp_path: Path) -> None:
    old, moved, scratch = ended(), ended(NEW), ended(LIVE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0-5").mkdir()
    (elsewhere / "0-5" / "manifest.json").write_text("{}")
    (old.path / "results").symlink_to(elsewhere)
    (old.checkpoints / "0-5").symlink_to(elsewhere / "0-5")
    moved.path.rename(tmp_path / "moved")
    moved.path.symlink_to(tmp_path / "moved")
    scratch.checkpoints.rename(tmp_path / "scratch")
    scratch.checkpoints.symlink_to(tmp_path / "scratch")
    only = clean(older_than=0, checkpoints_only=True)
    assert {one.run: one.why for one in only.staying} == {LIVE: "checkpoints is a link"}
    only.carry_out()
    assert (elsewhere / "0-5" / "manifest.json").exists()
    found = clean(older_than=0)
    assert [one.why for one in found.staying] == [f"{NEW} is a link"]
    found.carry_out()
    assert not old.path.exists()
    assert (elsewhere / "0-5" / "manifest.json").exists()
    assert (tmp_path / "moved" / "run.json").exists()
    assert (tmp_path / "scratch" / "0-10" / "manifest.json").exists()


def test_a_run_that_changes_after_it_was_listed_is_kept(
    ended: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, newer = ended(), ended(NEW)
    found = clean(older_than="30d")
    (old.path / ".resume").mkdir()
    real = Path.rename

    def resumed_first(path: Path, target: Path) -> Path:
        if path == newer.path:
            (path / ".resume").mkdir()
        return real(path, target)

    monkeypatch.setattr(Path, "rename", resumed_first)
    assert removed(found.carry_out()) == []
    assert old.run_json.exists()
    assert newer.run_json.exists()


def test_a_run_that_changes_just_after_it_was_read_is_kept(
    ended: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ended()
    real = Query.look

    def resumed_then(query: Query) -> RunStatuses:
        found = real(query)
        (old.path / f".resume.{time.time_ns()}").mkdir()
        return found

    monkeypatch.setattr(Query, "look", resumed_then)
    assert removed(clean(older_than="30d").carry_out()) == []
    assert old.run_json.exists()


def test_an_interrupted_removal_is_completed(ended: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    old = ended()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    found = clean(older_than="30d")
    with monkeypatch.context() as patch:
        patch.setattr(api, "remove_tree", killed)
        with pytest.raises(KeyboardInterrupt):
            found.carry_out()
    (half,) = old.path.parent.iterdir()
    (old.path.parent / ".mine.removed.1").mkdir()  # not a removed run
    assert removed(clean().carry_out()) == [half]
    assert [path.name for path in old.path.parent.iterdir()] == [".mine.removed.1"]


def test_the_code_of_a_run_is_removed_with_it_unless_another_run_uses_it(
    ended: Callable[..., RunDir], runs: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    copies = {}
    for run, text in ((OLD, "1"), (NEW, "2")):
        (project / "train.py").write_text(text)
        copies[run] = take_snapshot(find_code(runs, project))
        os.utime(copies[run], (LONG_AGO, LONG_AGO))
        ended(run).code.symlink_to(Path("..", ".code", copies[run].name))
    ended(LIVE, time.time()).code.symlink_to(Path("..", ".code", copies[NEW].name))
    found = clean(older_than="30d")
    assert removed(found)[2:] == [copies[OLD]]
    found.carry_out()
    assert not copies[OLD].exists()
    assert (copies[NEW] / "project" / "train.py").read_text() == "2"


def test_a_queued_run_and_its_predecessor_are_kept(ended: Callable[..., RunDir], fabricate: Fabricate) -> None:
    first, waiting = ended(), fabricate(NEW)
    record = read_json(waiting.run_json)
    write_json(waiting.run_json, record | {"created": time.time(), "after": [{"run": OLD, "condition": "finished"}]})
    found = clean(older_than="30d")
    assert removed(found) == []
    assert [one.run for one in found.staying] == [OLD]
    assert first.run_json.exists()


def test_another_users_run_and_other_folders_are_kept(
    ended: Callable[..., RunDir], runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended()
    (runs / "results-20260101-000000-aaaa").mkdir()
    (runs / "notes").mkdir()
    monkeypatch.setattr(run_record, "is_trusted", lambda owner: False)
    found = clean(older_than=0)
    assert (removed(found), [one.why for one in found.staying]) == ([], ["belongs to another user"])


def test_an_unreadable_run_keeps_all_code_and_is_reported(
    ended: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ended()
    code_folder(old.path.parent).mkdir()

    def denied(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "readlink", denied)
    found = clean(older_than="30d", checkpoints_only=True)
    assert removed(found) == [old.checkpoints]
    assert [problem.message.partition(":")[0] for problem in found.problems] == [f"cannot read {old.path}"]


def test_disk_usage_is_counted_by_kind(ended: Callable[..., RunDir], runs: Path, tmp_path: Path) -> None:
    ended()
    for name in ("runs/.data/cora/graph.pt", "CACHE/clusterctl/wheels/torch.whl", "DATA/clusterctl/images/mine.sqsh"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x" * 40_000)
    found = {one.kind: one for one in clean().taken}
    assert set(found) == {DiskKind.RUNS, DiskKind.CHECKPOINTS, DiskKind.DATA, DiskKind.IMAGES, DiskKind.CACHES}
    assert all(one.count == 1 for one in found.values())
    assert found[DiskKind.CHECKPOINTS].bytes >= 20_000
    assert 9_000 <= found[DiskKind.RUNS].bytes < 40_000 <= found[DiskKind.DATA].bytes


@pytest.mark.parametrize("option", ["keep_best", "checkpoints_only"])
def test_the_other_options_need_an_age(runs: Path, option: str) -> None:
    with pytest.raises(UsageError, match=f"`{option}=` needs `older_than=`"):
        clean(**{option: True})

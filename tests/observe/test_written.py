"""Files that a program wrote into the working directory of its run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clusterctl.launcher.observe import written
from clusterctl.launcher.observe.written import Written, read_written
from clusterctl.shared.record.layout import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that has just started, with a program of three files."""
    run = RunDir(tmp_path / "run")
    for name in ("train.py", "config.yaml", "package/model.py"):
        (run.project / name).parent.mkdir(parents=True, exist_ok=True)
        (run.project / name).write_text("x = 1\n")
        os.utime(run.project / name, ns=(10**18, 10**18))
    shutil.copytree(run.project, run.work)
    return run


def names(run: RunDir) -> list[str]:
    return [file.name for file in read_written(run).files]


def test_nothing_is_written_before_and_at_the_start(run: RunDir) -> None:
    assert read_written(run) == Written()
    shutil.rmtree(run.work)
    assert read_written(run) == Written()


def test_new_and_changed_files_are_listed_by_folder(run: RunDir) -> None:
    (run.work / "lightning_logs" / "version_0").mkdir(parents=True)
    (run.work / "lightning_logs" / "version_0" / "metrics.csv").write_text("a,b\n")
    (run.work / "config.yaml").write_text("x = 2\n")  # of the same size
    (run.work / "package" / "cache.bin").write_bytes(bytes(2000))
    (run.work / "train.py").unlink()
    (run.work / "train.py").symlink_to("elsewhere.py")
    assert names(run) == ["config.yaml", "train.py", "lightning_logs/version_0/metrics.csv", "package/cache.bin"]
    assert read_written(run).files[-1].bytes == 2000


def test_compiled_python_files_are_ignored(run: RunDir) -> None:
    (run.work / "package" / "__pycache__").mkdir()
    (run.work / "package" / "__pycache__" / "model.pyc").write_text("")
    assert names(run) == []


def test_a_large_directory_is_listed_only_partially(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "_MOST_ENTRIES", 3)
    (run.work / "a").write_text("")
    (run.work / "z").write_text("")
    found = read_written(run)
    assert ([file.name for file in found.files], found.complete) == (["a"], False)


def test_without_the_code_the_list_is_incomplete(run: RunDir) -> None:
    shutil.rmtree(run.project)
    assert read_written(run) == Written(complete=False)

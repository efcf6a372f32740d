"""Exporting a run as an archive: what it holds, what it leaves out, and that no file is replaced without force."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.made_runs import CREATED, busy_files

import clusterctl
from clusterctl.launcher.api import export as exported
from clusterctl.launcher.api.export import write_archive
from clusterctl.launcher.api.run import Run
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.record.layout import RunDir


@pytest.fixture
def run(fabricate: Callable[..., RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A finished run of two attempts, with files and secrets that must not be exported."""
    files: dict[str, Any] = busy_files() | {
        "finished.json": {"time": 2e6},
        "git.patch": "+token = 'hunter2'\n",
        "script.sh": "#!/bin/bash\n",
        "weights.pt": "weights" * 1000,
        "attempts/0/secret": "of the ranks",
        "attempts/0/host.log": "no newline at the end",
        "attempts/0/logs/rank_00000.err": "using hunter2\nfine\n",
        "checkpoints/0-10/manifest.json": "{}",
        "work/out.txt": "written",
        "code/project/.env": "OTHER_TOKEN=swordfish\n",
        "code/project/train.py": "",
        "attempts/1/logs/rank_00001.out": "swordfish\n",
    }
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.chdir(tmp_path)
    return Run(fabricate(files=files, created=CREATED).path)


def content(path: Path) -> dict[str, bytes]:
    """File name in the run folder -> content, in the order of the archive."""
    with tarfile.open(path) as archive:
        found = archive.getmembers()
        assert all(one.isfile() and not one.name.startswith("/") and ".." not in one.name.split("/") for one in found)
        assert {(one.uid, one.gid, one.uname, one.mode) for one in found} == {(0, 0, "", 0o644)}
        top, names = {one.name.split("/")[0] for one in found}, [one.name.partition("/")[2] for one in found]
        assert len(top) == 1
        return dict(zip(names, [(archive.extractfile(one) or io.BytesIO()).read() for one in found], strict=True))


def test_the_archive_holds_the_record_metrics_weights_and_logs(run: Run, tmp_path: Path) -> None:
    path = write_archive(run.directory, pages={"report.html": "<html>"})
    assert path.resolve() == tmp_path / f"{run.id}.tar.gz"
    found = content(path)
    assert found["weights.pt"] == b"weights" * 1000
    assert found["report.html"] == b"<html>"
    assert json.loads(found["run.json"])["id"] == run.id
    assert json.loads(found["status.json"])["stage"] == "finished"
    rows = list(csv.DictReader(io.StringIO(found["metrics.csv"].decode())))
    assert [row["step"] for row in rows if row["loss"]] == [str(step) for step in range(1, 301)]
    assert {row["attempt"] for row in rows} == {"0", "1"}
    for name in ("script.sh", "attempts/0/host.json", "attempts/1/telemetry/node0.jsonl", "attempts/1/metrics.jsonl"):
        assert found[name]
    assert found["attempts/0/host.log"] == b"no newline at the end"
    left_out = ("secret", "checkpoints", "work", "code", "nodes/")
    assert not [name for name in found if any(part in name for part in left_out)]


def test_the_readme_names_every_file(run: Run) -> None:
    found = content(write_archive(run.directory, pages={"report.html": ""}))
    text = found["README.txt"].decode()
    assert text.startswith(f"{run.id}\n")
    assert "state: finished\n" in text
    for name in found:
        first, *rest = name.split("/")
        assert first in text or first.endswith(".json") or name == "README.txt", name
        assert not rest or first == "attempts", name
        assert len(rest) < 2 or rest[1] in text or rest[1].endswith(".json"), name


def test_secrets_are_redacted_in_every_text(run: Run) -> None:
    found = content(write_archive(run.directory))
    assert found["git.patch"] == b"+token = '***'\n"
    assert found["attempts/0/logs/rank_00000.err"] == b"using ***\nfine\n"
    assert found["attempts/1/logs/rank_00001.out"] == b"***\n"
    assert not [name for name, text in found.items() if b"hunter2" in text or b"swordfish" in text]


def test_the_order_is_fixed_and_weights_can_be_left_out(run: Run) -> None:
    first, second = (content(write_archive(run.directory, f"{name}.tar.gz", weights=False)) for name in "ab")
    assert list(first) == list(second)
    assert "weights.pt" not in first


def test_links_are_not_followed_into_the_archive(run: Run, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    for name in ("outside/rank_00002.out", "passwords"):
        (tmp_path / name).write_text("outside the run")
    attempt = run.directory.attempt(1)
    attempt.log(3).symlink_to(tmp_path / "passwords")
    os.mkfifo(attempt.log(4))
    first = run.directory.attempt(0)
    first.log(0, "err").unlink()
    first.log(0).parent.rmdir()
    first.log(0).parent.symlink_to(tmp_path / "outside")
    found = content(write_archive(run.directory))
    assert not [name for name, text in found.items() if b"outside the run" in text]
    assert "attempts/1/logs/rank_00004.out" not in found


def test_a_running_run_is_exported_as_of_one_moment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.directory.finished_json.unlink()
    log, metrics = run.directory.attempt(1).log(0), run.directory.attempt(1).metrics
    before = log.read_bytes()
    with metrics.open("a") as file:
        file.write('{"step": 301, "lo')
    real = exported.RunArchive.add_text

    def while_it_writes(archive: exported.RunArchive, name: str, text: str) -> None:
        with log.open("a") as file:
            file.write("later\n")
        real(archive, name, text)

    monkeypatch.setattr(exported.RunArchive, "add_text", while_it_writes)
    found = content(write_archive(run.directory))
    assert found["attempts/1/logs/rank_00000.out"] == before
    assert found["attempts/1/metrics.jsonl"].endswith(b"}\n")
    assert b"not ended, files are as of the export" in found["README.txt"]


def test_files_are_replaced_only_with_force_and_a_failure_leaves_none(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.tar.gz"
    path.write_text("mine")
    with pytest.raises(UsageError, match="file exists"):
        write_archive(run.directory, path)
    assert path.read_text() == "mine"
    assert write_archive(run.directory, path, force=True) == path
    assert len(content(path)) > 10
    monkeypatch.setattr(exported, "_lines", lambda file, most_bytes: [os.close(-1)])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="cannot export"):
        write_archive(run.directory, tmp_path / "other.tar.gz")
    assert sorted(tmp_path.iterdir()) == before


def test_an_export_from_python_includes_the_report(run: Run) -> None:
    found = content(clusterctl.export(run, weights=False))
    assert found["report.html"].startswith(b"<!doctype html>")
    assert list(found) == list(
        content(write_archive(run.directory, "a.tar.gz", weights=False, pages={"report.html": ""}))
    )

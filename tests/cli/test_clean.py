"""`clean`: what it lists, asks and removes."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.json_schema import schema, violations

from clusterctl.launcher import cli
from clusterctl.launcher.submission.snapshot import find_code, take_snapshot
from clusterctl.shared.record.layout import RunDir


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("CLUSTERCTL_UNPACK", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr("sys.stdin", io.StringIO())  # no answer
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_it_lists_then_asks_then_removes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = take_snapshot(find_code(runs, None))
    os.utime(copy, (0, 0))
    assert cli.run(["clean"]) == 2
    out, err = capsys.readouterr()
    size, path = out.splitlines()[-1].split()
    assert path == str(copy)
    assert f"remove 1, {size}?" in err
    assert "--yes" in err
    assert copy.is_dir()
    assert cli.run(["clean", "--yes"]) == 0
    assert capsys.readouterr().err == f"removed 1, {size}\n"
    assert cli.run(["clean"]) == 0
    assert capsys.readouterr().err == "nothing to remove\n"


def test_an_existing_run_keeps_its_code(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = take_snapshot(find_code(runs, None))
    os.utime(copy, (0, 0))
    (runs / "a-20260101-000000-aaaa").mkdir()
    (runs / "a-20260101-000000-aaaa" / "code").symlink_to(f"../.code/{copy.name}")
    assert cli.run(["clean", "--yes"]) == 0
    assert capsys.readouterr().err == "nothing to remove\n"
    assert copy.is_dir()


def test_it_shows_disk_usage_removable_files_and_kept_runs(
    runs: Path, fabricate: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    host = {"start": 5, "end": 10, "exit_code": 0, "signal": ""}
    for number, loss in enumerate((0.5, 0.25)):
        files = {"attempts/0/host.json": host, "attempts/0/metrics.jsonl": [{"step": 1, "loss": loss}]}
        fabricate(f"cora-20260101-00000{number}-aaaa", files)
    assert cli.run(["clean", "--older-than", "30d", "--keep-best"]) == 2
    out = capsys.readouterr().out
    assert re.search(r"^ *\S+ +2  runs +\S*/runs$", out, re.MULTILINE)
    assert re.search(r"^ *\S+  \d+d\d\dh ago  \S*/cora-20260101-000000-aaaa$", out, re.MULTILINE)
    assert re.search(r"^cora-20260101-000001-aaaa  the best of cora: loss 0.2500$", out, re.MULTILINE)


def test_json_output_removes_nothing_without_yes(
    runs: Path, fabricate: Callable[..., RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    run = fabricate(files={"attempts/0/host.json": {"start": 5, "end": 10, "exit_code": 0, "signal": ""}})
    for words, gone in (([], False), (["--yes"], True)):
        assert cli.run(["clean", "--older-than", "30d", "-o", "json", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        assert violations(found, schema("clean")) == []
        assert [(one["path"], one["since"]) for one in found["removals"]] == [(str(run.path), 10)]
        assert (found["removed"], run.path.exists()) == (gone, not gone)

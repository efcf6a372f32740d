"""`monitor` and `report` from the command line."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from support.made_runs import busy_files

from clusterctl.launcher import cli

RUN = "cora-20260102-030405-00a1"


@pytest.fixture
def folder(fabricate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A runs folder with one failed run."""
    ended = {"attempts/1/host.json": busy_files()["attempts/1/host.json"] | {"end": 1_000_500, "exit_code": 1}}
    run = fabricate(RUN, busy_files() | ended)
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(run.path.parent))
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "120")
    return run.path.parent


def test_a_report_is_written_to_the_run_directory_and_its_path_printed(folder: Path, capsys) -> None:
    assert cli.run(["report", "cora"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == folder / RUN / "report.html"
    assert path.read_text().startswith("<!doctype html>")


def test_a_report_goes_to_output(folder: Path, tmp_path: Path, capsys) -> None:
    assert cli.run(["report", "@last", "--output", str(tmp_path / "x.html")]) == 0
    assert f'href="runs/{RUN}/attempts/1/logs/rank_00000.out"' in (tmp_path / "x.html").read_text()
    capsys.readouterr()
    assert cli.run(["report", "@last", "--output", "-"]) == 0
    assert capsys.readouterr().out.endswith("</html>\n")


@pytest.mark.usefixtures("folder")
def test_a_report_is_written_to_a_pipe_or_a_device_and_does_not_replace_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 2**20)
    assert cli.run(["report", "@last", "--output", str(tmp_path / "pipe")]) == 0
    assert (tmp_path / "pipe").is_fifo()
    assert os.read(reader, 15) == b"<!doctype html>"
    os.close(reader)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["report", "nothing"], 5, "no run named: nothing"),
        (["report", "cora", "--output", "/nowhere/x.html"], 2, "no such folder: /nowhere"),
        (["report", "cora", "--output", "/tmp"], 2, "is a folder: /tmp"),
        (["monitor", "nothing"], 5, "no run named: nothing"),
        (["monitor"], 2, "monitor needs a terminal"),
        (["monitor", "--every", "0"], 2, "--every"),
    ],
)
def test_a_mistake_is_reported_with_a_hint(folder: Path, capsys, words: list[str], code: int, message: str) -> None:
    assert cli.run(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "hint: " in err


def test_one_frame_needs_no_terminal(folder: Path, capsys) -> None:
    assert cli.run(["monitor", "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:3] == ["│", "run", "state"]
    assert RUN in lines[3]
    assert max(map(len, lines)) <= 120


def test_one_large_frame_explains_the_run(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.run(["monitor", "--once"]) == 0
    out = capsys.readouterr().out
    assert "no problems reported" not in out
    assert f"│{RUN} failed: " in out


def test_a_single_damaged_run_is_an_error(folder: Path, capsys) -> None:
    (folder / RUN / "run.json").write_text("{")
    assert cli.run(["monitor", "--once"]) == 3
    assert cli.run(["report", RUN]) == 3


def test_a_report_of_a_failed_run_explains_why_and_starts_no_other_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    started: list[list[str]] = []

    def start(_: object, command: list[str], **__: object) -> None:
        started.append(command)
        raise FileNotFoundError(command[0])

    monkeypatch.setattr("subprocess.Popen.__init__", start)
    assert cli.run(["report", "cora", "--output", "-"]) == 0
    shown = capsys.readouterr().out
    assert "<h2>Why</h2>" in shown
    assert f"{RUN} failed: " in shown
    assert {Path(command[0]).name for command in started} <= {"sacct", "scontrol", "squeue"}

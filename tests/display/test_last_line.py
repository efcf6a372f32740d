"""The last line of a followed run: the newest frame of a progress bar, and the time."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest

from clusterctl.launcher.display.terminal import LastLine, fitted, frame_of, times_of
from clusterctl.launcher.observe.logs import Logs, Selection
from clusterctl.launcher.observe.state import Status
from clusterctl.shared.record.layout import RunDir


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def bars(fabricate: Callable[..., RunDir]) -> RunDir:
    """A run of 64 ranks, each of which draws a bar."""
    files: dict[str, object] = {"submission.json": {"job_id": "12"}}
    for rank in range(64):
        files[f"attempts/1/logs/rank_{rank:05}.err"] = f"begun\n\r{rank}: 0%\r\x1b[2J{rank}: 5%\r"
    files["attempts/0/logs/rank_00000.err"] = "\rof an earlier attempt: 50%"
    return fabricate(files=files)


def test_the_frame_is_the_newest_one_of_the_lowest_rank_that_draws(bars: RunDir) -> None:
    logs = Logs(bars, Selection())
    list(logs.read(ended=False))
    assert frame_of(logs.unfinished()) == "0: 5%"
    (bars.attempt(1).log(0, "err")).write_text("begun\n\r0: 0%\r\x1b[2J0: 5%\r0: 100%\n")
    list(logs.read(ended=False))
    assert frame_of(logs.unfinished()) == "1: 5%"


def test_lines_that_have_ended_are_no_frame(bars: RunDir) -> None:
    logs = Logs(bars, Selection(attempt=1))
    list(logs.read(ended=True))
    assert logs.unfinished() is None
    assert frame_of(None) == ""


def test_the_line_stays_on_its_row_and_precedes_no_other_text(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    last = LastLine()
    last.show("training  5%")
    last.show("training  5%")
    last.show("a long line that would wrap")
    last.clear()
    drawn = err.getvalue()
    assert drawn == "\r\x1b[Ktraining  5%\r\r\x1b[Ka long line that wo\r\r\x1b[K\r"
    assert out.getvalue() == ""


def test_nothing_is_drawn_where_output_goes_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    err = Terminal()
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stderr", err)
    LastLine().show("training  5%")
    assert err.getvalue() == ""


def test_elapsed_time_and_time_left(statuses: list[Status]) -> None:
    queued, training, *_ = statuses
    assert times_of(queued, 1_000_000.0) == ""
    assert times_of(training, 1_000_000.0) == "9m55s, about 10m16s left"
    assert times_of(replace(training, attempts=()), 1_000_000.0) == ""


@pytest.mark.parametrize("width", range(40, 201, 10))
def test_sentences_are_wrapped_between_words_and_commands_are_left_to_be_copied(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    cause = "  rank 21 on node2: it did not enter the collective in which the other ranks have waited for it"
    path = f"cannot read /{'a-long-folder/' * 20}"
    command = f"next: clusterctl resume cora {'--set train.batch_size=512 ' * 9}"
    traceback = f"    ValueError: {'a long message ' * 20}"
    lines = [*fitted([cause, path, "", command, traceback], Terminal())]
    assert [*fitted([cause, path, "", command, traceback], io.StringIO())] == [cause, path, "", command, traceback]
    assert lines[-3:] == ["", command, traceback]
    assert all(len(line) <= width for line in lines[:-2] if "a-long-folder" not in line)
    assert " ".join(lines[:-3]).split() == f"{cause} {path}".split()
    assert all(line.startswith("    ") for line in lines[1 : lines.index(next(x for x in lines if "cannot" in x))])

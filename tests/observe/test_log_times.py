"""Times of lines that carry none: recorded by the task, read with the logs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.launcher.api.logs import failures
from clusterctl.launcher.observe.logs import Logs, Selection
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.record.stamp import LogTimes, stamp

Fabricate = Callable[..., RunDir]
START = 1_000_000.0
TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no\n'


class Writer:
    """A rank that prints, and its task that checks once per second."""

    def __init__(self, attempt: Attempt, rank: int) -> None:
        self.attempt, self.rank, self.now = attempt, rank, START
        self.times = LogTimes(attempt, rank, lambda: self.now)
        self.attempt.log(rank).parent.mkdir(parents=True, exist_ok=True)

    def writes(self, seconds: float, text: str, stream: str = "out") -> None:
        path = self.attempt.log(self.rank, stream)
        with path.open("a") as log:
            log.write(text)
        os.utime(path, (START + seconds, START + seconds))

    def looks(self, seconds: float, *, last: bool = False) -> None:
        self.now = START + seconds
        self.times.look(last=last)


@pytest.fixture
def run(fabricate: Fabricate) -> RunDir:
    return fabricate(files={"attempts/0/host.json": {"start": START}})


def read(logs: Logs, *, ended: bool = True) -> list[tuple[float, str]]:
    return [(line.time - START, str(line)) for line in logs.read(ended=ended)]


def test_lines_without_a_time_get_the_time_they_were_written(run: RunDir) -> None:
    one, other = Writer(run.attempt(0), 0), Writer(run.attempt(0), 1)
    one.writes(1.5, "a\n")
    one.looks(2)
    other.writes(2.5, "b\n")
    other.looks(3)
    one.writes(3.25, "c\nd\n")
    one.writes(3.5, "warning\n", "err")
    one.looks(4)
    other.writes(4.5, "e")
    other.looks(4.75, last=True)
    expected = [(1.5, "a"), (2.5, "b"), (3.25, "c"), (3.25, "d"), (3.5, "warning"), (4.5, "e")]
    assert read(Logs(run, Selection())) == expected
    assert all(line.timed for line in Logs(run, Selection()).read(ended=True))
    assert read(Logs(run, Selection(rank=0, streams=("out",)), tail=1)) == [(3.25, "d")]
    assert [line.time - START for line in Logs(run, Selection(rank=1)).read(ended=False)] == [2.5]


def test_a_lines_own_time_wins_and_the_order_of_a_file_is_kept(run: RunDir) -> None:
    rank = Writer(run.attempt(0), 0)
    rank.writes(10, f"a\n{stamp(START + 7)}b\nc\n")
    rank.looks(10)
    rank.writes(5, "clock set back\n")
    rank.looks(12)
    assert read(Logs(run, Selection())) == [(10, "a"), (10, "b"), (10, "c"), (10, "clock set back")]


def test_followed_lines_without_a_recorded_time_get_the_files_time(run: RunDir) -> None:
    rank, logs = Writer(run.attempt(0), 0), Logs(run, Selection())
    rank.writes(1, "a\n")
    rank.looks(1)
    rank.writes(1.5, "b\n")
    rank.looks(1.75)  # within a second: not recorded
    assert read(logs, ended=False) == [(1, "a"), (1.5, "b")]
    rank.writes(9, "c\n")
    rank.looks(9)
    assert read(logs, ended=False) == [(9, "c")]


def test_an_error_has_the_time_it_was_printed(run: RunDir) -> None:
    rank = Writer(run.attempt(0), 0)
    rank.writes(1, f"{'x' * 100}\n" * 6000, "err")  # several blocks before it
    rank.looks(1)
    rank.writes(7, TRACEBACK, "err")
    rank.looks(8)
    rank.writes(9, "more\n", "err")
    rank.looks(9, last=True)
    (failure,) = failures(Logs(run, Selection()), lambda _: True)
    assert failure.time - START == 7


@pytest.mark.parametrize("notes", ["", "{}\n", '{"out": "x", "time": 1}\n', '{"out": 1e999, "time": NaN}\n\x00\n'])
def test_damaged_time_records_are_ignored(run: RunDir, notes: str) -> None:
    run.attempt(0).log(0).parent.mkdir(parents=True)
    run.attempt(0).log(0).write_text("a\n")
    run.attempt(0).log_times(0).write_text(notes)
    assert read(Logs(run, Selection())) == [(0, "a")]


def test_times_are_recorded_once_per_second_and_only_for_grown_files(run: RunDir) -> None:
    rank = Writer(run.attempt(0), 0)
    for tenth in range(30):
        rank.writes(tenth / 10, "x\n")
        rank.looks(tenth / 10)
    rank.looks(10)
    rank.looks(20)
    assert len(run.attempt(0).log_times(0).read_text().splitlines()) == 4


def test_missing_logs_are_ignored(run: RunDir, tmp_path: Path) -> None:
    LogTimes(Attempt(tmp_path / "nowhere"), 0).look()
    assert not (tmp_path / "nowhere").exists()
    assert list(run.attempt(0).log_files("times")) == []

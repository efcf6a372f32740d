"""Following logs: the cost of an idle run, and no lost lines, on a simulated clock."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clusterctl.launcher.api.logs import read_logs
from clusterctl.launcher.observe.follow import Sources
from clusterctl.launcher.observe.logs import Logs, Selection
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster

Fabricate = Callable[..., RunDir]
Begin = Callable[..., RunDir]
HOST = {"job_id": "12", "start": 100}


def silent(_: Cluster) -> Slurm:
    raise SlurmError("no answer")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all opened files."""
    paths: list[str] = []
    real = os.open

    def counted(path: Any, *arguments: Any, **named: Any) -> int:
        paths.append(os.fspath(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", counted)
    return paths


@pytest.fixture
def begin(fabricate: Fabricate) -> Begin:
    """A run in training, each of whose ranks has printed a line in each attempt."""

    def write(ranks: int, attempts: int = 1) -> RunDir:
        files: dict[str, object] = {"submission.json": {"job_id": "12"}}
        for attempt in range(attempts):
            files[f"attempts/{attempt}/host.json"] = HOST | ({"exit_code": 85} if attempt < attempts - 1 else {})
            for rank in range(ranks):
                files[f"attempts/{attempt}/events/rank_{rank:05}.jsonl"] = [{"event": "began"}]
                files[f"attempts/{attempt}/logs/rank_{rank:05}.out"] = f"{attempt} {rank} begun\n"
                files[f"attempts/{attempt}/logs/rank_{rank:05}.err"] = ""
                files[f"attempts/{attempt}/telemetry/node{rank // 8}.jsonl"] = [{"time": 100}]
        return fabricate(files=files)

    return write


class Clock:
    """A clock that advances during sleeps, with events at given seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happens: dict[float, Callable[[], object]] = {}
        self.sources = Sources(silent, lambda: self.now, self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        for second in [second for second in self.happens if second <= self.now]:
            self.happens.pop(second)()

    def follow(self, run: RunDir, until: float) -> Iterator[tuple[float, str]]:
        """The lines until `until`, each with its time of arrival."""
        for _, lines in read_logs(run, Selection()).follow(self.sources):
            for line in lines:
                yield self.now, str(line)
            if self.now >= until:
                return


def append(run: RunDir, rank: int, text: str, stream: str = "out", attempt: int = 0) -> None:
    path = run.attempt(attempt).log(rank, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log:
        log.write(text)


@pytest.mark.parametrize(("ranks", "attempts"), [(4, 1), (40, 1), (150, 1), (4, 30)])
def test_an_idle_run_costs_under_fifty_opens_per_second(
    begin: Begin, opened: list[str], ranks: int, attempts: int
) -> None:
    run, clock = begin(ranks, attempts), Clock()
    clock.happens[20.0] = opened.clear
    assert len(list(clock.follow(run, 40.0))) == ranks * attempts
    assert len(opened) / 20 < 50
    assert not [path for path in opened if "telemetry" in path], "telemetry is not needed for logs"


def test_a_new_line_of_any_rank_appears_within_seconds(begin: Begin) -> None:
    run, clock = begin(150), Clock()
    for rank in (3, 20, 49):
        clock.happens[20.0 + rank] = lambda rank=rank: append(run, rank, f"{rank} again\n", "err")
    came = {int(line.split()[0]): now for now, line in clock.follow(run, 75.0) if "again" in line}
    assert [came[rank] - 20 - rank <= 4 for rank in (3, 20, 49)] == [True, True, True]


def test_lines_printed_by_all_ranks_appear_together(begin: Begin) -> None:
    run, clock = begin(150), Clock()
    clock.happens[20.0] = lambda: [append(run, rank, "the same\n") for rank in range(150)]
    came = [now for now, line in clock.follow(run, 25.0) if line == "the same"]
    assert len(came) == 150
    assert len(set(came)) <= 2


def test_past_attempts_are_not_polled_and_their_late_lines_appear_at_the_end(begin: Begin, opened: list[str]) -> None:
    run, clock = begin(2, attempts=2), Clock()
    clock.happens = {
        20.0: lambda: append(run, 0, "from another node\n"),
        90.0: opened.clear,
        100.0: lambda: append(run, 0, "very late"),
        110.0: lambda: append(run, 1, "torn", attempt=1),
        120.0: lambda: (opened.append("attempts/0/end"), write_json(run.finished_json, {"attempt": 1})),
    }
    came = list(clock.follow(run, 300.0))
    assert sorted(line for _, line in came[:4]) == ["0 0 begun", "0 1 begun", "1 0 begun", "1 1 begun"]
    assert came[4][1] == "from another node"
    assert came[4][0] < 23
    assert [line for _, line in came[5:]] == ["very late", "torn"]
    assert next(path for path in opened if "attempts/0/" in path) == "attempts/0/end"


def test_late_ranks_and_new_attempts_are_followed(begin: Begin) -> None:
    run, clock = begin(2), Clock()
    clock.happens = {
        15.0: lambda: append(run, 7, "late\n"),
        30.0: lambda: append(run, 0, "again\n", attempt=1),
    }
    came = {line: now for now, line in clock.follow(run, 35.0)}
    assert came["late"] < 18
    assert came["again"] < 33


def test_each_line_appears_once_and_in_the_order_of_its_rank(begin: Begin) -> None:
    run, clock, chance = begin(20), Clock(), random.Random(7)
    written = {rank: [f"0 {rank} begun"] for rank in range(20)}
    for number in range(300):
        rank, text = chance.randrange(20), f"line {number}"
        written[rank].append(text)
        pause = 10 * (number // 100)  # first every log is due at each poll, after a silence only a few
        clock.happens[10 + number / 10 + pause] = lambda rank=rank, text=text: append(run, rank, f"{text}\n")
    clock.happens[70.0] = lambda: write_json(run.finished_json, {"attempt": 0})
    came = [line for _, line in clock.follow(run, 200.0)]
    assert sorted(came) == sorted(line for own in written.values() for line in own)
    for rank, own in written.items():
        assert [line for line in came if line in own] == own, rank


def test_unreadable_logs_are_reported(begin: Begin) -> None:
    run = begin(1)
    run.attempt(0).log(1).mkdir()
    logs = Logs(run, Selection())
    for now in range(10):
        list(logs.added(float(now)))
    assert len(logs.problems) == 1

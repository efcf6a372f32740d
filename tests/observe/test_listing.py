"""The cache of table rows: rows of ended runs are rendered once and match their directories."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from clusterctl.launcher.observe import ended_runs
from clusterctl.launcher.observe.ended_runs import QUIET_SECONDS, EndedRuns, Row
from clusterctl.launcher.observe.runs import MOST_COUNTED
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import Filter, Listing, listing, newest
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]
FINISHED = {"attempts/0/host.json": {"start": 1.0, "end": 2.0, "exit_code": 0}, "finished.json": {"time": 2.0}}
FAILED = {"attempts/0/host.json": {"start": 1.0, "end": 2.0, "exit_code": 3}}
RUNS = 10


@pytest.fixture
def made() -> list[str]:
    """The ids of the runs whose rows were rendered."""
    return []


@pytest.fixture
def look(tmp_path: Path, made: list[str]) -> Callable[..., list[Row]]:
    """The rows that another process lists minutes later."""

    def row_of(status: Status, now: float) -> Row:
        made.append(status.record.run.id)
        return Row(status.record.run.id, status.state, status.record.created, {"STATE": str(status.state)})

    def once(folder: Path, wanted: Filter = Filter()) -> list[Row]:  # noqa: B008 - frozen
        ended = EndedRuns(tmp_path / "cache" / "runs.json", lambda: time.time() + 2 * QUIET_SECONDS)
        found = listing(folder, wanted, None, row_of, ended)
        ended.save()
        assert not found.problems
        return [*found.rows]

    return once


@pytest.fixture
def folder(fabricate: Fabricate) -> Path:
    """Ten ended runs, one of which failed."""
    for number in range(RUNS):
        run = fabricate(f"cora-20260102-03040{number}-000{number}", FAILED if number == 4 else FINISHED)
    return run.path.parent


@pytest.fixture
def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The number of stat, open and list calls below the folder of runs."""
    counted: Counter[str] = Counter()
    with monkeypatch.context() as patch:
        for name in ("stat", "open", "listdir", "scandir"):
            original = getattr(os, name)

            def call(path: Any, *words: Any, _name: str = name, _original: Any = original, **named: Any) -> Any:
                counted[_name] += isinstance(path, str | Path) and str(path).startswith(str(folder))
                return _original(path, *words, **named)

            patch.setattr(os, name, call)
        yield counted


def test_listing_ended_runs_costs_two_stats_per_run_and_parses_nothing(
    folder: Path, look: Any, made: list[str], calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = look(folder)
    assert len(made) == RUNS
    calls.clear()
    monkeypatch.setattr(ended_runs, "_made", None)
    assert look(folder) == first
    assert len(made) == RUNS
    assert calls == {"stat": 2 * RUNS, "open": 0, "listdir": 1}


def test_filtering_by_state_and_age_renders_no_rows(folder: Path, look: Any, made: list[str]) -> None:
    look(folder)
    assert [row.state for row in look(folder, Filter(states=frozenset({State.FAILED})))] == [State.FAILED]
    assert look(folder, Filter(seconds=1.0)) == []
    assert len(made) == RUNS


def test_a_restarted_run_gets_a_new_row_in_its_place(folder: Path, look: Any, made: list[str]) -> None:
    before = look(folder)
    run = RunDir(folder / before[5].run)
    run.attempt(1).path.mkdir()
    write_json(run.attempt(1).host_json, {"start": 3.0, "end": 4.0, "exit_code": 0})
    after = look(folder)
    assert made[RUNS:] == [run.id]
    assert [row.run for row in after] == [row.run for row in before]
    assert [old == new for old, new in zip(before, after, strict=True)] == [place != 5 for place in range(RUNS)]


def test_removed_and_incomplete_runs_have_no_row(folder: Path, look: Any) -> None:
    gone, *others = look(folder)
    (folder / gone.run).rename(folder / "elsewhere")
    (folder / "cora-20260103-030400-0001").mkdir()
    assert look(folder) == others


def test_totals_count_all_runs_that_match_unless_they_are_very_many(folder: Path) -> None:
    def row_of(status: Status, now: float) -> Row:
        return Row(status.record.run.id, status.state, status.record.created, {})

    def found(*, counted: bool) -> Listing:
        return listing(folder, Filter(("cora",)), 3, row_of, EndedRuns(), counted=counted)

    all_of_them = found(counted=True)
    assert (len(all_of_them.rows), all_of_them.more, all_of_them.is_whole) == (3, RUNS - 3, True)
    assert Counter(row.state for row in all_of_them.matching) == {State.FINISHED: RUNS - 1, State.FAILED: 1}
    assert not (few := found(counted=False)).is_whole
    assert len(few.matching) == 3
    for number in range(MOST_COUNTED):
        (folder / f"cora-20250102-030405-{number:04x}").mkdir()
    assert found(counted=True) == replace(found(counted=False), as_of=mock.ANY)


def test_what_a_list_leaves_out_is_counted(folder: Path, tmp_path: Path) -> None:
    def row_of(status: Status, now: float) -> Row:
        return Row(status.record.run.id, status.state, status.record.created, {})

    def more(wanted: Filter, count: int | None) -> tuple[int, int]:
        found = listing(folder, wanted, count, row_of, EndedRuns())
        return found.more, newest(folder, wanted, count).more

    everything, by_name, by_state = Filter(), Filter(("cora*",)), Filter(states=frozenset({State.FINISHED}))
    for count in (1, 3, RUNS):
        assert more(everything, count) == more(by_name, count) == (RUNS - count,) * 2
        assert more(by_state, count) == (max(0, RUNS - 1 - count),) * 2, "one has failed"
    assert more(everything, None) == more(by_state, None) == (0, 0)
    assert more(Filter(("other*",)), 1) == (0, 0)
    for number in range(5):
        (folder / f"tune-20260102-030400-00a1.{number}").mkdir()
    assert more(Filter(), 3) == (RUNS + 1 - 3, RUNS + 5 - 3), "a sweep is one row, and as many runs"

"""The trend of a training loss, read from both ends of its metrics."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.observe.attempt import LEAST_STEPS, LossTrend, read_loss_trend
from clusterctl.launcher.observe.lines import last_lines
from clusterctl.launcher.observe.measurements import newest_values


def trend_of(folder: Path, *attempts: list[dict[str, Any]], tail: int = 65536) -> LossTrend | None:
    """The trend of a run whose attempts wrote these records."""
    files = [folder / f"{number}.jsonl" for number in range(len(attempts))]
    for file, records in zip(files, attempts, strict=True):
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    lines = last_lines(files[-1], tail)
    return read_loss_trend(files, lines, newest_values(lines))


def records(losses: list[float], first: int = 1, **more: Any) -> list[dict[str, Any]]:
    return [{"time": 1.0, "step": first + index, "loss": loss, **more} for index, loss in enumerate(losses)]


def test_both_ends_of_the_losses_are_read(tmp_path: Path) -> None:
    trend = trend_of(tmp_path, records([5.0] * 500 + [4.0] * 20_000 + [3.0] * 50 + [2.0] * 50, steps=25_000))
    assert trend is not None
    assert trend.steps == 20_600
    assert trend.first == (5.0, 0.0)
    assert trend.newest == (2.5, pytest.approx(0.5 / math.sqrt(99)))


def test_the_first_losses_are_those_of_the_first_attempt_that_has_any(tmp_path: Path) -> None:
    attempts = [{"time": 1.0, "step": 0}], records([7.0] * 300), records([6.0] * 900, 300)
    trend = trend_of(tmp_path, [], *attempts[1:])
    assert trend is not None
    assert trend.first == (7.0, 0.0)


def test_a_run_that_begins_with_a_later_step_has_no_first_losses(tmp_path: Path) -> None:
    trend = trend_of(tmp_path, records([1.0] * 300, 50_000))
    assert trend is not None
    assert trend.first is None


@pytest.mark.parametrize(("steps", "done", "read"), [(800, 99, False), (800, 100, True), (None, 999, False)])
def test_there_is_no_trend_before_a_minimum_of_steps(tmp_path: Path, steps: int | None, done: int, read: bool) -> None:
    more = {} if steps is None else {"steps": steps}
    assert (trend_of(tmp_path, records([1.0] * done, **more)) is not None) is read


def test_a_long_training_has_no_trend_before_a_tenth_of_its_steps(tmp_path: Path) -> None:
    assert trend_of(tmp_path, records([1.0] * 700, steps=8000)) is None
    assert trend_of(tmp_path, records([1.0] * 800, steps=8000)) is not None
    assert trend_of(tmp_path, records([1.0] * 1000, steps=800_000)) is not None


def test_each_fold_is_judged_by_its_own_steps(tmp_path: Path) -> None:
    before = records([0.1] * 280, steps=2800, fold=1, folds=10)
    early = records([2.0] * (LEAST_STEPS - 1), 281, steps=2800, fold=2, folds=10)
    assert trend_of(tmp_path, before + early) is None
    trend = trend_of(tmp_path, before + early + records([2.0], 380, steps=2800, fold=2, folds=10))
    assert trend is not None
    assert (trend.steps, trend.first, trend.newest) == (100, None, (2.0, 0.0))


def test_there_is_no_trend_if_the_loss_is_clearly_below_chance(tmp_path: Path) -> None:
    assert trend_of(tmp_path, records([2.0] * 200, steps=200, classes=10)) is None
    assert trend_of(tmp_path, records([2.3] * 200, steps=200, classes=10)) is not None


@pytest.mark.parametrize("since", [1, 2, 700, 4321, 9997])
def test_the_first_nan_is_found_in_a_long_file(tmp_path: Path, since: int) -> None:
    losses = [1.0] * (since - 1) + [math.nan] * (10_001 - since)
    trend = trend_of(tmp_path, records(losses))
    assert trend is not None
    assert (trend.broken, trend.broken_since) == ("NaN", since)


def test_a_nan_from_before_a_restart_keeps_its_step(tmp_path: Path) -> None:
    trend = trend_of(tmp_path, records([1.0, 1.0, math.nan, math.nan]), records([math.inf] * 5, 5))
    assert trend is not None
    assert trend.broken_since == 3


def test_an_early_nan_is_reported_without_a_minimum_of_steps(tmp_path: Path) -> None:
    trend = trend_of(tmp_path, records([1.0, math.inf, math.nan], steps=100_000))
    assert trend is not None
    assert trend.broken_since == 2


NUMBERS = st.one_of(
    st.integers(), st.floats(), st.just(2**1023), st.text(max_size=3), st.none(), st.lists(st.integers())
)
NAMES = st.sampled_from(["step", "steps", "fold", "folds", "classes", "loss", "val_accuracy", "time"])


@given(st.lists(st.dictionaries(NAMES, NUMBERS), max_size=30), st.binary(max_size=50))
def test_arbitrary_files_never_raise(tmp_path_factory, lines: list[dict[str, Any]], torn: bytes) -> None:
    file = tmp_path_factory.mktemp("any") / "metrics.jsonl"
    file.write_bytes("".join(json.dumps(line) + "\n" for line in lines).encode() + torn + b"\n")
    read = last_lines(file)
    trend = read_loss_trend([file, file.with_name("missing")], read, newest_values(read))
    assert trend is None or trend.steps >= 0 or trend.broken_since is not None or trend.newest is None


def test_without_a_loss_there_is_no_trend(tmp_path: Path) -> None:
    assert trend_of(tmp_path, [{"time": 1.0, "step": 500}]) is None

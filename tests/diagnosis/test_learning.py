"""Whether a training is learning: real loss curves and generated ones."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.diagnosis.efficiency import NotLearning, not_learning
from clusterctl.launcher.observe.attempt import LossTrend, broken, mean_of, read_loss_trend
from clusterctl.launcher.observe.measurements import newest_values
from clusterctl.shared.record.metrics import KNOWN, metric_of

CURVES = Path(__file__).parent / "loss_curves"  # shipped jobs, four ranks each


def trend(first: list[float], newest: list[float], steps: int = 1000, **more: object) -> LossTrend:
    finite = [loss for loss in newest if math.isfinite(loss)]
    return LossTrend(steps, mean_of(first), mean_of(finite), broken=broken(newest), **more)  # type: ignore[arg-type]


def noisy(mean: float, noise: float, count: int = 100, seed: int = 0) -> list[float]:
    drawn = random.Random(seed)
    return [drawn.gauss(mean, noise) for _ in range(count)]


def throughout(name: str, tmp_path: Path) -> list[NotLearning | None]:
    """The findings on a recorded run, one for each few lines of its metrics."""
    lines = (CURVES / f"{name}.jsonl").read_bytes().splitlines()
    found = []
    for end in range(1, len(lines) + 1):
        file = tmp_path / "metrics.jsonl"
        file.write_bytes(b"".join(line + b"\n" for line in lines[:end]))
        newest = lines[:end][-200:]
        found.append(not_learning(read_loss_trend([file], newest, newest_values(newest))))
    return found


@pytest.mark.parametrize("name", ["cora", "imdb-gin", "imdb-seed", "taobao-generated", "synthetic-sage"])
def test_shipped_jobs_that_learn_are_never_reported(name: str, tmp_path: Path) -> None:
    assert set(throughout(name, tmp_path)) == {None}


def test_a_gcn_on_random_edges_is_reported_early_and_until_its_end(tmp_path: Path) -> None:
    found = throughout("synthetic", tmp_path)
    first = next(index for index, one in enumerate(found) if one)
    assert first <= 160  # of 357 lines
    assert all(found[first:])
    assert found[-1].note == "not learning: loss at chance"
    assert "that of a guess among 10 classes, and so is the val accuracy of 0.1008" in found[-1].text


@given(st.integers(2, 1000), st.floats(0, 0.005), st.integers(0, 100))
def test_a_loss_at_chance_is_reported_for_any_number_of_classes(classes: int, noise: float, seed: int) -> None:
    guess = math.log(classes)
    losses = noisy(guess, noise * guess, seed=seed)
    assert not_learning(trend([], losses, classes=classes, score=(KNOWN["val_accuracy"], 1 / classes)))


@given(st.integers(2, 1000), st.floats(0, 1), st.floats(0, 0.97), st.integers(0, 100))
def test_a_loss_clearly_below_chance_is_never_reported(classes: int, noise: float, part: float, seed: int) -> None:
    losses = noisy(part * math.log(classes), noise, seed=seed)
    assert not_learning(trend([], losses, classes=classes)) is None


def test_a_loss_at_chance_is_not_reported_if_the_score_is_above_chance() -> None:
    guess = [math.log(10)] * 100
    assert not_learning(trend([], guess, classes=10, score=(KNOWN["val_accuracy"], 0.15))) is None
    assert not_learning(trend([], guess, classes=10, score=(KNOWN["val_accuracy"], 0.11)))
    assert not_learning(trend([], guess, classes=10, score=(KNOWN["val_accuracy"], math.nan))) is None


def test_a_noisy_loss_at_chance_is_not_reported() -> None:
    assert not_learning(trend([], noisy(math.log(10), 0.5), classes=10)) is None


@pytest.mark.parametrize("start", [5.0, 0.01, -3.0, 4e5])
def test_a_flat_loss_is_reported(start: float) -> None:
    found = not_learning(trend(noisy(start, abs(start) / 50, 40), noisy(start, abs(start) / 50, seed=1)))
    assert found is not None
    assert found.note == "not learning: loss is flat"


@given(st.floats(0.1, 1e6), st.floats(0, 0.5), st.floats(0.03, 1), st.integers(0, 100))
def test_a_falling_loss_is_never_reported_however_noisy(start: float, noise: float, fall: float, seed: int) -> None:
    first = noisy(start, noise * start, 40, seed)
    newest = noisy(start * (1 - fall), noise * start, 100, seed + 1)
    found = not_learning(trend(first, newest))
    true_fall = abs(sum(newest) / 100 - sum(first) / 40) / abs(sum(first) / 40)
    assert found is None or true_fall < 0.02


def test_a_plateau_after_learning_is_not_reported() -> None:
    assert not_learning(trend(noisy(2.3, 0.05, 30), [0.7] * 100, steps=100_000)) is None


def test_few_losses_or_few_steps_give_no_report() -> None:
    assert not_learning(trend([2.0] * 10, [2.0] * 100)) is None
    assert not_learning(trend([2.0] * 30, [2.0] * 10)) is None
    assert not_learning(trend([2.0] * 30, [2.0] * 100, steps=150)) is None
    assert not_learning(None) is None


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "infinite")])
def test_a_nan_or_infinite_loss_is_reported_with_its_first_step(value: float, word: str) -> None:
    found = not_learning(trend([], [value] * 5, steps=7, broken_since=3))
    assert found is not None
    assert found.text == f"the training is not learning: the loss is {word} since step 3"
    assert "lower train.lr" in found.hint
    at_once = not_learning(trend([], [value] * 5, steps=7, broken_since=1))
    assert at_once is not None
    assert "check the data for NaN" in at_once.hint


def test_a_single_overflow_is_not_reported() -> None:
    assert not_learning(trend([], [math.inf, 1.0, 1.0], steps=50, broken_since=50)) is None
    assert not_learning(trend([], [math.nan], steps=1, broken_since=1)) is None


@given(st.lists(st.floats(), max_size=60), st.lists(st.floats(), max_size=60), st.integers(2, 100))
def test_arbitrary_losses_never_raise(first: list[float], newest: list[float], classes: int) -> None:
    not_learning(trend(first, newest, classes=classes))


@pytest.mark.parametrize(
    ("name", "value", "is_chance"),
    [
        ("val_accuracy", 0.25, True),
        ("val_f1_macro", 0.1, True),
        ("val_roc_auc", 0.5, True),
        ("val_roc_auc", 0.6, False),
        ("val_average_precision", 0.1, False),  # whose chance is unknown
        ("val_error_mine", 0.0, False),
    ],
)
def test_a_loss_of_guessing_is_only_reported_with_a_score_of_guessing(name: str, value: float, is_chance: bool) -> None:
    losses = noisy(math.log(4), 0.001)
    found = not_learning(trend(losses[:50], losses, classes=4, score=(metric_of(name), value)))
    assert found is not None  # the loss is flat, too
    assert (found.note == "not learning: loss at chance") == is_chance

"""What the names in metrics.jsonl mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.record.vocabulary import (
    KNOWN,
    Better,
    Role,
    counted_examples,
    metric_of,
    number,
    rounded,
    score_of,
)


def test_a_score_is_found_whatever_it_measures() -> None:
    assert score_of({"loss": 0.5, "val_accuracy": 0.9}, "val") == (KNOWN["val_accuracy"], 0.9)
    assert score_of({"test_auc": 0.8, "val_auc": 0.7}, "test") == (KNOWN["test_auc"], 0.8)
    assert score_of({"loss": 0.5, "val_auc": 0.7}, "test") is None


def test_a_plain_accuracy_counts_as_the_validation_score() -> None:
    assert score_of({"accuracy": 0.9}, "val") == (KNOWN["accuracy"], 0.9)
    assert score_of({"accuracy": 0.9}, "test") is None


@pytest.mark.parametrize("unit", ["nodes", "graphs", "edges"])
def test_the_examples_behind_a_test_score_are_named(unit: str) -> None:
    assert counted_examples({"loss": 1.0, f"test_{unit}": 1000}) == f"1000 {unit}"
    assert metric_of(f"test_{unit}").role is Role.COUNT


def test_uncounted_examples_are_not_mentioned() -> None:
    assert counted_examples({"test_accuracy": 0.5}) == ""


@pytest.mark.parametrize(
    ("name", "label", "role", "better"),
    [
        ("train_loss", "train loss", Role.CURVE, Better.LOWER),
        ("val/f1", "val/f1", Role.CURVE, Better.HIGHER),
        ("lr", "lr", Role.CURVE, Better.NEITHER),
        ("samples_per_second", "samples per second", Role.RATE, Better.HIGHER),
        ("_", "_", Role.CURVE, Better.NEITHER),
        ("", "", Role.CURVE, Better.NEITHER),
    ],
)
def test_an_unknown_name_is_described_by_its_words(name: str, label: str, role: Role, better: Better) -> None:
    metric = metric_of(name)
    assert (metric.label, metric.role, metric.better) == (label, role, better)


@given(st.text(max_size=30))
def test_any_name_has_a_metric_of_that_name(name: str) -> None:
    assert metric_of(name).name == name


@pytest.mark.parametrize("metric", KNOWN.values(), ids=list(KNOWN))
@pytest.mark.parametrize("value", [0, 3, 0.25, 1e9, -1e-9, math.nan, math.inf])
def test_every_known_metric_formats_every_value_briefly(metric, value: float) -> None:
    assert metric.label
    assert 1 <= len(metric.text(value)) <= 10
    assert metric.text(None) == ""


def test_numbers_keep_four_digits_or_take_an_exponent() -> None:
    values = [None, 0, 0.88512, 12.5, 1e-5, 123456.0, float("nan")]
    assert [number(value) for value in values] == ["", "0.0000", "0.8851", "12.5000", "1.00e-05", "1.23e+05", "nan"]


def test_rates_have_three_digits() -> None:
    assert [rounded(value) for value in (9.5, 950, 1234, 35_210, 1.2e6)] == ["9.5", "950", "1.2k", "35k", "1.2M"]

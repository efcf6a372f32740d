"""What the names in metrics.jsonl mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.shared.record.metrics import (
    KNOWN,
    Better,
    Role,
    counted_examples,
    metric_of,
    number,
    own_metrics,
    rounded,
    score_name,
    score_of,
)


def test_a_score_is_found_whatever_it_measures() -> None:
    assert score_of({"loss": 0.5, "val_accuracy": 0.9}, "val") == (KNOWN["val_accuracy"], 0.9)
    assert score_of({"test_auc": 0.8, "val_auc": 0.7}, "test") == (KNOWN["test_auc"], 0.8)
    assert score_of({"loss": 0.5, "val_auc": 0.7}, "test") is None


@pytest.mark.parametrize(
    ("measure", "lower", "name", "label"),
    [
        ("accuracy", False, "val_accuracy", "val accuracy"),
        ("AUC", False, "val_auc", "val AUC"),
        ("rmse", True, "val_rmse", "val rmse"),
        ("hits@20", False, "val_hits@20", "val hits@20"),
        ("f1_macro", False, "val_f1_macro", "val f1_macro"),
        ("smape", True, "val_error_smape", "val smape"),  # a function of the user's
        ("gain", False, "val_score_gain", "val gain"),
        ("neg_loss", False, "val_score_neg_loss", "val neg_loss"),
        ("accuracy", True, "val_error_accuracy", "val accuracy"),
    ],
)
def test_the_name_of_a_score_tells_which_direction_is_better(measure: str, lower: bool, name: str, label: str) -> None:
    assert score_name("val", measure, lower_is_better=lower) == name
    metric, value = score_of({"loss": 1.0, f"train_{name[4:]}": 3.0, name: 12.5}, "val") or (KNOWN["loss"], 0)
    assert (metric.name, metric.label, metric.role, value) == (name, label, Role.CURVE, 12.5)
    assert metric.better is (Better.LOWER if lower else Better.HIGHER)
    assert score_of({name: 1.0}, "test") is None
    assert metric_of(f"test_{name[4:]}").role is Role.RESULT
    assert name not in own_metrics({name: 12.5})


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

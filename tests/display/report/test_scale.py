"""Axes for the values of a setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.report.several import number_of, ordered, scale_of, shortened


@given(st.lists(st.floats().map(repr) | st.text(max_size=5), min_size=1, max_size=30))
def test_every_value_and_every_label_is_on_the_axis(texts: list[str]) -> None:
    scale = scale_of(texts)
    assert set(scale.places) == set(texts)
    assert all(0 <= place <= 1 for place in scale.places.values())
    assert scale.labels
    assert all(0 <= place <= 1 for place, _ in scale.labels)


def test_numbers_are_placed_to_scale() -> None:
    assert scale_of(["64", "128", "256"]).places == {"64": 0, "128": pytest.approx(1 / 3), "256": 1}
    assert scale_of(["1", "1"]).places == {"1": 0.5}


def test_an_axis_is_logarithmic_if_its_ends_are_more_than_a_hundred_times_apart() -> None:
    assert scale_of(["1e-4", "1e-3", "1e-1"]).places == pytest.approx({"1e-4": 0, "1e-3": 1 / 3, "1e-1": 1})
    assert scale_of(["1", "50.5", "100"]).places["50.5"] == 0.5
    assert scale_of(["-1", "499.5", "1000"]).places["499.5"] == pytest.approx(0.5)  # no logarithm below 0


def test_few_values_are_labels_themselves_and_many_get_round_labels() -> None:
    assert [text for _, text in scale_of(["1e-3", "0.5"]).labels] == ["1e-3", "0.5"]
    many = scale_of([str(10**-power) for power in range(12)])
    assert [text for _, text in many.labels][:2] == ["1.00e-11", "1"]
    assert len(many.labels) <= 19


def test_values_are_evenly_spaced_if_any_is_not_a_number() -> None:
    assert scale_of(["sgd", "10", "9"]).places == {"9": 0, "10": 0.5, "sgd": 1}
    assert ordered(["b", "", "nan", "2", "10"]) == ["2", "10", "", "b", "nan"]
    assert number_of("inf") is None


def test_a_long_name_keeps_its_end() -> None:
    assert shortened("train.hidden_channels", 60) == "…channels"
    assert shortened("train.lr", 60) == "train.lr"

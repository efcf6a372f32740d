"""Compact numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.plain import as_bytes, compact


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0B"), (999, "999B"), (1024, "1.0K"), (1.5 * 2**30, "1.5G"), (80 * 2**30, "80G"), (2**62, "4096P")],
)
def test_sizes_have_at_most_four_digits(size: float, shown: str) -> None:
    assert as_bytes(size) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0.0000"), (0.0123, "0.0123"), (31.927, "31.93"), (120_000, "120k"), (3.4e6, "3.4M")]
)
def test_numbers_are_compact(value: float, shown: str) -> None:
    assert compact(value) == shown


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_number_takes_more_than_ten_characters(value: float) -> None:
    assert len(compact(value)) <= 10

"""Replacement symbols in file names."""

from __future__ import annotations

import pytest

from clusterctl.emulator.output import expand


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("rank_%5t.out", "rank_00003.out"),
        ("%j_%t_%x", "12_3_co ra"),
        ("%%t%%%t", "%t%3"),
        ("%3x", "co ra"),
        ("%q%", "%q%"),
        ("\\%t", "%t"),
    ],
)
def test_symbols_are_replaced_as_sbatch_1_says(pattern, name):
    assert expand(pattern, {"j": "12", "t": "3", "x": "co ra"}) == name

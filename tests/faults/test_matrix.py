"""Faults times workloads on a real Slurm, several runs at a time; with accounting on and off."""

from __future__ import annotations

import pytest
from faults.matrix import Ground, strike_all
from faults.scene import WORKLOADS
from faults.table import FAULTS

pytestmark = pytest.mark.long


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "command"])
def test_a_training_comes_to_what_the_table_says(ground: Ground, workload: str) -> None:
    assert strike_all(ground, FAULTS, workload, at_once=4) == {}


@pytest.mark.parametrize("accounting", [True])
def test_what_comes_of_a_fault_is_the_same_where_slurm_keeps_accounts(ground: Ground) -> None:
    """All other tests of the matrix, and the one in `make test`, are without."""
    assert strike_all(ground, FAULTS, "command", at_once=20) == {}

"""Every fault on every workload on a real Slurm, several runs at a time; with and without accounting."""

from __future__ import annotations

import pytest
from faults.matrix import Ground, strike_all
from faults.scene import WORKLOADS
from faults.table import FAULTS


@pytest.mark.faults
@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "command"])
def test_every_fault_on_a_training_has_the_expected_outcome(ground: Ground, workload: str) -> None:
    assert strike_all(ground, FAULTS, workload, at_once=4) == {}


@pytest.mark.faults
@pytest.mark.parametrize("accounting", [True])
def test_outcomes_are_the_same_with_slurm_accounting(ground: Ground) -> None:
    """All other tests of faults run without accounting."""
    assert strike_all(ground, FAULTS, "command", at_once=20) == {}

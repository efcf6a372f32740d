"""Faults on one real Slurm, all at the same time, on a program that counts, saves checkpoints and needs no torch."""

from __future__ import annotations

from faults.matrix import Ground, strike_all
from faults.table import FAULTS


def test_every_fault_has_the_expected_outcome(ground: Ground) -> None:
    """Except those that other tests cover; test_matrix has all of them, including those that need a training."""
    faults = [fault for fault in FAULTS if not (fault.slow or fault.tests)]
    assert strike_all(ground, faults, "command", at_once=20) == {}

"""Parsing squeue's output about allocations and steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.slurm.queue import Allocation, Step, parse_allocation, parse_steps


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [("gres:gpu:2", 2), ("gres/gpu:a100:4", 4), ("N/A", None), ("gres:nvme:1", None)],
)
def test_an_allocation_is_read_field_by_field(tres: str, gpus: int | None) -> None:
    """`gres:gpu:2` as printed by 22.05, `gres/gpu` from the release notes of 23.11."""
    line = f"12\x1fRUNNING\x1f2\x1f1795188505\x1f{tres}\x1fnode[1-2]\x1f8\x1f\n"
    assert parse_allocation(line) == Allocation("12", "RUNNING", 2, 1795188505, gpus, "node[1-2]", 8)


def test_only_a_running_allocation_is_held() -> None:
    assert Allocation("1", "RUNNING", 1, None, None, "n").is_held
    assert not Allocation("1", "PENDING", 1, None, None, "").is_held


def test_steps_have_an_id_and_a_name() -> None:
    text = "12.0\x1fr-1.host\n12.1\x1fr-1.ranks\n12.batch\x1fbatch\nslurm_load: warning\n"
    assert parse_steps(text) == (Step("12.0", "r-1.host"), Step("12.1", "r-1.ranks"), Step("12.batch", "batch"))


@given(st.text())
def test_nonsense_never_raises(text: str) -> None:
    parse_allocation(text)
    parse_steps(text)

"""Parsing squeue's output about one pending job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.slurm.queue import WaitingJob, parse_waiting


def test_a_waiting_job_is_read_field_by_field() -> None:
    line = "12\x1fReqNodeNotAvail, UnavailableNodes:n1\x1fgpu\x1f1795188505\x1f(null)\x1f\n"
    assert parse_waiting(line) == WaitingJob("12", "ReqNodeNotAvail, UnavailableNodes:n1", "gpu", 1795188505.0, "")
    assert parse_waiting("12\x1fDependency\x1fgpu\x1fN/A\x1fafterok:7(unfulfilled)\x1f") == WaitingJob(
        "12", "Dependency", "gpu", None, "afterok:7(unfulfilled)"
    )


@given(st.text())
def test_nonsense_never_raises(text: str) -> None:
    parse_waiting(text)

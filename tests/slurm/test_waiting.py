"""Parsing squeue's output about one pending job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.slurm.queue import WaitingJob, parse_waiting


def test_a_waiting_job_is_read_field_by_field() -> None:
    line = "12\x1fReqNodeNotAvail, UnavailableNodes:n1\x1fgpu\x1f1795188505\x1f2-4\x1f1-02:00:00\x1f(null)\x1f\n"
    reason = "ReqNodeNotAvail, UnavailableNodes:n1"
    assert parse_waiting(line) == WaitingJob("12", reason, "gpu", 1795188505.0, "", nodes=2, seconds=93600)
    line = "12\x1fDependency\x1fgpu\x1fN/A\x1f1\x1fUNLIMITED\x1fafterok:7(unfulfilled)\x1f"
    assert parse_waiting(line) == WaitingJob("12", "Dependency", "gpu", None, "afterok:7(unfulfilled)", nodes=1)


@given(st.text())
def test_nonsense_never_raises(text: str) -> None:
    parse_waiting(text)

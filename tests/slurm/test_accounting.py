"""Parsing sacct's output about a job and its steps; fixtures/README.md lists the origin of the samples."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.jobs import Accounted, parse_accounting, parse_shown
from clusterctl.launcher.slurm.queue import SEPARATOR
from clusterctl.shared.errors import SlurmError

CANCELLED = """55186820|CANCELLED by 0|0:0|node[1-2]|None
55186820.batch|FAILED|15:0|node1|
55186820.0|FAILED|15:0|node[1-2]|
""".replace("|", SEPARATOR)


def answering(code: int, out: str, err: str = "") -> tuple[Slurm, list[Sequence[str]]]:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, code, out, err)

    return Slurm(lambda command: f"/usr/bin/{command}", run=run), asked


def test_the_job_is_read_with_the_user_who_cancelled_it_then_its_steps() -> None:
    slurm, asked = answering(0, CANCELLED)
    job, batch, step = slurm.accounted(["55186820"])
    assert job == Accounted("55186820", "CANCELLED", "0", 0, 0, "node[1-2]")
    assert (batch.step, batch.state, batch.exit_code) == ("55186820.batch", "FAILED", 15)
    assert step.nodes == "node[1-2]"
    assert len(asked) == 1
    assert asked[0][-2:] == ["-j", "55186820"]


def test_disabled_accounting_is_an_error_with_slurms_message() -> None:
    slurm, _ = answering(1, "", "Slurm accounting storage is disabled\n")
    with pytest.raises(SlurmError, match="accounting storage is disabled"):
        slurm.accounted(["12"])


@pytest.mark.parametrize(
    ("version", "ends"),
    [
        ("22.05.8", ["COMPLETED", "FAILED", "CANCELLED"]),
        (
            "25.05",
            ["OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "DEADLINE", "TIMEOUT", "CANCELLED", "BOOT_FAIL"],
        ),
    ],
)
def test_final_states_of_every_version_are_read_and_active_jobs_have_none(version: str, ends: list[str]) -> None:
    text = (Path(__file__).parent / "fixtures" / f"sacct-{version}.txt").read_text()
    lines = parse_accounting(text)
    assert len(lines) == text.count("\n")
    assert [line.ended for line in lines if line.ended] == ends
    assert {line.job_id for line in lines if not line.ended and line.state in ("RUNNING", "REQUEUED", "SUSPENDED")}


def test_unrelated_lines_are_skipped() -> None:
    assert parse_accounting("nonsense\n\n12|A|b|c|d\n") == ()


@given(st.text())
def test_no_output_breaks_the_parser(text: str) -> None:
    parse_accounting(text)


def test_scontrol_show_job_is_read_like_a_line_of_sacct() -> None:
    shown = "JobId=12 JobName=JobState=x\n   JobState=OUT_OF_MEMORY Reason=OutOfMemory\n   Requeue=1 ExitCode=0:125\n"
    assert parse_shown(shown + "   ReqNodeList=(null) NodeList=(null)\n") == (
        Accounted("12", "OUT_OF_MEMORY", "", 0, 125, ""),
    )
    assert parse_shown("") == parse_shown("JobId=12 ExitCode=?") == ()

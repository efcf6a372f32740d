"""Slurm queries about a queued run: which, how many, and what happens without an answer."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launcher.diagnosis.waiting import (
    QueueEvidence,
    changes,
    explain,
    gather_pending,
    smallest_change,
    try_changes,
)
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.plan import Plan
from clusterctl.launcher.submission.sbatch import Estimate, SlurmRefused
from clusterctl.launcher.submission.script import render
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.layout import RunDir

Fabricate = Callable[..., RunDir]
CAPTURED = Path(__file__).parents[1] / "slurm" / "fixtures" / "sinfo-22.05.8.txt"
RUN = "a-20260101-000000-aaaa"
NOW = 1_000_500.0


class Site:
    """A Slurm with one waiting job, which counts its queries."""

    def __init__(self, *, reason: str = "Resources", silent: Sequence[str] = ()) -> None:
        self.reason, self.silent = reason, silent
        self.asked: list[str] = []

    @property
    def slurm(self) -> Slurm:
        return Slurm(lambda command: command, {}, self._answer)

    def _answer(self, argv: Sequence[str], environment: object) -> subprocess.CompletedProcess[str]:
        self.asked.append(argv[0])
        if argv[0] in self.silent:
            raise subprocess.TimeoutExpired(argv[0], 10)
        if argv[0] == "sinfo":
            return subprocess.CompletedProcess([], 0, CAPTURED.read_text(), "")
        waiting = f"12\x1f{self.reason}\x1fmain\x1f{NOW + 600:.0f}\x1f2\x1f20:00\x1f(null)\x1f"
        queue = "12\x1fPENDING\x1f\x1f\x1f\x1f\x1f0\x1f/\x1f"
        return subprocess.CompletedProcess([], 0, waiting if "-j" in argv else queue, "")


@pytest.fixture
def status(fabricate: Fabricate) -> Status:
    run = fabricate(RUN, {"submission.json": {"job_id": "12"}})
    (found,) = statuses_of([run], lambda cluster: Site().slurm, lambda: NOW).statuses
    return found


def answers(*starts: float | None) -> Callable[[Plan], Estimate | None]:
    """Slurm's estimates in order; None means refused."""
    left = list(starts)

    def ask(plan: Plan) -> Estimate:
        assert render(plan).startswith("#!/bin/bash\n#SBATCH")
        start = left.pop(0)
        if start is None:
            raise SlurmRefused("sbatch refused the job", "no", "")
        return Estimate(int(start), "node1", "main")

    return ask


def gathered(status: Status, slurm: Slurm, ask: Callable[[Plan], Estimate | None]) -> QueueEvidence:
    """As `why` does it."""
    found = gather_pending(status, slurm, lambda: NOW)
    return try_changes(found, status.record, changes(found), ask)


def test_squeue_and_sinfo_run_once_and_trials_stop_at_the_first_success(status: Status) -> None:
    site = Site()
    found = gathered(status, site.slurm, answers(NOW + 600, None, NOW))
    assert site.asked == ["squeue", "sinfo"]
    assert [trial.start for trial in found.trials] == [None, NOW]
    assert smallest_change(found)[0] is not None


def test_no_estimates_are_requested_if_no_change_can_help(status: Status) -> None:
    assert gathered(status, Site(reason="Dependency").slurm, answers()).trials == ()


def test_missing_answers_are_listed_as_unknown(status: Status) -> None:
    def silent(plan: Plan) -> Estimate:
        raise SlurmError("sbatch did not answer within 60 s")

    blind = gathered(status, Site(silent=("squeue", "sinfo")).slurm, silent)
    assert [line.split(":")[0] for line in explain(blind).unknown] == ["the job's place in the queue", "free resources"]
    waiting = gathered(status, Site().slurm, silent)
    assert explain(waiting).unknown == ("smaller requests that would start now: sbatch did not answer within 60 s",)


def test_the_suggested_command_repeats_what_was_typed(status: Status) -> None:
    assert gather_pending(status, Site().slurm).typed == ("rerun", status.record.run.id)
    record = replace(status.record, argv=("submit", "./x.toml", "--nodes", "4"))
    assert gather_pending(replace(status, record=record), Site().slurm).typed == ("submit", "./x.toml", "--nodes", "4")


def test_changed_options_go_before_the_program(status: Status) -> None:
    record = replace(status.record, argv=("submit", "--", "python", "train.py", "--wait"))
    found = gathered(replace(status, record=record), Site().slurm, answers(NOW + 600, None, NOW))
    again = explain(found).commands[1]
    assert again.startswith("clusterctl submit --")
    assert again.endswith(" -- python train.py --wait")


def test_a_run_without_a_job_causes_no_queries(fabricate: Fabricate) -> None:
    (found,) = statuses_of([fabricate(RUN)], lambda cluster: Site().slurm, lambda: NOW).statuses
    site = Site()
    assert gather_pending(found, site.slurm).job.job_id == ""
    assert site.asked == ["sinfo"]

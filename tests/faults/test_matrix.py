"""Every fault on every workload on a real Slurm, several runs at a time; with and without accounting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faults.matrix import Ground, strike_all
from faults.scene import WORKLOADS
from faults.shapes import SHAPES
from faults.sites import SITES
from faults.table import FAULTS, Outcome
from support.sandbox_fixture import RunningSandbox
from support.scenario import wait_until

from clusterctl.shared.errors import Cause


@pytest.mark.faults
@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name != "command"])
def test_every_fault_on_a_training_has_the_expected_outcome(ground: Ground, workload: str) -> None:
    assert strike_all(ground, FAULTS, workload, at_once=4) == {}


@pytest.mark.faults
@pytest.mark.parametrize("accounting", [True])
def test_outcomes_are_the_same_with_slurm_accounting(ground: Ground) -> None:
    """All other tests of faults run without accounting."""
    assert strike_all(ground, FAULTS, "command", at_once=20) == {}


@pytest.mark.faults
@pytest.mark.parametrize("workload", ["command", "reddit"])
@pytest.mark.parametrize("site", SITES)
def test_outcomes_are_the_same_under_every_sites_rules(
    ground: Ground, sandbox_home: RunningSandbox, site: str, workload: str
) -> None:
    """No run is lost, none runs twice, and no job is left in the queue."""
    faults = FAULTS
    if "no requeue" in site.split(", "):  # not by hand either; but a job whose script has died has a successor
        faults = [
            replace(fault, outcome=Outcome.RECOVERS, cause=Cause.NODE) if fault.name == "script" else fault
            for fault in FAULTS
            if fault.name != "requeue"
        ]
    assert strike_all(ground, faults, workload, at_once=20 if workload == "command" else 4) == {}
    wait_until(lambda: not sandbox_home.call("squeue", "--noheader"), 120, "an empty queue")


@pytest.mark.faults
@pytest.mark.parametrize("shape", SHAPES)
def test_outcomes_are_the_same_for_every_kind_of_job(ground: Ground, shape: str) -> None:
    assert strike_all(ground, FAULTS, "command", SHAPES[shape].at_once) == {}


# Of each kind of end one fault: in the job, by the queue, for good.
SAMPLE = ("kill-2", "requeue", "raise")


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_kinds_of_jobs_restart_on_the_emulator(emulated: Ground, shape: str) -> None:
    assert strike_all(emulated, [fault for fault in FAULTS if fault.name in SAMPLE], "command", at_once=1) == {}


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_kinds_of_jobs_restart_on_slurm(ground: Ground, shape: str) -> None:
    """All faults in `make test-faults`."""
    assert strike_all(ground, [fault for fault in FAULTS if fault.name in SAMPLE], "command", at_once=2) == {}

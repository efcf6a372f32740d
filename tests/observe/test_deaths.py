"""Failed tasks, parsed from the output of srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.launcher.observe.rank_events import deaths, ranks_of

SLURM = Path(__file__).parents[1] / "diagnosis" / "slurm_22_05"


def test_deaths_are_those_before_srun_terminated_the_others() -> None:
    lines = (SLURM / "kill9.host.log").read_text().splitlines()
    assert [(death.rank, death.node, death.how, death.code) for death in deaths(lines)] == [
        (2, "node2", "Killed", None)
    ]
    (failed,) = deaths((SLURM / "exit3.host.log").read_text().splitlines())
    assert failed.code == 3


@pytest.mark.parametrize(
    ("text", "ranks"), [("3", [3]), ("0-1", [0, 1]), ("0,2-4", [0, 2, 3, 4]), ("", []), ("x-3", []), ("5-2", [])]
)
def test_slurms_task_lists_are_parsed(text: str, ranks: list[int]) -> None:
    assert ranks_of(text) == ranks


@pytest.mark.parametrize(
    "ends",
    [
        "srun: launch/slurm: _step_signal: Terminating StepId=12.0",
        "srun: Terminating StepId=12.0",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        "slurmstepd-node1: error: *** STEP 12.0 ON node1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***",
    ],
)
def test_tasks_that_end_after_srun_has_ended_the_step_were_terminated(ends: str) -> None:
    first, second = (f"srun: error: node{task}: task {task}: Exited with exit code 1" for task in (1, 2))
    assert [death.rank for death in deaths([first, ends, second])] == [1]

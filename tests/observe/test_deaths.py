"""Failed tasks, parsed from the output of srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.observe.deaths import deaths, ranks_of

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

"""Parsing sbatch's start estimate for a job that is not submitted."""

from __future__ import annotations

import pytest

from clusterctl.launcher.submission.sbatch import Estimate, parse_estimate


@pytest.mark.parametrize(
    ("output", "estimate"),
    [
        (
            "sbatch: Job 7 to start at 1795381662 using 32 processors on nodes node[3-4] in partition main\n",
            Estimate(1795381662, "node[3-4]", "main"),
        ),
        (  # Slurm 26.05
            "sbatch: Job 7 to start at 1795381662 a using 32 processors on nodes node[3-4] in partition main\n",
            Estimate(1795381662, "node[3-4]", "main"),
        ),
        ("sbatch: Job to start at 1795381662 on node1 in partition local\n", Estimate(1795381662, "node1", "local")),
        ("sbatch: Job 7 to start at N/A using 1 processors on nodes node1 in partition main\n", None),
    ],
)
def test_the_start_estimate_of_each_slurm_version_is_parsed(output: str, estimate: Estimate | None) -> None:
    assert parse_estimate(output) == estimate

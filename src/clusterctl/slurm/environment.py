"""The environment of every Slurm command: built, not inherited."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# These beat `#SBATCH` lines, filter what squeue and scancel see, or containerise the batch script.
_REMOVED = ("SBATCH_", "SRUN_", "SALLOC_", "SLURM_", "SQUEUE_", "SCANCEL_", "PYXIS_", "ENROOT_")


def built_environment(base: Mapping[str, str], slurm_conf: str | None) -> dict[str, str]:
    """`base` without the variables that steer Slurm, pyxis and enroot behind our back.

    SLURM_CONF alone stays, for it says where the controller is; the cluster's `slurm_conf` wins over it.
    """
    kept = {name: value for name, value in base.items() if name == "SLURM_CONF" or not name.startswith(_REMOVED)}
    return kept | ({"SLURM_CONF": slurm_conf} if slurm_conf else {})

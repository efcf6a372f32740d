"""The environment of Slurm's commands."""

from __future__ import annotations

from clusterctl.launcher.slurm.client import built_environment


def test_variables_that_steer_slurm_pyxis_or_enroot_are_removed() -> None:
    base = {
        "PATH": "/bin",
        "SBATCH_PARTITION": "debug",
        "SRUN_CPUS_PER_TASK": "1",
        "SLURM_JOB_ID": "7",
        "SQUEUE_PARTITION": "debug",
        "SCANCEL_INTERACTIVE": "1",
        "PYXIS_CONTAINER_IMAGE": "x",
        "ENROOT_ROOTFS": "x",
    }
    assert built_environment(base, None) == {"PATH": "/bin"}


def test_slurm_conf_is_kept_unless_the_cluster_sets_it() -> None:
    base = {"SLURM_CONF": "/etc/mine.conf"}
    assert built_environment(base, None) == base
    assert built_environment(base, "/etc/site.conf") == {"SLURM_CONF": "/etc/site.conf"}

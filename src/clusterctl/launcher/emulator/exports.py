"""Which variables of its caller a job or a step gets: --export, as sbatch(1) and srun(1) describe it."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator.jobs import JOB_MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "SLURM_EXPORT_ENV"  # hands the job's choice on to its steps


def exported(environment: Mapping[str, str], wanted: str | None) -> dict[str, str]:
    """`environment` as far as the argument `wanted` of --export takes it; Slurm's own variables always."""
    if wanted is None:
        return dict(environment)
    words = wanted.split(",")
    given = dict(word.split("=", 1) for word in words if "=" in word)
    slurms = {name: value for name, value in environment.items() if name.startswith(("SLURM_", "SPANK_", JOB_MARK))}
    if wanted.upper() == "NONE":  # the user's login environment
        user = pwd.getpwuid(os.getuid())
        given = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell}
        given["PATH"] = os.defpath
    elif "ALL" in map(str.upper, words):
        slurms = dict(environment)
    named = {word: environment[word] for word in words if word in environment}
    return {**slurms, **named, **given}

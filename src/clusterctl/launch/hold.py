"""Holding nodes for warm runs: a batch job that waits, and at its end takes off the nodes what was imported there.

A batch script and not `salloc`: the login shell may go away, and something has to clean up after the last run.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.config import runs_folder
from clusterctl.launch.plan import check_path, make_plan
from clusterctl.launch.sbatch import pipe_to_sbatch, refusal
from clusterctl.launch.script import part, sbatch_lines
from clusterctl.launch.warm import warm_folder
from clusterctl.runs.files import make_private
from clusterctl.runs.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.config import Resolved

CLOSING_SECONDS = 60  # before the time limit
CLOSE_SIGNAL = "USR1"
_REPLACED = ("signal", "requeue", "no-requeue")


def render_holder(resolved: Resolved, folder: Path) -> str:
    """The script of a job that holds the nodes of `resolved`; `folder` is where warm runs keep their marks."""
    run = RunDir(folder / "allocation")
    plan = make_plan(resolved, run, folder / "code", clusterctl.__version__)
    options: list[tuple[str, str | int | None]] = [("job-name", plan.name)]
    options += [option for option in plan.options if option[0] not in _REPLACED]
    options += [("signal", f"B:{CLOSE_SIGNAL}@{CLOSING_SECONDS}"), ("no-requeue", None)]
    options += [("chdir", str(folder)), ("output", f"{folder}/%j.log"), ("open-mode", "append")]
    marks = f"marks={quote(str(folder))}/$SLURM_JOB_ID"
    return "\n".join(["#!/bin/bash", *sbatch_lines(options), marks, part("hold.sh")])


def hold(resolved: Resolved, sbatch: str, environment: Mapping[str, str]) -> str:
    """Ask for the nodes of `resolved`; the job's number. Raises SlurmRefused, and SlurmError for silence."""
    runs = runs_folder(resolved.cluster)
    check_path(str(runs))
    folder = make_private(warm_folder(make_private(runs)))
    script = render_holder(resolved, folder)
    done = pipe_to_sbatch([sbatch, "--parsable"], script, environment, "is it in the queue? squeue --me")
    if done.returncode:
        raise refusal(done.stderr)
    return done.stdout.strip().partition(";")[0]


def let_go(runs: Path, job_id: str) -> bool:
    """Whether a holder of ours runs under this number, which closes up when it gets `CLOSE_SIGNAL`."""
    return (warm_folder(runs) / job_id / "held").exists()

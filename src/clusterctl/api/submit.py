"""Submit a plan: write the run directory, hand the script to sbatch through submitit, note the job's number.

A crash at any point loses no job and submits none twice: everything that the job needs is written before sbatch is
called, and the job is found again by its working directory, the run directory (see `adopt`).
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clusterctl
from clusterctl.checks.request import Obstacle, obstacles, refuse
from clusterctl.checks.surroundings import look_around
from clusterctl.config import runs_folder
from clusterctl.errors import ConfigError
from clusterctl.launch.adopt import adopt
from clusterctl.launch.plan import Plan, brings_code, make_plan
from clusterctl.launch.sbatch import SlurmRefused, call_sbatch, write_pickle
from clusterctl.launch.script import render
from clusterctl.launch.snapshot import git_state, take_snapshot
from clusterctl.launch.warm import check_fits, image_stamp, start_host_step, warmed
from clusterctl.runs.files import make_private, write_json, write_text
from clusterctl.runs.layout import RunDir
from clusterctl.spec import to_record
from clusterctl.spec.values import slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.config import Resolved
    from clusterctl.slurm.allocation import Allocation

RUN_SCHEMA_VERSION = 1


def planned(resolved: Resolved, allocation: Allocation | None = None) -> Plan:
    """The plan of a submission typed now; nothing is written, so `--dry-run` needs neither submitit nor Slurm."""
    runs = runs_folder(resolved.cluster)
    run = RunDir(runs / _new_id(resolved.job.name))
    plan = make_plan(resolved, run, runs / ".code" / "snapshot", clusterctl.__version__)
    return _warmed(plan, resolved, allocation) if allocation else plan


def submit(resolved: Resolved, sbatch: str, environment: Mapping[str, str], *, hold: bool = False) -> RunDir:
    """Submit `resolved` through the command at `sbatch`, called in `environment`, and return its run.

    Raises ConfigError with everything that preflight finds; SlurmError when sbatch refuses - nothing is left behind
    then - or does not answer: the run directory stays, because the job may be in the queue all the same.
    """
    plan, code = _prepared(resolved)
    run = plan.run
    _write_run(run, resolved, plan, code)
    command = [sbatch, "--hold"] if hold else [sbatch]
    try:
        job_id = call_sbatch(plan, command, environment)
    except SlurmRefused:
        shutil.rmtree(run.path)
        raise
    adopt(run, job_id)
    return run


def submit_warm(resolved: Resolved, allocation: Allocation, srun: str, environment: Mapping[str, str]) -> RunDir:
    """Start `resolved` in an allocation that is held already, through the command at `srun`, and return its run.

    The run needs nobody on the login side. Raises UsageError where the allocation is too small, ConfigError with
    everything that preflight finds, SlurmError where srun refuses; nothing is left behind then.
    """
    check_fits(resolved.job.resources, allocation)
    plan, code = _prepared(resolved)
    plan = _warmed(plan, resolved, allocation)
    _write_run(plan.run, resolved, plan, code)
    adopt(plan.run, allocation.job_id)
    try:
        start_host_step(plan, slurm_time(resolved.job.resources.time), srun, environment)
    except SlurmRefused:
        shutil.rmtree(plan.run.path)
        raise
    return plan.run


def _warmed(plan: Plan, resolved: Resolved, allocation: Allocation) -> Plan:
    return warmed(plan, resolved, allocation, image_stamp(resolved.job.container.image))


def _prepared(resolved: Resolved) -> tuple[Plan, Path]:
    """The plan of a new run, and the snapshot of its code, taken."""
    runs = runs_folder(resolved.cluster)
    planned(resolved)  # what no flag or path can carry is said before anything is looked for
    refuse(_obstacles(resolved, runs))
    code = _snapshot(runs, Path(resolved.job.code) if resolved.job.code and not brings_code(resolved.job) else None)
    run = RunDir(runs / _new_id(resolved.job.name))
    return make_plan(resolved, run, code, clusterctl.__version__), code


def _obstacles(resolved: Resolved, runs: Path) -> Iterator[Obstacle]:
    """What can be seen from here that would make the run fail; the folder of runs is made on the way."""
    try:
        _check_writable(runs)
    except ConfigError as error:
        yield Obstacle(error.message, error.hint)
    yield from obstacles(look_around(resolved))


def _new_id(name: str) -> str:
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def _check_writable(runs: Path) -> None:
    """Make `runs` and the folder of snapshots in it, private; what tasks run must not come from someone else."""
    hint = "set CLUSTERCTL_RUNS, or `runs` in the cluster file"
    try:
        code = make_private(make_private(runs) / ".code")
    except OSError as error:
        raise ConfigError(f"cannot make the folder of runs: {error.filename}: {error.strerror}", hint) from error
    if not os.access(runs, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write to the folder of runs: {runs}", hint)
    if code.stat().st_uid != os.geteuid():
        raise ConfigError(f"belongs to someone else: {code}", hint)


def _snapshot(runs: Path, project: Path | None) -> Path:
    try:
        return take_snapshot(runs, project)
    except OSError as error:
        message = f"cannot copy the code of the run to {runs}: {_reason(error)}"
        raise ConfigError(message, "is the disk full? a file that cannot be read belongs into .gitignore") from error


def _write_run(run: RunDir, resolved: Resolved, plan: Plan, code: Path) -> None:
    try:
        make_private(run.path)
        run.attempts_folder.mkdir()
        run.pickles.mkdir()
        run.code.symlink_to(Path("..", ".code", code.name))
        write_text(run.script, render(plan), mode=0o700)
        write_pickle(run, resolved.job.resources.time)
        state = git_state(Path(resolved.job.code or resolved.job_file.resolve().parent))
        if state and state[1]:
            write_text(run.path / "git.patch", resolved.secrets.hide(state[1]))
        record = _record(run, resolved, state[0] if state else None)
        write_json(run.run_json, record | ({"allocation": plan.warm.job_id} if plan.warm else {}))
    except OSError as error:
        shutil.rmtree(run.path, ignore_errors=True)
        raise ConfigError(
            f"cannot write the run directory: {run.path}: {error.strerror}", "is the disk full? see: df -h"
        ) from error


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)


def _record(run: RunDir, resolved: Resolved, git: Any) -> dict[str, Any]:
    return {
        "schema_version": RUN_SCHEMA_VERSION,
        "id": run.id,
        "created": time.time(),
        "job": to_record(resolved.secrets.hide_in(resolved.job)),
        "cluster": to_record(resolved.secrets.hide_in(resolved.cluster)),
        "origins": resolved.origins,
        "versions": {
            "clusterctl": clusterctl.__version__,
            "python": platform.python_version(),
            "submitit": version("submitit"),
        },
        "git": git,
        "argv": resolved.secrets.hide_typed(sys.argv[1:]),
    }

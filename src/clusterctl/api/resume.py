"""Submit a run again: a further attempt, in the same directory, from its last checkpoint.

As with `submit`, a crash at any point loses no job and submits none twice: what was true before goes to
`submissions/<n>/`, run.json then says in one rename that it is past, and only then is sbatch called.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import clusterctl
from clusterctl.checks.verify import explained, refuse, verify
from clusterctl.errors import ConfigError, UsageError
from clusterctl.launch.adopt import adopt
from clusterctl.launch.plan import make_plan
from clusterctl.launch.sbatch import SlurmRefused, call_sbatch
from clusterctl.launch.script import render
from clusterctl.runs.files import make_private, read_json, write_json, write_text
from clusterctl.spec import to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterctl.checks.check import Check
    from clusterctl.config import Resolved
    from clusterctl.runs.layout import RunDir
    from clusterctl.slurm import Slurm

_LEASE_SECONDS = 300  # sbatch may take a minute to answer; who holds a lease for longer has died


def resume(
    run: RunDir,
    resolved: Resolved,
    slurm: Slurm,
    still_ended: Callable[[], str | None],
    *,
    hold: bool = False,
) -> tuple[Check, ...]:
    """Submit `run` as `resolved` says, with the code that it began with; what was verified before.

    `still_ended` is asked once nobody else can resume the run any more; it returns the number of the job that has
    ended, and raises what speaks against going on. Raises ConfigError with everything that a check refuses, SlurmError
    when sbatch refuses: everything is then as before.
    """
    sbatch = slurm.path_of("sbatch")
    code = run.code.resolve()
    if not code.is_dir():
        raise ConfigError(f"the code of the run is gone: {code}", "submit the job anew")
    plan = make_plan(resolved, run, code, clusterctl.__version__)
    checks = verify(resolved, plan, slurm)
    refuse(checks, resolved)
    with _lease(run):
        past_job = still_ended()
        past = _archive(run)
        try:
            write_text(run.script, render(plan), mode=0o700)
            write_json(run.run_json, _record(run, resolved, past_job))
            for path in (run.cancel_json, run.submission_json):
                path.unlink(missing_ok=True)
            job_id = call_sbatch(plan, [sbatch, "--hold"] if hold else [sbatch], slurm.environment)
        except SlurmRefused as refused:
            _restore(run, past)
            raise explained(refused, resolved, slurm) from refused
        except OSError:
            _restore(run, past)
            raise
        adopt(run, job_id)
    return checks


def _record(run: RunDir, resolved: Resolved, past_job: str | None) -> dict[str, Any]:
    """run.json with the job as it is now, and what was before."""
    record = read_json(run.run_json)
    attempts = run.attempts()
    note = {
        "time": time.time(),
        "attempts": attempts[-1].number + 1 if attempts else 0,
        "job_id": past_job,
        "argv": resolved.secrets.hide_typed(sys.argv[1:]),
    }
    return {
        **record,
        "job": to_record(resolved.secrets.hide_in(resolved.job)),
        "cluster": to_record(resolved.secrets.hide_in(resolved.cluster)),
        "origins": resolved.origins,
        "resumes": [*(record.get("resumes") or []), note],
    }


def _archived(run: RunDir) -> list[Path]:
    return [run.run_json, run.script, run.submission_json, run.cancel_json]


def _archive(run: RunDir) -> Path:
    """Copy what a new submission replaces into a folder of its own."""
    make_private(run.submissions)
    past = run.submissions / str(sum(1 for _ in run.submissions.iterdir()))
    past.mkdir()
    for path in _archived(run):
        with suppress(FileNotFoundError):
            shutil.copy2(path, past / path.name)
    return past


def _restore(run: RunDir, past: Path) -> None:
    for path in _archived(run):
        if (past / path.name).exists():
            (past / path.name).replace(path)
    shutil.rmtree(past)


@contextmanager
def _lease(run: RunDir) -> Iterator[None]:
    """Only one process at a time resumes a run."""
    lease = run.path / ".resume"
    with suppress(FileNotFoundError):
        if time.time() - lease.stat().st_mtime > _LEASE_SECONDS:
            lease.rename(lease.with_name(f".resume.{time.time_ns()}"))
    try:
        lease.mkdir()
    except FileExistsError:
        raise UsageError(
            f"{run.id} is being resumed already", "see how far it is: clusterctl status " + run.id
        ) from None
    try:
        yield
    finally:
        lease.rmdir()

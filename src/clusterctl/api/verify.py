"""Run all checks that are possible from here: the first step of `submit` and `resume`, and all of `doctor`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.checks import verify as checks
from clusterctl.checks.check import Check, Verdict
from clusterctl.checks.code_copy import copy_rules
from clusterctl.checks.look import look_around
from clusterctl.config import load_cluster, runs_folder, state_path
from clusterctl.errors import ConfigError, reason
from clusterctl.runs.files import nearest_existing
from clusterctl.runs.layout import code_folder
from clusterctl.runs.ownership import make_private, make_runs_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.checks.surroundings import Surroundings
    from clusterctl.config import Resolved
    from clusterctl.containers.listener import ProgressListener
    from clusterctl.launch.plan import Plan
    from clusterctl.launch.snapshot import Code
    from clusterctl.slurm import Slurm

_FULL_BYTES = 2**20  # with less, a write of ours may have failed


def verify(plan: Plan, resolved: Resolved, slurm: Slurm, progress: ProgressListener, code: Code) -> tuple[Check, ...]:
    """The warnings. Raises one error for everything that would make the run fail; imports the image if needed.

    `code` will be copied, or is the snapshot of an earlier run, whose source folder may have changed.
    """
    resolved = _with_kept(code, resolved)
    found = _warnings(_look(plan, resolved, slurm, progress), resolved)
    return (*found, *copy_rules(code, resolved.job.argv))


def verify_all(
    plans: Sequence[Plan], jobs: Sequence[Resolved], slurm: Slurm, progress: ProgressListener, code: Code
) -> tuple[Check, ...]:
    """`verify` for many runs: those with the same surroundings are checked together."""
    seen: dict[str, Surroundings] = {}
    warnings: list[Check] = []
    for plan, submitted in zip(plans, jobs, strict=True):
        job, resolved = submitted.job, _with_kept(code, submitted)
        place = repr((job.workload, job.code, job.setup, job.container, job.data, job.resources))
        if place in seen:
            warnings += _warnings(checks.with_job(seen[place], resolved), resolved)
            continue
        seen[place] = _look(plan, resolved, slurm, progress)
        warnings += (*_warnings(seen[place], resolved), *copy_rules(code, job.argv))
    return tuple({check.message: check for check in warnings}.values())


def _with_kept(code: Code, resolved: Resolved) -> Resolved:
    """`resolved` with the snapshot as its code folder, if this machine has no other copy."""
    if (code.is_kept or code.is_sent) and resolved.job.code:
        return replace(resolved, job=replace(resolved.job, code=str(code.copied_project)))
    return resolved


def _look(plan: Plan, resolved: Resolved, slurm: Slurm, progress: ProgressListener) -> Surroundings:
    """The run's surroundings, after importing its image unless something else will."""
    runs = make_runs_folder(plan.run.path.parent)
    try:
        make_private(code_folder(runs))
    except OSError as error:
        raise ConfigError(f"cannot write to the runs folder: {reason(error)}", "see: df -h") from error
    image = resolved.job.container.image
    if image and plan.view and plan.view.image != image:  # a reference that pyxis will not fetch
        checks.refuse(checks.verify(resolved, replace(plan, view=None), slurm), resolved)  # an import may take minutes
        from clusterctl.containers.importing import import_reference

        import_reference(image, None, Path(plan.view.image).parent, progress)  # concurrent imports wait
    return look_around(resolved, plan, slurm)


def _warnings(found: Surroundings, resolved: Resolved) -> tuple[Check, ...]:
    """The warnings; raises one error for all failed checks."""
    judged = checks.judge(found)
    checks.refuse(judged, resolved)
    return tuple(check for check in judged if check.verdict is Verdict.WARN)


def doctor(cluster: str | None = None) -> tuple[str, tuple[Check, ...]]:
    """The name of the chosen cluster, and the results of all checks of it and of this machine."""
    target = load_cluster(cluster)
    return target.name, checks.check_cluster(target)


def full_folder() -> Path | None:
    """The first folder on a full disk, of those that clusterctl writes to on this machine."""
    import tempfile  # 10 ms

    for folder in (state_path(), runs_folder(None), Path(tempfile.gettempdir()), Path.cwd()):
        space = os.statvfs(nearest_existing(folder))
        if space.f_bavail * space.f_frsize < _FULL_BYTES or (space.f_files and not space.f_favail):
            return folder
    return None

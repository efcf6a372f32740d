"""Run all checks that are possible from here: the first step of `submit` and `resume`, and all of `doctor`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.api.remote.operations import operation
from clusterctl.launcher.checks import verify as checks
from clusterctl.launcher.checks.job_rules import script_rules
from clusterctl.launcher.checks.look import look_around
from clusterctl.launcher.checks.surroundings import Check, Verdict, warn
from clusterctl.launcher.config import current_folder, load_cluster, runs_folder, state_path
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.config.suggestions import suggested
from clusterctl.launcher.submission.code_files import largest
from clusterctl.launcher.submission.plan import image_file
from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.record.files import nearest_existing
from clusterctl.shared.record.layout import code_folder
from clusterctl.shared.record.ownership import make_private, make_runs_folder
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterctl.launcher.checks.surroundings import Surroundings
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.launcher.submission.snapshot import Code


_FULL_BYTES = 2**20  # with less, a write of ours may have failed


def verify(
    plans: Sequence[Plan],
    jobs: Sequence[Resolved],
    slurm: Slurm,
    progress: ProgressListener,
    code: Code,
    *,
    build: bool = True,
) -> tuple[Check, ...]:
    """The warnings. Raises one error for everything that would make a run fail; imports its image if needed.

    With `build`, its Python environment is built from its lock file, too.

    Runs with the same surroundings are checked together. `code` will be copied, or is the snapshot of an earlier run,
    whose source folder may have changed.
    """
    seen: dict[str, Surroundings] = {}
    warnings: list[Check] = []
    for plan, submitted in zip(plans, jobs, strict=True):
        job, resolved = submitted.job, submitted
        if (code.is_kept or code.is_sent) and job.code:  # this machine has no other copy of the project
            resolved = replace(submitted, job=replace(job, code=str(code.copied_project)))
        shell = (job.setup, job.node_setup, plan.python, job.images)
        place = repr((job.workload, job.code, shell, job.container, job.data, job.resources))
        if place in seen:
            warnings += _warnings(checks.with_job(seen[place], resolved), resolved)
            continue
        runs = make_runs_folder(plan.run.runs)
        try:
            make_private(code_folder(runs))
        except OSError as error:
            raise ConfigError(f"cannot write to the runs folder: {reason(error)}", "see: df -h") from error
        if plan.script:
            judged = tuple(script_rules(plan, resolved, current_folder()))
            checks.refuse(judged, resolved)
            warnings += (check for check in judged if check.verdict is Verdict.WARN)
            continue
        files = {image: file for image in job.images if (file := image_file(image, resolved.cluster)) != image}
        if files:  # references that pyxis will not fetch
            # Before an import, which may take minutes, all checks that need no image.
            checks.refuse(checks.verify(resolved, replace(plan, view=None, role_starts=()), slurm), resolved)
            from clusterctl.launcher.containers.build import import_reference

            for image, file in files.items():
                import_reference(image, None, Path(file).parent, progress)  # concurrent imports wait
        if plan.environment and build:
            if not plan.environment.is_built:  # which may take minutes: all checks first
                checks.refuse(checks.verify(resolved, plan, slurm), resolved)
            from clusterctl.launcher.submission import environments  # most jobs have none

            environments.build(plan.environment, runs, progress)
        seen[place] = look_around(resolved, plan, slurm)
        warnings += (
            *_warnings(seen[place], resolved),
            *copy_rules(code, [word for words in job.programs for word in words]),
        )
    return tuple({check.message: check for check in warnings}.values())


def _warnings(found: Surroundings, resolved: Resolved) -> tuple[Check, ...]:
    """The warnings; raises one error for all failed checks."""
    judged = checks.judge(found)
    checks.refuse(judged, resolved)
    return tuple(check for check in judged if check.verdict is Verdict.WARN)


@dataclass(frozen=True)
class Examination(Shown):
    """The results of all checks of the chosen `cluster` and of the machine where it is."""

    cluster: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not any(check.fatal for check in self.checks)


@operation()
def doctor(cluster: str | None = None) -> Examination:
    """Check the chosen cluster and this machine, or the cluster's host. Raises ConfigError for an invalid file."""
    target = load_cluster(cluster)
    found = checks.check_cluster(target)
    return Examination(target.name, tuple(replace(check, hint=suggested(check.hint)) for check in found))


def full_folder() -> Path | None:
    """The first folder on a full disk, of those that clusterctl writes to on this machine."""
    import tempfile  # 10 ms

    for folder in (state_path(), runs_folder(None), Path(tempfile.gettempdir()), Path.cwd()):
        space = os.statvfs(nearest_existing(folder))
        if space.f_bavail * space.f_frsize < _FULL_BYTES or (space.f_files and not space.f_favail):
            return folder
    return None


# The run's copy of the code: whether it lacks files that the program may need, and whether it is large.


LARGE_BYTES = 50 * 2**20
_MOST_SHOWN = 3
_BETWEEN_PATHS = re.compile(r"""[\s=,;:'"]+""")


def copy_rules(code: Code, argv: Iterable[str]) -> Iterator[Check]:
    """Check the copy of `code` for a program started by `argv`."""
    if code.origin is None:
        return
    if leaving := [f"{file.name} -> {file.link}" for file in code.project if file.leads_out]:
        hint = "these links lead out of the project: their targets must be visible on the nodes and in the container"
        yield warn("code", f"not copied: {_few(leaving)}", hint)
    if code.ignored:
        hint = "only what is inside the project, or its own repository, is read: docs/security.md"
        yield warn("code", f"ignored: {_few([*code.ignored])}", hint)
    root, copied, absent = os.fspath(code.origin), {file.name for file in code.project}, []
    for path in dict.fromkeys(path for word in argv for path in _BETWEEN_PATHS.split(word)):
        name = os.path.normpath(path)
        if not path or name == "." or name.startswith(("/", "..")) or not os.path.lexists(f"{root}/{name}"):
            continue
        if name not in copied and not any(file.startswith(f"{name}/") for file in copied):
            absent.append(path)
    if absent:
        hint = f"if the program reads it, use its absolute path: {os.path.join(root, absent[0])}"  # noqa: PTH118
        yield warn("code", f"not copied although argv names it, because git ignores it: {_few(absent)}", hint)
    size = sum(file.size for file in code.project)
    if code.is_new and size > LARGE_BYTES:
        message = f"copied {plural(len(code.project), 'file')}, {size / 2**20:.0f} MiB, of: {root}"
        hint = f"each run copies all of it; exclude data with .gitignore; the largest: {largest(code.project)}"
        yield warn("code", message, hint)


def _few(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")

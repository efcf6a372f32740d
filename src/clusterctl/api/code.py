"""The code of a new run, and its snapshot in the runs folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.config import runs_folder
from clusterctl.config.delivery import delivered
from clusterctl.containers.listener import SILENT
from clusterctl.errors import ConfigError, reason
from clusterctl.launch.module_archives import archive_modules
from clusterctl.launch.plan import has_project
from clusterctl.launch.snapshot import find_code, take_snapshot

if TYPE_CHECKING:
    from clusterctl.config import Resolved
    from clusterctl.containers.listener import ProgressListener
    from clusterctl.launch.plan import Plan
    from clusterctl.launch.snapshot import Code


def code_of(resolved: Resolved, *, large: bool = False, progress: ProgressListener = SILENT) -> Code:
    """The current code of the run, and the path of its snapshot."""
    runs = runs_folder(resolved.cluster)
    job = resolved.job
    try:
        project = Path(job.code) if job.code and has_project(job) else None
        if project and (came := delivered()):
            from clusterctl.launch.sent_code import received  # late: most submissions are typed on this machine

            return received(runs, project, came, progress)
        return find_code(runs, project, large=large, progress=progress)
    except OSError as error:
        raise _uncopied(runs, error) from error


def copied(code: Code, plan: Plan, progress: ProgressListener = SILENT) -> dict[Path, Path]:
    """Take the snapshot unless it exists, and make its module archives. Raises ConfigError."""
    try:
        take_snapshot(code, progress)
        return archive_modules(plan, code.folder, progress)
    except OSError as error:
        raise _uncopied(plan.run.path.parent, error) from error


def _uncopied(runs: Path, error: OSError) -> ConfigError:
    message = f"cannot copy the run's code to {runs}: {reason(error)}"
    return ConfigError(message, "is the disk full? add unreadable files to .gitignore")

"""What a run would find on this machine: folders, free space, data, interpreter, program. Looks, and changes nothing.

`submit` judges it before anything is queued (`preflight`), `doctor` shows the same of a cluster.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.config import runs_folder
from clusterctl.spec import WORKLOADS

if TYPE_CHECKING:
    from clusterctl.config import Resolved

_INTERPRETER_SECONDS = 10
_ASK_VERSION = "import sys; print(*sys.version_info[:2])"


@dataclass(frozen=True)
class Folder:
    """A folder as it is, or the nearest one above it where it is not there yet."""

    path: str
    exists: bool
    writable: bool
    mode: int = 0o700
    ours: bool = True
    file_system: str = ""
    free_bytes: int = 2**63
    free_files: int = 2**63


@dataclass(frozen=True)
class Seen:
    """A path that a task needs. `visible` is False where it may lie on the nodes alone, out of sight from here."""

    path: str
    there: bool
    visible: bool = True
    missing: tuple[str, ...] = ()  # of a data set: the parts that it lacks


@dataclass(frozen=True)
class Surroundings:
    """All that `preflight` judges. What the job does not have, or nobody can see from here, is None or empty."""

    runs: Folder
    open_files: int
    tasks: int
    data: Seen | None = None
    interpreter: Seen | None = None
    python: tuple[int, ...] | None = None  # the version of `interpreter`
    program: Seen | None = None  # the script of workload "command"


def look_around(resolved: Resolved) -> Surroundings:
    """What `resolved` would find, as far as it can be seen from this machine."""
    job, cluster = resolved.job, resolved.cluster
    nodes_are_here = cluster.nodes_are_here
    interpreter = _interpreter(cluster.python, nodes_are_here) if not (job.container.image or cluster.setup) else None
    return Surroundings(
        runs=look_at(runs_folder(cluster)),
        open_files=soft_limit(resource.RLIMIT_NOFILE),
        tasks=job.resources.nodes * (job.resources.tasks_per_node or 1),
        data=_data(job.workload, job.data.root, nodes_are_here),
        interpreter=interpreter,
        python=_version(interpreter) if interpreter and interpreter.there else None,
        program=_program(job.argv, job.code) if job.workload == "command" and not cluster.setup else None,
    )


def look_at(path: Path) -> Folder:
    """What is to be known of a folder without changing anything."""
    found = nearest(path)
    status, space = found.stat(), os.statvfs(found)
    return Folder(
        path=str(path),
        exists=_exists(path) and path.is_dir(),
        writable=found.is_dir() and os.access(found, os.W_OK | os.X_OK),
        mode=stat.S_IMODE(status.st_mode),
        ours=status.st_uid == os.geteuid(),
        file_system=file_system(found),
        free_bytes=space.f_bavail * space.f_frsize,
        free_files=space.f_favail if space.f_files else 2**63,  # some file systems do not count them
    )


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system that holds `path`, such as ext4 or nfs4; nothing where that cannot be known."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    found = [
        (point.encode("latin-1", "replace").decode("unicode_escape"), kind)
        for _, point, kind, *_ in map(str.split, lines)
    ]
    above = [(len(point), kind) for point, kind in found if path.resolve().is_relative_to(point)]
    return max(above, default=(0, ""), key=lambda item: item[0])[1]


def nearest(path: Path) -> Path:
    """`path`, or what lies above it and is there."""
    return next((folder for folder in (path, *path.parents) if _exists(folder)), Path("/"))


def seen(path: Path, nodes_are_here: bool) -> Seen:
    """Whether `path` is there. Elsewhere than here it counts as visible where its folder is: then it is a mistake."""
    return Seen(str(path), _exists(path), nodes_are_here or _exists(path.parent))


def soft_limit(which: int) -> int:
    """A soft limit of this process, which Slurm hands on to the tasks; infinity as a large number."""
    soft, _ = resource.getrlimit(which)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _data(workload: str, root: str | None, nodes_are_here: bool) -> Seen | None:
    if root is None:
        return None
    found = seen(Path(root), nodes_are_here)
    parts = WORKLOADS[workload].data
    missing = tuple(part for part in parts if found.there and not any(Path(root).glob(part)))
    return Seen(found.path, found.there, found.visible, missing)


def _interpreter(python: str | None, nodes_are_here: bool) -> Seen | None:
    """The interpreter that the cluster file names; a bare name is looked up on the nodes' PATH, not on this one."""
    if python is None:
        return None
    if "/" in python:
        return seen(Path(python), nodes_are_here)
    found = shutil.which(python)
    return Seen(found or python, found is not None, nodes_are_here) if found or nodes_are_here else None


def _version(interpreter: Seen) -> tuple[int, ...] | None:
    """Its major and minor version; None where it does not say."""
    if interpreter.path == sys.executable:
        return sys.version_info[:2]
    try:
        done = subprocess.run(
            [interpreter.path, "-E", "-S", "-c", _ASK_VERSION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INTERPRETER_SECONDS,
            check=False,
        )
        return tuple(int(number) for number in done.stdout.split()) or None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _program(argv: tuple[str, ...], code: str | None) -> Seen | None:
    """The Python script that the tasks would run from the copy of the job's code."""
    if len(argv) < 2 or not argv[1].endswith(".py") or argv[1].startswith(("-", "/")) or code is None:
        return None
    if argv[0].rpartition("/")[2].rstrip("0123456789.") != "python":
        return None
    path = Path(code, argv[1])
    return Seen(str(path), _exists(path))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long, a folder that may not be entered
        return False

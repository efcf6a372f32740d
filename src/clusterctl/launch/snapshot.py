"""The code of a run, copied once per content: what is edited after `submit` does not reach a queued or requeued run.

`RUNS/.code/<hash>/lib/clusterctl` is this package, `RUNS/.code/<hash>/project` the job's `code` folder: the files that
git tracks or would track, or every file where there is no git. Keyed by content: numba's cache is keyed by path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from threading import get_native_id
from typing import TYPE_CHECKING, Any, NamedTuple

import clusterctl
from clusterctl.errors import ConfigError
from clusterctl.runs.files import make_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LARGEST_BYTES = 500 * 2**20
MOST_FILES = 20_000
_LEFT_OUT = {"__pycache__", "node_modules", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


class Code(NamedTuple):
    """The files of a run's code by their names in its snapshot, and the folder where that is or will be."""

    folder: Path
    files: dict[Path, Path]


def find_code(runs: Path, project: Path | None) -> Code:
    """This package and `project`, as they are now. Nothing is written.

    Raises ConfigError if the project is no folder, or holds more than 500 MiB or 20,000 files.
    """
    package = Path(clusterctl.__file__).resolve().parent
    files = {Path("lib/clusterctl", name): package / name for name in _walk(package) if name.parts[0] != "shipped"}
    if project is not None:
        files |= {Path("project", name): project / name for name in _project_files(project, runs)}
    return Code(runs / ".code" / _digest(files), files)


def take_snapshot(code: Code) -> Path:
    """The snapshot of `code`, made if its content is new. Safe against concurrent calls."""
    final = code.folder
    if final.is_dir():
        return final
    aside = make_private(final.with_name(f".{final.name}.{get_native_id()}"))
    try:
        (aside / "project").mkdir()
        for name, source in code.files.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, aside / name, follow_symlinks=source.is_file())
        aside.rename(final)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not final.is_dir():  # else someone made the same one in the meantime
            raise
    _make_read_only(final)
    return final


def _make_read_only(snapshot: Path) -> None:
    """Take away the permission to write, but into folders of this package: Python keeps what it compiled there."""
    for parent, _, names in os.walk(snapshot):
        in_project = Path(parent).is_relative_to(snapshot / "project")
        for path in (Path(parent, name) for name in ([*names, "."] if in_project else names)):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o555)


def _project_files(project: Path, runs: Path) -> list[Path]:
    if not project.is_dir():
        raise ConfigError(f"code: no such folder: {project}", "set `code` to the folder of your program")
    outside_runs = (name for name in _walk(project) if not (project / name).is_relative_to(runs))
    names: list[Path] = []
    size = 0
    for name in _listed_by_git(project) or outside_runs:
        names.append(name)
        size += (project / name).lstat().st_size
        if size > LARGEST_BYTES or len(names) > MOST_FILES:
            message = f"code: {project} holds more than {LARGEST_BYTES // 2**20} MiB or {MOST_FILES} files"
            hint = "set `code` to the folder of the program alone, or keep data out of it with .gitignore"
            raise ConfigError(message, hint)
    return names


def _listed_by_git(project: Path) -> Iterable[Path] | None:
    """The files that git tracks or would track; None where there is no repository, no git, or it ignores all."""
    listed = _git(project, "ls-files", "-z", "--cached", "--others", "--exclude-standard", seconds=None) or ""
    names = dict.fromkeys(Path(name) for name in listed.split("\0") if name)
    return _existing(project, names) if names else None


def _existing(project: Path, names: Iterable[Path]) -> Iterator[Path]:
    for name in names:
        if _is_kept(project / name):
            yield name
        elif (project / name).is_dir():  # a submodule
            yield from (name / inner for inner in _walk(project / name))


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names and parent != str(folder):  # a virtual environment, whatever its name
            folders.clear()
            continue
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            path = Path(parent, name)
            if path.suffix != ".pyc" and _is_kept(path):
                yield path.relative_to(folder)


def _is_kept(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _digest(files: dict[Path, Path]) -> str:
    total = hashlib.sha256()
    for name, source in sorted(files.items()):
        content = os.fsencode(source.readlink()) if not source.is_file() else source.read_bytes()
        mode = b"x" if os.access(source, os.X_OK) else b"-"
        total.update(os.fsencode(name) + b"\0" + mode + hashlib.sha256(content).digest())
    return total.hexdigest()[:20]


def git_state(folder: Path) -> tuple[dict[str, Any], str] | None:
    """The commit of `folder`, whether it is dirty, and the patch of changes to tracked files; None outside git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    patch = _git(folder, "diff", "--binary", "HEAD", "--", ".") or ""
    return {"commit": commit.strip(), "dirty": bool(patch)}, patch


def _git(folder: Path, *words: str, seconds: float | None = 10) -> str | None:
    """What git prints; None where there is no repository, no git, or it fails or takes longer."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None

"""The code of a run, copied once per content: what is edited after `submit` does not reach a queued or requeued run.

`RUNS/.code/<hash>/lib/clusterctl` is this package, `RUNS/.code/<hash>/project` the job's `code` folder: the files that
git tracks or would track, or every file where there is no git. Keyed by content: numba's cache is keyed by path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.errors import ConfigError
from clusterctl.runs.files import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_BYTES = 500 * 2**20
_LEFT_OUT = {"__pycache__", "node_modules", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def take_snapshot(runs: Path, project: Path | None) -> Path:
    """The snapshot of this package and of `project`, made if its content is new. Safe against concurrent calls.

    Raises ConfigError if the project is no folder or larger than 500 MiB.
    """
    package = Path(clusterctl.__file__).resolve().parent
    files = {Path("lib/clusterctl", name): package / name for name in _walk(package) if name.parts[0] != "shipped"}
    if project is not None:
        files |= {Path("project", name): project / name for name in _project_files(project, runs)}
    final = runs / ".code" / _digest(files)
    if not final.is_dir():
        aside = final.with_name(f".{final.name}.{os.getpid()}")
        make_private(aside)
        if project is not None:
            (aside / "project").mkdir()
        for name, source in files.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, aside / name, follow_symlinks=source.is_file())
        try:
            aside.rename(final)
        except OSError:  # someone else made the same one in the meantime
            shutil.rmtree(aside)
    return final


def _project_files(project: Path, runs: Path) -> list[Path]:
    if not project.is_dir():
        raise ConfigError(f"code: no such folder: {project}", "set `code` to the folder of your program")
    listed = (
        subprocess.run(
            ["git", "-C", project, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=False,
        )
        if _inside_git(project)
        else None
    )
    if listed and listed.returncode == 0:
        names = [Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name]
        names = [name for name in dict.fromkeys(names) if os.path.lexists(project / name)]
    else:
        names = [name for name in _walk(project) if not (project / name).is_relative_to(runs)]
    size = sum((project / name).lstat().st_size for name in names)
    if size > LARGEST_BYTES:
        raise ConfigError(
            f"code: {project} holds {size / 2**20:.0f} MiB, more than {LARGEST_BYTES // 2**20}",
            "set `code` to the folder of the program alone, or keep data out of it with .gitignore",
        )
    return names


def _inside_git(project: Path) -> bool:
    return any((folder / ".git").exists() for folder in (project, *project.parents))


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names and parent != str(folder):  # a virtual environment, whatever its name
            folders.clear()
            continue
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(names):
            path = Path(parent, name)
            if path.suffix != ".pyc" and (path.is_symlink() or stat.S_ISREG(path.stat().st_mode)):
                yield path.relative_to(folder)


def _digest(files: dict[Path, Path]) -> str:
    total = hashlib.sha256()
    for name, source in sorted(files.items()):
        content = os.fsencode(source.readlink()) if not source.is_file() else source.read_bytes()
        mode = b"x" if os.access(source, os.X_OK) else b"-"
        total.update(os.fsencode(name) + b"\0" + mode + hashlib.sha256(content).digest())
    return total.hexdigest()[:20]

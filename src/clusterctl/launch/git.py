"""Which commit the code of a run is, and what it differs from it by."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from pathlib import Path


class GitState(TypedDict):
    commit: str
    dirty: bool


def git_state(folder: Path) -> tuple[GitState, str] | None:
    """The commit of `folder` and the patch of uncommitted changes to tracked files; None outside git."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    patch = _git(folder, "diff", "--binary", "HEAD", "--", ".") or ""
    return GitState(commit=commit.strip(), dirty=bool(patch)), patch


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *words], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="surrogateescape") if done.returncode == 0 else None

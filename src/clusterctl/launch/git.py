"""Queries git about a folder without running any program that the repository configures.

A repository's configuration may name programs: a file monitor, hooks, diff drivers, filters, transports. It may come
from an unpacked archive. The user's own configuration is trusted, so filters configured there (git-lfs) are used.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

# Produces a patch for `git apply`, whatever the configuration. Submodules are ignored: looking inside them would use
# their own configuration.
_DIFF = (
    *("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "--unified=3"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=dirty", "--submodule=short"),
)
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
_OF_THE_REPOSITORY = ("local", "worktree")


class GitState(NamedTuple):
    """The commit of a folder and a patch of changes to its tracked files; `patch` is None if git cannot make one."""

    commit: str
    patch: str | None

    @property
    def dirty(self) -> bool | None:
        return None if self.patch is None else bool(self.patch)


def git_state(folder: Path) -> GitState | None:
    """The state of `folder`; None without a repository, a commit or git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    unfiltered = _without_filters(folder)
    patch = None if unfiltered is None else _git(folder, *unfiltered, *_DIFF, "HEAD", "--", ".")
    return GitState(commit.strip(), patch)


def listed_files(folder: Path) -> list[str]:
    """The files below `folder` that git tracks or would track; empty without a repository or git."""
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", seconds=None) or ""
    return [name for name in dict.fromkeys(listed.split("\0")) if name]


def _without_filters(folder: Path) -> list[str] | None:
    """Settings that replace the repository's filters with the user's, or with none; None if that is impossible.

    Filters run when git compares files. Reading the configuration runs nothing.
    """
    found = _git(folder, "config", "--show-scope", "-z", "--get-regexp", _FILTERS, none_found=True)
    if found is None:  # git before 2.26
        return None
    trusted: dict[str, str] = {}
    of_the_repository: set[str] = set()
    scopes, settings = (found.split("\0")[start::2] for start in (0, 1))
    for scope, setting in zip(scopes, settings, strict=False):
        key, _, value = setting.partition("\n")
        if scope in _OF_THE_REPOSITORY:
            of_the_repository.add(key)
        else:
            trusted[key] = value
    if any("=" in key for key in of_the_repository):  # `-c` cannot override such a key
        return None
    return [word for key in sorted(of_the_repository) for word in ("-c", f"{key}={trusted.get(key, '')}")]


def _git(folder: Path, *words: str, seconds: float | None = 10, none_found: bool = False) -> str | None:
    """Git's output; None without a repository or git, or if it fails or times out.

    With `none_found`, exit code 1 means an empty result.
    """
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", os.fspath(folder), *words]
    try:
        done = subprocess.run(command, env=_environment(), capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    fine = done.returncode == 0 or (none_found and done.returncode == 1)
    return done.stdout.decode(errors="surrogateescape") if fine else None


def _environment() -> dict[str, str]:
    """This environment without variables that control git (inside a hook, say), but with the user's configuration."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"GIT_(?!CONFIG|CEILING)", name)}
    # Write nothing and fetch no objects: a partial clone names the program that would fetch them.
    return kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}

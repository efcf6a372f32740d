"""What git knows of a folder, asked such that no program runs which the repository names.

A repository's own configuration may name programs: a file monitor, hooks, diff drivers, filters, transports. An archive
that was unpacked here brings its own. The user's configuration is trusted, so the filters it names (git-lfs) are used.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

# A patch that `git apply` takes, whatever is configured. To look for changes inside a submodule would use its own
# configuration.
_DIFF = (
    *("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative", "--unified=3"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=dirty", "--submodule=short"),
)
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
_OF_THE_REPOSITORY = ("local", "worktree")


class GitState(NamedTuple):
    """The commit of a folder and the patch of changes to its tracked files; `patch` is None where git cannot tell."""

    commit: str
    patch: str | None

    @property
    def dirty(self) -> bool | None:
        return None if self.patch is None else bool(self.patch)


def git_state(folder: Path) -> GitState | None:
    """The state of `folder`; None where there is no repository, no commit or no git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    unfiltered = _without_filters(folder)
    patch = None if unfiltered is None else _git(folder, *unfiltered, *_DIFF, "HEAD", "--", ".")
    return GitState(commit.strip(), patch)


def listed_files(folder: Path) -> list[str]:
    """The files below `folder` that git tracks or would track; none where there is no repository or no git."""
    listed = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", seconds=None) or ""
    return [name for name in dict.fromkeys(listed.split("\0")) if name]


def _without_filters(folder: Path) -> list[str] | None:
    """Settings that replace the repository's filters by the user's own, or by none; None where that is not possible.

    A filter runs when git compares files. Reading the configuration runs nothing.
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
    if any("=" in key for key in of_the_repository):  # no `-c` can name it
        return None
    return [word for key in sorted(of_the_repository) for word in ("-c", f"{key}={trusted.get(key, '')}")]


def _git(folder: Path, *words: str, seconds: float | None = 10, none_found: bool = False) -> str | None:
    """What git prints; None where there is no repository, no git, or it fails or takes longer.

    With `none_found` exit code 1 means that git found nothing to print.
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
    """This environment without what steers git (inside a git hook, say), but with the user's configuration in it."""
    kept = {name: value for name, value in os.environ.items() if not re.match(r"GIT_(?!CONFIG|CEILING)", name)}
    # Nothing is written, and no object is fetched: a partial clone names the program that would fetch it.
    return kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}

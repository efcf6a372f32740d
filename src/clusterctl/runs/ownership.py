"""Whose a file or folder is: what runs from it, or because of it, runs as this user."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError
from clusterctl.runs.files import status_of

if TYPE_CHECKING:
    from pathlib import Path


def is_trusted(owner: int) -> bool:
    """Whether the user with this number is this one, or root."""
    return owner in (os.geteuid(), 0)


def is_open(mode: int) -> bool:
    """Whether others may replace what is in a folder with this mode; with the sticky bit they may only add to it."""
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


def user_name(number: int) -> str:
    """The user's name; the number where this machine knows none, as in a container."""
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)


def owner_name(path: Path) -> str:
    """Who owns `path`: a name, or a number that has none."""
    owner = status_of(path).st_uid
    name = user_name(owner)
    return f"user {owner}" if name == str(owner) else name


def require_own(folder: Path, hint: str, *, or_roots: bool = False) -> None:
    """Raise ConfigError, with `hint`, for a folder of someone else's, and for one in which others may replace files."""
    status = status_of(folder)
    if status.st_uid != os.geteuid() and not (or_roots and is_trusted(status.st_uid)):
        raise ConfigError(f"belongs to someone else: {folder} ({owner_name(folder)})", hint)
    if is_open(status.st_mode):
        raise ConfigError(f"others may write to: {folder}", f"chmod go-w {shlex.quote(os.fspath(folder))}")

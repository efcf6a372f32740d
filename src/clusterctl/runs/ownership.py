"""Checks the ownership of files and folders whose content is executed as this user."""

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
    """Whether this user ID is the current user's or root's."""
    return owner in (os.geteuid(), 0)


def is_open(mode: int) -> bool:
    """Whether a folder with this mode lets others replace its files; with the sticky bit they can only add some."""
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


def user_name(number: int) -> str:
    """The user's name; the user ID if this machine has no name for it, as in a container."""
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)


def owner_name(path: Path) -> str:
    """The owner of `path`: a name, or a user ID without one."""
    owner = status_of(path).st_uid
    name = user_name(owner)
    return f"user {owner}" if name == str(owner) else name


def require_own(folder: Path, hint: str, *, or_roots: bool = False) -> None:
    """Raise ConfigError, with `hint`, if another user owns `folder`, or if others can replace its files."""
    status = status_of(folder)
    if status.st_uid != os.geteuid() and not (or_roots and is_trusted(status.st_uid)):
        raise ConfigError(f"owned by another user: {folder} ({owner_name(folder)})", hint)
    if is_open(status.st_mode):
        raise ConfigError(f"writable by others: {folder}", f"chmod go-w {shlex.quote(os.fspath(folder))}")

"""Users by the numbers that Slurm and the kernel know them by."""

from __future__ import annotations

import pwd


def user_name(number: int) -> str:
    """The user's name; the number where this machine knows none, as in a container."""
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return str(number)

"""Remove copies of code that no run refers to any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.config import chosen_runs_folder
from clusterctl.launch.unused_code import find_unused
from clusterctl.launch.unused_code import remove_unused as remove_unused

if TYPE_CHECKING:
    from clusterctl.launch.unused_code import Unused as Unused


def unused_code(cluster: str | None = None) -> list[Unused]:
    """The copies of code that no run uses any more. Raises ConfigError if a folder cannot be read."""
    return find_unused(chosen_runs_folder(cluster))

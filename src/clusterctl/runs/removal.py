"""Removes a folder with its content, without following links."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.runs.files import exists, with_retries

if TYPE_CHECKING:
    from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove `folder`, including read-only folders in it. Raises OSError for files that cannot be removed."""
    for parent, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(parent, 0o700)  # noqa: PTH101 - of strings
    again = False

    def once() -> None:
        nonlocal again
        if not again or exists(folder):
            again = True
            shutil.rmtree(folder)

    with_retries(once)

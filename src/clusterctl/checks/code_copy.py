"""The run's copy of the code: whether it lacks files that the program may need, and whether it is large."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, warn
from clusterctl.launch.code_files import largest
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.launch.snapshot import Code

LARGE_BYTES = 50 * 2**20
_MOST_SHOWN = 3
_BETWEEN_PATHS = re.compile(r"""[\s=,;:'"]+""")


def copy_rules(code: Code, argv: Iterable[str]) -> Iterator[Check]:
    """Check the copy of `code` for a program started by `argv`."""
    if code.origin is None:
        return
    if leaving := [f"{file.name} -> {file.link}" for file in code.project if file.leads_out]:
        hint = "these links lead out of the project: their targets must be visible on the nodes and in the container"
        yield warn("code", f"not copied: {_few(leaving)}", hint)
    if code.ignored:
        hint = "only what is inside the project, or its own repository, is read: docs/security.md"
        yield warn("code", f"ignored: {_few([*code.ignored])}", hint)
    root = os.fspath(code.origin)
    if absent := list(_absent(root, {file.name for file in code.project}, argv)):
        hint = f"if the program reads it, use its absolute path: {os.path.join(root, absent[0])}"  # noqa: PTH118
        yield warn("code", f"not copied although argv names it, because git ignores it: {_few(absent)}", hint)
    size = sum(file.size for file in code.project)
    if code.is_new and size > LARGE_BYTES:
        message = f"copied {plural(len(code.project), 'file')}, {size / 2**20:.0f} MiB, of: {root}"
        hint = f"each run copies all of it; exclude data with .gitignore; the largest: {largest(code.project)}"
        yield warn("code", message, hint)


def _absent(root: str, carried: set[str], argv: Iterable[str]) -> Iterator[str]:
    """The paths in `argv` that exist below `root` but are neither in `carried` nor folders of such files."""
    for path in dict.fromkeys(path for word in argv for path in _BETWEEN_PATHS.split(word)):
        name = os.path.normpath(path)
        if not path or name == "." or name.startswith(("/", "..")) or not os.path.lexists(f"{root}/{name}"):
            continue
        if name not in carried and not any(file.startswith(f"{name}/") for file in carried):
            yield path


def _few(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")

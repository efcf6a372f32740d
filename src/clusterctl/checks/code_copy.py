"""The run's copy of the code: what it leaves behind that the program may miss, and whether it is large."""

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
    """What to know of the copy of `code`, from which a program started by `argv` will run."""
    if code.origin is None:
        return
    if leaving := [f"{file.name} -> {file.link}" for file in code.project if file.leads_out]:
        hint = "the run follows these links out of the project: the nodes, and the container, must see where they lead"
        yield warn("code", f"not carried: {_few(leaving)}", hint)
    root = os.fspath(code.origin)
    if absent := list(_absent(root, {file.name for file in code.project}, argv)):
        hint = f"where the program reads it, use its absolute path: {os.path.join(root, absent[0])}"  # noqa: PTH118
        yield warn("code", f"not carried, though argv names it: {_few(absent)}, which git ignores", hint)
    size = sum(file.size for file in code.project)
    if code.is_new and size > LARGE_BYTES:
        message = f"copied {plural(len(code.project), 'file')}, {size / 2**20:.0f} MiB, of: {root}"
        hint = f"each run copies all of it; keep data out with .gitignore, the largest: {largest(code.project)}"
        yield warn("code", message, hint)


def _absent(root: str, carried: set[str], argv: Iterable[str]) -> Iterator[str]:
    """The paths in `argv` that exist below `root` and are not `carried`, nor a folder of anything that is."""
    for path in dict.fromkeys(path for word in argv for path in _BETWEEN_PATHS.split(word)):
        name = os.path.normpath(path)
        if not path or name == "." or name.startswith(("/", "..")) or not os.path.lexists(f"{root}/{name}"):
            continue
        if name not in carried and not any(file.startswith(f"{name}/") for file in carried):
            yield path


def _few(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")

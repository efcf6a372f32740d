"""Code: the tasks' Python and what it has installed."""

from __future__ import annotations

import re
import shlex
from importlib import metadata
from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, fail, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Interpreter, Surroundings

OLDEST_PYTHON = (3, 11)


def interpreter_rules(found: Surroundings) -> Iterator[Check]:
    interpreter = found.interpreter
    if interpreter is None:
        return
    path, version = interpreter.seen.path, ".".join(map(str, interpreter.version))
    bad = warn if found.cluster.setup else fail  # setup lines may load on the nodes what is missing here
    if not interpreter.seen.there and not interpreter.seen.visible:
        if found.login_node:
            yield warn("tasks", f"not on this machine: {path}", "the nodes must have it; it was not asked")
    elif not interpreter.seen.there:
        yield bad("tasks", f"no such interpreter: {path}", "set `python` in the cluster file")
    elif not interpreter.version:
        problem = f"does not run as Python: {path}: {interpreter.problem}"
        yield bad("tasks", problem, "set `python` in the cluster file")
    else:
        if interpreter.version < OLDEST_PYTHON:
            yield bad("tasks", f"{path} is Python {version}", "set `python` in the cluster file to 3.11 or later")
        if interpreter.packages is not None:
            yield from _packages(interpreter, must=bad is fail)


def requirement(package: str) -> str:
    """What clusterctl asks for of `package`, as pip reads it."""
    lines = [line.partition(";")[0].strip() for line in metadata.requires("clusterctl") or ()]
    named = {re.split(r"[^\w.-]", line)[0].replace("-", "_"): line for line in lines}
    return named.get(package, package)


def _packages(interpreter: Interpreter, *, must: bool) -> Iterator[Check]:
    path, packages = interpreter.seen.path, interpreter.packages or {}
    for name, version in packages.items():
        if version:
            yield ok(name, f"{version} in {path}")
        elif name == "torch":
            needed = ("torch", "torch_geometric", "numpy", "scipy")
            message = f"{path} has no torch: only jobs with workload `command` run without it"
            yield warn(name, message, _install(path, *needed))
        else:
            yield (fail if must else warn)(name, f"{path} has no {name}", _install(path, name))


def _install(python: str, *packages: str) -> str:
    """clusterctl itself travels with each run: its requirements are what the tasks' Python lacks."""
    return shlex.join([python, "-m", "pip", "install", *map(requirement, packages)])

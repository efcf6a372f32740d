"""Checks for `resources.stage_code`: the nodes' local disk and the Python environments to copy there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.checks.check import Check, fail, warn
from clusterctl.runs.file_systems import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.checks.surroundings import Folder, Surroundings


def staging_rules(found: Surroundings) -> Iterator[Check]:
    if found.scratch:
        yield from _scratch(found.scratch, nodes_are_here=found.cluster.nodes_are_here)
    for environment in found.environments:
        if not environment.there:
            hint = "set `python_environments` in the cluster file to folders of venvs or conda environments"
            yield fail("environments", f"not a Python environment: {environment.path}", hint)


def _scratch(scratch: Folder, *, nodes_are_here: bool) -> Iterator[Check]:
    elsewhere = "set `local_scratch` in the cluster file to a folder on each node's local disk"
    if not scratch.exists and not nodes_are_here:
        yield warn("scratch", f"not on this machine: {scratch.path}", "the nodes must have it; they were not checked")
    elif not scratch.exists:
        yield warn("scratch", f"no such folder: {scratch.path}: ranks import from the shared file system", elsewhere)
    elif not scratch.writable:
        yield warn("scratch", f"cannot write to {scratch.path}: ranks import from the shared file system", elsewhere)
    elif scratch.file_system and scratch.file_system not in LOCAL:
        yield warn("scratch", f"{scratch.path} is on {scratch.file_system}, not on a local disk", elsewhere)

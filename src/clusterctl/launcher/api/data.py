"""Generates or downloads data sets in a separate program, because that needs torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import clusterctl
from clusterctl.launcher.checks.interpreters import OLDEST_PYTHON, ask_version, find_interpreter
from clusterctl.launcher.config import chosen_runs_folder, load_cluster
from clusterctl.shared.errors import ConfigError, NotFoundError
from clusterctl.shared.record.interpreter import environment, with_packages
from clusterctl.shared.record.layout import RunDir


def generate(
    name: str, root: str, *, scale: float = 0.01, seed: int = 0, cluster: str | None = None, quiet: bool = True
) -> int:
    """Generate data set `name` into `root`; returns the program's exit code. Its output is shown unless `quiet`."""
    return _started(cluster, quiet, "generate", name, str(scale), str(seed), root)


def prepare(
    name: str,
    root: str,
    *,
    order: str = "given",
    disk_precision: str = "given",
    cluster: str | None = None,
    quiet: bool = True,
) -> int:
    """Download data set `name` into `root` unless its raw files exist, and convert it; the program's exit code.

    `order` and `disk_precision` are those of `[data]`, for data sets of one node type.
    """
    cache = RunDir(chosen_runs_folder(cluster) / "any").data_cache
    return _started(cluster, quiet, "prepare", name, root, str(cache), order, disk_precision)


def _started(cluster: str | None, quiet: bool, *words: str) -> int:
    """Run the program with the tasks' Python; returns its exit code."""
    python = (load_cluster(cluster).python if cluster else None) or sys.executable
    library = str(Path(clusterctl.__file__).parents[1])
    found = environment()
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [library, found.get("PYTHONPATH")]))
    output = subprocess.DEVNULL if quiet else None
    version = ask_version(find_interpreter(python, nodes_are_here=True)).version
    if version and version < OLDEST_PYTHON:
        hint = "set `python` in the cluster file to 3.11 or later"
        raise ConfigError(f"{python} is Python {'.'.join(map(str, version))}", hint)
    command = with_packages(python, "-m", "clusterctl.engine.data.data_sets", *words)
    try:
        return subprocess.call(command, env=found, stdout=output, stderr=output)
    except OSError as error:
        raise NotFoundError(f"cannot start {python}: {error.strerror}", "see `python` in the cluster file") from None

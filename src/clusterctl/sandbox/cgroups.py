"""Control groups, version 1: what slurmd leaves of them behind. Version 2 is beyond Slurm 22.05's plugin here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpuacct", "devices", "freezer", "memory")


def check_cgroups() -> None:
    missing = [name for name in _CONTROLLERS if not (_ROOT / name / "cgroup.procs").exists()]
    if missing:
        raise UsageError(f"no control groups of version 1 here: {', '.join(missing)}", "leave out --cgroups")


def remove_cgroups(nodes: Iterable[str]) -> None:
    """Remove the groups of `nodes`, which are empty when their processes have ended; others' cannot be removed."""
    for node in nodes:
        for top in _ROOT.glob(f"*/slurm_{node}"):
            groups = [*(path for path in top.rglob("*") if path.is_dir()), top]
            for group in sorted(groups, reverse=True):  # the inner ones first
                try:
                    group.rmdir()
                except OSError:
                    continue

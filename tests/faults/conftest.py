"""A sandbox with room for many faults at once, and a small disk to fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.matrix import NODES, Ground
from faults.sites import follow_rules
from support.sandbox_fixture import RunningSandbox

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.launcher.sandbox.lifecycle import check_cgroups
from clusterctl.shared.errors import UsageError


@pytest.fixture
def accounting() -> bool:
    return False


@pytest.fixture
def site() -> str | None:
    return None


@pytest.fixture
def ground(sandbox_home: RunningSandbox, tmp_path: Path, accounting: bool, site: str | None) -> Iterator[Ground]:
    """A sandbox of thirteen nodes, most of them for faults that need nodes of their own."""
    try:
        check_cgroups()
        cgroups = True
    except UsageError:
        cgroups = False
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(small)], check=True
    )  # before the nodes start
    try:
        request = SandboxRequest(nodes=NODES, kill_wait=15, cgroups=cgroups, accounting=accounting)
        lifecycle.up(sandbox_home.folder, request)
        if site:
            follow_rules(sandbox_home, site)
        yield Ground(sandbox_home, tmp_path, small)
    finally:
        lifecycle.down(sandbox_home.folder)
        subprocess.run(["umount", "--lazy", str(small)], check=True)

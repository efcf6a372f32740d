"""A sandbox with room for many faults at once, and a small disk to fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.matrix import Ground, nodes_for
from faults.shapes import PLAIN, SHAPES
from faults.sites import follow_rules
from support.images import ThinImage
from support.sandbox_fixture import RunningSandbox
from support.scenario import ending

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.launcher.sandbox.lifecycle import check_cgroups
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec.values import NO_GPUS, GpuCount


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "of tests/faults, inflict only the fault with this name (repeatable)"
    parser.addoption("--fault", action="append", default=[], metavar="NAME", help=words)


@pytest.fixture
def accounting() -> bool:
    return False


@pytest.fixture
def site() -> str | None:
    return None


@pytest.fixture
def shape() -> str | None:
    return None


@pytest.fixture
def ground(
    sandbox_home: RunningSandbox,
    tmp_path: Path,
    accounting: bool,
    site: str | None,
    shape: str | None,
    request: pytest.FixtureRequest,
) -> Iterator[Ground]:
    """A sandbox of thirteen nodes or more, most of them for faults that need nodes of their own."""
    jobs = SHAPES[shape] if shape else PLAIN
    image = request.getfixturevalue("thin_image") if jobs.in_image else None
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
        gpus = GpuCount("a100:4") if jobs.settings.get("resources.gpus_per_node") else NO_GPUS
        size = SandboxRequest(
            nodes=nodes_for(jobs), gpus_per_node=gpus, kill_wait=15, cgroups=cgroups, accounting=accounting
        )
        lifecycle.up(sandbox_home.folder, size)
        if site:
            follow_rules(sandbox_home, site)
        only = request.config.getoption("--fault", [])
        yield Ground(sandbox_home, tmp_path, small, jobs, image, only=only)
    finally:
        lifecycle.down(sandbox_home.folder)
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.fixture
def emulated(tmp_path: Path, thin_image: ThinImage, shape: str) -> Iterator[Ground]:
    """The emulator, with four nodes."""
    found = Ground(None, tmp_path, tmp_path, SHAPES[shape], thin_image, count=4)
    with ending(found.stage("end", tmp_path / "runs-command")):
        yield found

"""The guide to containers, typed line by line: on this machine, and on a real Slurm with pyxis's options."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.guide import follow
from support.sandbox_fixture import RunningSandbox

from clusterctl.launcher.containers import unpacked

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "containers.md"
FOLDER = Path("/tmp/containers-guide")


@pytest.mark.long
@pytest.mark.usefixtures("pyxis")
def test_every_command_in_the_guide_works(
    sandbox: RunningSandbox, cpu_image: Path, tmp_path: Path, update_golden: bool
) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in ("project/cluster", "images"):
        (FOLDER / name).mkdir(parents=True)
    for suffix in (".sqsh", ".json"):
        (FOLDER / "images" / f"clusterctl-cpu{suffix}").symlink_to(cpu_image.with_suffix(suffix))
    places = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CONFIG", "DATA", "STATE")}
    environment = sandbox.environment | places | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"COLUMNS": "120", "CLUSTERCTL_UNPACK": str(tmp_path)}
    assert follow(GUIDE, FOLDER / "project", environment, update=update_golden) >= 12
    unpacked.release(cpu_image, environment)
    shutil.rmtree(FOLDER)

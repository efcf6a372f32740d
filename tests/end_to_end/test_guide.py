"""The guide to your own cluster, typed line by line on a real Slurm, as a new user would."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.guide import follow
from support.sandbox_fixture import RunningSandbox

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "your-own-cluster.md"


@pytest.fixture
def home(sandbox: RunningSandbox) -> dict[str, str]:
    """A new user's environment on a login node: Slurm's commands on PATH, nothing configured."""
    folder = Path("/tmp/guide")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("project/cluster", "project/jobs", "config", "data", "state"):
        (folder / name).mkdir(parents=True)
    return sandbox.environment | {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_STATE_HOME": str(folder / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }


@pytest.mark.long  # each step is also covered by a scenario
def test_every_command_in_the_guide_works(home: dict[str, str], update_golden: bool) -> None:
    assert follow(GUIDE, Path("/tmp/guide/project"), home, update=update_golden) >= 8
    shutil.rmtree("/tmp/guide")

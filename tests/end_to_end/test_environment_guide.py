"""The guide to environments, typed line by line on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.guide import follow

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "your-environment.md"
FOLDER = Path("/tmp/environment-guide")


@pytest.mark.long
def test_every_command_in_the_guide_works(tmp_path: Path, update_golden: bool) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "project" / "jobs").mkdir(parents=True)
    others = ("CLUSTERCTL_", "VIRTUAL_ENV", "CONDA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    environment = kept | {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CONFIG", "DATA", "STATE")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLUSTERCTL_CLUSTER": "local",
        "COLUMNS": "120",
    }
    assert follow(GUIDE, FOLDER / "project", environment, update=update_golden) >= 7
    shutil.rmtree(FOLDER)

"""The guides to messages and to trackers, typed line by line on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.guide import follow

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


@pytest.mark.parametrize("guide", ["telling-others", "trackers"])
def test_every_command_of_the_guide_does_what_it_says(guide: str, tmp_path: Path) -> None:
    (tmp_path / "project" / "jobs").mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
    environment = kept | {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CONFIG", "DATA", "STATE")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLUSTERCTL_CLUSTER": "local",
        "HOME": str(tmp_path),
        "COLUMNS": "120",
    }
    assert follow((GUIDES / f"{guide}.md").read_text(), tmp_path / "project", environment) >= 4

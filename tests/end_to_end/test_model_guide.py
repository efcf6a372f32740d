"""The guide to models of one's own, typed line by line on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.guide import follow
from support.ranks import CORA

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "your-own-model.md"


@pytest.mark.long
def test_every_command_of_the_guide_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
    environment = kept | {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("CONFIG", "DATA", "STATE")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLUSTERCTL_CLUSTER": "local",
        "COLUMNS": "200",
        "CORA": str(CORA),
    }
    assert follow(GUIDE.read_text(), tmp_path / "project", environment) >= 5

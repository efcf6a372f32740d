"""The guide to commands from a laptop, typed line by line, with a login node on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.far import Far
from support.guide import follow
from support.scenario import CLUSTERCTL

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "from-your-laptop.md"


@pytest.mark.long
def test_every_command_in_the_guide_works(far: Far, tmp_path: Path, update_golden: bool) -> None:
    (tmp_path / "cluster").mkdir()
    environment = far.environment
    environment |= {"PATH": f"{Path(CLUSTERCTL).parent}:{environment['PATH']}", "COLUMNS": "120"}
    assert follow(GUIDE, tmp_path, environment, update=update_golden, home=tmp_path) == 8

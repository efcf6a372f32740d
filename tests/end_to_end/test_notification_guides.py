"""The guides to notifications and trackers, typed line by line on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.guide import follow_here


@pytest.mark.long
@pytest.mark.parametrize("guide", ["notifications", "trackers"])
def test_every_command_in_the_guide_works(guide: str, tmp_path: Path) -> None:
    assert follow_here(guide, tmp_path, HOME=str(tmp_path)) >= 4

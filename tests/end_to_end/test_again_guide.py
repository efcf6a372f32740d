"""The guide to repeating and comparing runs, typed line by line on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.guide import follow_here


@pytest.mark.long
def test_every_command_in_the_guide_works(tmp_path: Path) -> None:
    assert follow_here("again-and-different", tmp_path) >= 4

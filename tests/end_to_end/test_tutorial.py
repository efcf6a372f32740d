"""The tutorial, typed line by line on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.guide import follow_here


@pytest.mark.long  # trains Cora twice
def test_every_command_in_the_tutorial_works(tmp_path: Path) -> None:
    assert follow_here("../tutorial/index", tmp_path) == 10

"""The guide to your own models, typed line by line on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.guide import follow_here
from support.ranks import CORA


@pytest.mark.long
def test_every_command_in_the_guide_works(tmp_path: Path) -> None:
    assert follow_here("your-own-model", tmp_path, COLUMNS="200", CORA=str(CORA)) >= 5

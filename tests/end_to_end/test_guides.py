"""Guides typed line by line on this machine, as a new user would."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.guide import follow_here
from support.ranks import CORA


@pytest.mark.parametrize(
    ("guide", "commands", "variables"),
    [
        ("starting", 7, {"COLUMNS": "200"}),
        *(
            pytest.param(*guide, marks=pytest.mark.long)
            for guide in (
                ("../tutorial/index", 10, {}),  # trains Cora twice
                ("your-batch-script", 9, {"COLUMNS": "200"}),
                ("again-and-different", 4, {}),
                ("tidying-up", 4, {}),
                ("roles", 5, {"COLUMNS": "200"}),
                ("your-own-model", 5, {"COLUMNS": "200", "CORA": str(CORA)}),
                ("your-own-loss", 5, {"COLUMNS": "200"}),
                ("several-types", 6, {"COLUMNS": "200"}),
                ("time", 3, {"COLUMNS": "200"}),
                ("notifications", 4, {"HOME": ""}),
                ("trackers", 4, {"HOME": ""}),
            )
        ),
    ],
)
def test_every_command_in_the_guide_works(tmp_path: Path, guide: str, commands: int, variables: dict[str, str]) -> None:
    here = {name: value or str(tmp_path) for name, value in variables.items()}
    assert follow_here(guide, tmp_path, **here) >= commands

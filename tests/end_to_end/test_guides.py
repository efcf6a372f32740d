"""Guides typed line by line on this machine, as a new user would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.guide import GUIDES, commands, follow_here, matched, steps
from support.ranks import CORA


@pytest.mark.parametrize(
    ("guide", "commands", "variables"),
    [
        ("starting", 7, {"COLUMNS": "200"}),
        *(
            pytest.param(*guide, marks=pytest.mark.long)
            for guide in (
                ("../tutorial/index", 10, {"COLUMNS": "200"}),  # trains Cora twice
                ("your-batch-script", 9, {"COLUMNS": "200"}),
                ("again-and-different", 4, {}),
                ("tidying-up", 4, {"COLUMNS": "200"}),
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
def test_every_command_in_the_guide_works(
    tmp_path: Path, update_golden: bool, guide: str, commands: int, variables: dict[str, str]
) -> None:
    here = {name: value or str(tmp_path) for name, value in variables.items()}
    assert follow_here(guide, tmp_path, update=update_golden, **here) >= commands


def test_guides_show_whole_outputs() -> None:
    """`...` is for writing a guide: `--update-golden` puts the output there."""
    left_out = [
        f"{page.name}: $ {command}"
        for page in (*GUIDES.glob("*.md"), GUIDES.parent / "tutorial" / "index.md")
        for language, block in steps(page.read_text())
        if language == "console"
        for command, expected, _ in commands(block)
        if any(re.search(r"(?<!\[)(?<!//)\.\.\.", line) for line in expected)  # programs print [...] and https://...
    ]
    assert left_out == []


PRINTED = """\
fit-20260131-120000-1a2b
RUN        STATE     TIME   LOSS
fit-20260131-120000-1a2b  finished  1m 20s  0.0021
next: clusterctl why fit-20260131-120000-1a2b
r01 node2 b
r00 node1 a
r00 node1 c
"""


@pytest.mark.parametrize(
    ("expected", "alike"),
    [
        ("fit-20251231-235959-ffff", True),
        ("fit-...\nfit-20251231-235959-ffff finished 3s 0.0022", True),
        ("fit-20251231-235959-ffff finished 3s 0.5022", False),  # another loss
        ("fit-20251231-235959-ffff finished 1m52s 0.0021", True),
        ("fit-20251231-235959-ffff failed 3s 0.0021", False),
        ("other-20251231-235959-ffff", False),
        ("next: clusterctl why fit-20251231-235959-ffff\nRUN STATE TIME LOSS", False),  # another order
        ("RUN STATE TIME\nnext: clusterctl why fit-20251231-235959-ffff", False),  # a column less
        ("...\nRUN STATE ... LOSS\n...", True),
        ("r00 node1 a\nr00 node1 c\nr01 node2 b", True),  # logs of several ranks, in the order of the ranks
        ("r00 node1 c\nr00 node1 a", False),
        ("", True),
    ],
)
def test_an_output_is_compared_without_what_varies(expected: str, alike: bool) -> None:
    assert (matched(expected.splitlines(), PRINTED) is not None) == alike

"""What the guide for people who come from another tool tells them to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from support.mistake import Desk

from clusterctl.launcher.api.settings import key_tables
from clusterctl.launcher.cli import clusterctl as top

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "coming-from.md").read_text()
COMMANDS = [
    *re.findall(r"`(clusterctl (?!submit)[^`]+)`", PAGE),
    *re.findall(r"`(clusterctl submit [^`]+)`|^    (clusterctl submit .+)$", PAGE, re.MULTILINE),
]
TYPED = sorted({one if isinstance(one, str) else "".join(one) for one in COMMANDS})
SCRIPT = "#!/bin/bash\n#SBATCH --ntasks-per-node=1\nsrun python train.py\n"


@pytest.mark.parametrize("line", TYPED)
def test_a_command_of_the_page_is_accepted(desk: Desk, line: str) -> None:
    """Submissions as far as their script; of other commands, the words."""
    desk.use_slurm()
    desk.write("train.py", "")
    desk.write("train.sbatch", SCRIPT)
    name, *words = shlex.split(line)[1:]
    if name == "submit":
        code, out, err = desk.type(["submit", "--dry-run=script", *(word for word in words if word != "--wait")])
        assert (code, out.startswith("#!") or "--sweep" in words) == (0, True), err
        return
    above = click.Context(top, **top.context_settings)
    command = top.get_command(above, name)
    assert command
    # A name alone only names the command. Click keeps the first parser's help option for all later ones.
    assert command.make_context(name, words, above, resilient_parsing=not words)


def test_the_page_has_a_command_for_every_tool_and_its_keys_exist() -> None:
    assert len(TYPED) > 15
    keys = {key.path for _, found in key_tables() for key in found}
    named = set(re.findall(r"[`\"]((?:restart|resources)\.\w+)", PAGE))
    assert len(named) > 3
    assert named <= keys

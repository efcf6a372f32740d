"""The commands that a text suggests."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterctl.launcher import cli


def commands_in(text: str) -> Iterator[list[str]]:
    """The command lines of clusterctl in a text: words up to the end of the sentence."""
    for found in re.finditer(r"(?<![\w./-])clusterctl (?P<rest>[a-z-][^\n;`()]*)", text):
        rest = re.split(r": |, | \.\.\.|\.\.\.| && | or | \||\.$", found["rest"])[0]
        words = rest.split()
        if words and words[0] in cli.COMMANDS:
            yield words

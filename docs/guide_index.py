"""Finds the guides about a command or a key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST = 5  # guides to name


@dataclass(frozen=True)
class GuideIndex:
    """The texts of the guides by file name."""

    texts: dict[str, str]
    folder: str  # as seen from the page that links to them

    @classmethod
    def of(cls, folder: Path, seen_from: str) -> GuideIndex:
        texts = {path.name: path.read_text() for path in sorted(folder.glob("*.md")) if path.stem != "index"}
        return cls({name: "\n".join([text, *_keys_set_in(text)]) for name, text in texts.items()}, seen_from)

    def naming(self, *words: str) -> list[str]:
        """Links to the guides that contain one of `words`, those with the most occurrences first."""
        pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(one)}(?![\w-]|\.\w)" for one in words))
        texts = {name: text for name, text in self.texts.items() if any(one in text for one in words)}
        counts = {name: len(pattern.findall(text)) for name, text in texts.items()}
        found = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])[:MOST]
        return [f"[{_title(self.texts[name])}]({self.folder}/{name})" for name in found]


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _keys_set_in(text: str) -> Iterator[str]:
    """The full names of the keys set in tables of a guide's TOML examples."""
    table = ""
    for line in text.splitlines():
        if match := re.match(r"\s*\[(\w+)\]\s*(#|$)", line):
            table = match[1]
        elif line.startswith(("```", "#")):
            table = ""
        elif table and (match := re.match(r"\s*(\w+) = ", line)):
            yield f"{table}.{match[1]}"

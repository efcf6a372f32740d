"""File names with Slurm's replacement symbols, as in `rank_%5t.out`."""

from __future__ import annotations

import re

_SYMBOL = re.compile(r"%(\d*)(.)", re.DOTALL)


def expand(pattern: str, symbols: dict[str, str]) -> str:
    """Replace `%x` by `symbols["x"]`, `%5x` by the same padded with zeros, `%%` by `%`.

    Unknown symbols stay. A backslash anywhere switches the replacement off and is dropped (sbatch(1), "filename
    pattern").
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def replace(match: re.Match[str]) -> str:
        width, symbol = match.groups()
        if symbol == "%":
            return "%"
        if symbol not in symbols:
            return match[0]
        value = symbols[symbol]
        return value.zfill(min(int(width), 10)) if width and value.isdigit() else value

    return _SYMBOL.sub(replace, pattern)

"""What many ranks report alike: the same message but for numbers and addresses."""

from __future__ import annotations

import re

_VARYING = re.compile(r"0x[0-9a-f]+|\d+")  # ranks, ports, addresses


def pattern(message: str) -> str:
    """`message` with one sign for each number in it: equal for messages that say the same of different ranks."""
    return _VARYING.sub("#", message)

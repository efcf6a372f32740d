"""Slurm's names for elements of job arrays: `12_7`, or several as `12_[0-3,7]` or `12_[3-9%4]`."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_INDICES = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})(?::(?P<step>\d{1,9}))?)?", re.ASCII)


def element_id(array: str, index: int) -> str:
    """The job ID of an element of an array."""
    return f"{array}_{index}"


def together(job_ids: Iterable[str]) -> list[str]:
    """`job_ids` with the elements of each array combined, such as `12_[0-3,7]`, for a single request to Slurm."""
    arrays: dict[str, list[int]] = {}
    alone = []
    for job_id in job_ids:
        array, _, index = job_id.partition("_")
        if index.isdecimal():
            arrays.setdefault(array, []).append(int(index))
        else:
            alone.append(job_id)
    return [*alone, *(f"{array}_[{_ranges(indices)}]" for array, indices in arrays.items())]


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3,7`: consecutive numbers have the same difference from their index."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(set(numbers))), lambda item: item[1] - item[0]):
        first, *others = (number for _, number in run)
        parts.append(f"{first}-{others[-1]}" if others else str(first))
    return ",".join(parts)


def is_among(index: int, indices: str) -> bool:
    """Whether `index` is in `0-3,7,20-40:5%4`; the number after `%` limits how many may run at once."""
    for part in indices.partition("%")[0].split(","):
        if match := _INDICES.fullmatch(part):
            first, last, step = int(match["first"]), int(match["last"] or match["first"]), int(match["step"] or 1)
            if index in range(first, last + 1, max(1, step)):
                return True
    return False

"""Events in the raw format of PyG's Taobao data set: lines of user, item, category, behaviour, time."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterctl.errors import Cause, TaskError
from clusterctl.workloads.number_files import states_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

RAW_FILE = "UserBehavior.csv"
TRUTH_FILE = "truth.json"  # beside `raw`, where the data was generated
FIRST_SECOND, LAST_SECOND = 1511539200, 1512316799  # 25 November to 3 December 2017; others are left out, as PyG does
BEHAVIOURS = (b"pv", b"cart", b"buy", b"fav")
_COLUMNS = 5
_BYTES_AT_ONCE = 1 << 25


class TaobaoEvents(NamedTuple):
    """Who took what, users and items numbered from 0 on in the order of their ids; by user, then item."""

    users: Numbers
    items: Numbers
    num_users: int
    num_items: int


def raw_identity(root: str | Path | None) -> dict[str, Any]:
    """What tells one data set from another: where its raw file lies, its size and time. Raises TaskError."""
    hint = f"data.root names a folder with raw/{RAW_FILE}; make one with: clusterctl data generate taobao --root DIR"
    if root is None:
        raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)
    folder = Path(root).resolve()
    return {"root": str(folder), **states_of(folder / "raw", (RAW_FILE,), hint)}


def best_auc(root: Path) -> float:
    """What the generator wrote beside the data; nan where nobody knows."""
    try:
        return float(json.loads((root / TRUTH_FILE).read_text())["best_auc"])
    except (OSError, ValueError, KeyError, TypeError):
        return math.nan


def read_events(root: Path) -> TaobaoEvents:
    """The events of the nine days, each line once. Needs no pandas, which PyG's own class does. Raises TaskError.

    About 80 bytes of memory a line: 8 GB for the hundred million of the real data set.
    """
    path = root / "raw" / RAW_FILE
    try:
        lines = np.concatenate([*_parsed(path)])
    except (OSError, ValueError) as error:
        message = f"cannot read {path} as Taobao's events: {error}"
        raise TaskError(message, "is the raw file whole?", Cause.DATA) from error
    lines = lines[(lines[:, 4] >= FIRST_SECOND) & (lines[:, 4] <= LAST_SECOND)]
    if len(lines) == 0:
        raise TaskError(f"{path} has no event of the nine days", "is it the right file?", Cause.DATA)
    lines = lines[np.lexsort(lines.T[::-1])]  # by user, item, category, behaviour, time
    lines = lines[np.append(True, (lines[1:] != lines[:-1]).any(axis=1))]
    (users, num_users), (items, num_items) = (_numbered(lines[:, column]) for column in (0, 1))
    return TaobaoEvents(users, items, num_users, num_items)


def _numbered(ids: Numbers) -> tuple[Numbers, int]:
    known, numbers = np.unique(ids, return_inverse=True)
    return numbers, len(known)


def _parsed(path: Path) -> Iterator[Numbers]:
    """The lines as numbers [lines, 5], a piece of the file at a time; behaviours by their place in `BEHAVIOURS`."""
    with path.open("rb") as file:
        rest = b""
        while block := file.read(_BYTES_AT_ONCE):
            whole, newline, tail = (rest + block).rpartition(b"\n")
            rest = tail
            if newline:
                yield _numbers(whole)
        if rest:
            yield _numbers(rest)


def _numbers(text: bytes) -> Numbers:
    for number, name in enumerate(BEHAVIOURS):
        text = text.replace(b"," + name + b",", b",%d," % number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy stops at what is no number, and only warns
        try:
            numbers = np.fromstring(text.strip().replace(b"\r", b"").replace(b"\n", b","), dtype=np.int64, sep=",")
        except (DeprecationWarning, ValueError) as error:
            raise ValueError("a line is not user,item,category,behaviour,time") from error
    if len(numbers) % _COLUMNS:
        raise ValueError(f"its lines do not all have {_COLUMNS} columns")
    return numbers.reshape(-1, _COLUMNS)

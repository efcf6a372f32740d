"""Events in the raw format of PyG's Taobao data set: lines of user, item, category, behaviour, time."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterctl.engine.workloads.number_files import states_of
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.files import open_regular, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

RAW_FILE = "UserBehavior.csv"
TRUTH_FILE = "truth.json"  # next to `raw`, if the data was generated
FIRST_SECOND, LAST_SECOND = (
    1511539200,
    1512316799,
)  # 25 November to 3 December 2017; others are ignored, as in PyG
BEHAVIOURS = (b"pv", b"cart", b"buy", b"fav")
_COLUMNS = 5
_BYTES_AT_ONCE = 1 << 25


class TaobaoEvents(NamedTuple):
    """Which user picked which item, both numbered from 0 in order of their ids; sorted by user, then item."""

    users: Numbers
    items: Numbers
    num_users: int
    num_items: int


def raw_identity(root: str | Path | None) -> dict[str, Any]:
    """Identifies a data set: the location of its raw file, its size and time. Raises TaskError."""
    hint = f"set data.root to a folder with raw/{RAW_FILE}; generate one: clusterctl data generate taobao --root DIR"
    if root is None:
        raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)
    folder = Path(root).resolve()
    return {"root": str(folder), **states_of(folder / "raw", (RAW_FILE,), hint)}


def best_auc(root: Path) -> float:
    """The value that the generator wrote next to the data; nan if unknown."""
    try:
        return float(json.loads(read_whole(root / TRUTH_FILE))["best_auc"])
    except (OSError, ValueError, KeyError, TypeError):
        return math.nan


def read_events(root: Path) -> TaobaoEvents:
    """The events of the nine days, without repeated lines. Unlike PyG's class, needs no pandas. Raises TaskError.

    Takes about 80 bytes of memory per line: 8 GB for the hundred million lines of the real data set.
    """
    path = root / "raw" / RAW_FILE
    try:
        lines = np.concatenate([*_parsed(path)])
    except (OSError, ValueError) as error:
        message = f"cannot read {path} as Taobao's events: {error}"
        raise TaskError(message, "is the raw file complete?", Cause.DATA) from error
    lines = lines[(lines[:, 4] >= FIRST_SECOND) & (lines[:, 4] <= LAST_SECOND)]
    if len(lines) == 0:
        raise TaskError(f"{path} has no events in the nine days", "is it the right file?", Cause.DATA)
    lines = lines[np.lexsort(lines.T[::-1])]  # by user, item, category, behaviour, time
    lines = lines[np.append(True, (lines[1:] != lines[:-1]).any(axis=1))]
    (user_ids, users), (item_ids, items) = (np.unique(lines[:, column], return_inverse=True) for column in (0, 1))
    return TaobaoEvents(users, items, len(user_ids), len(item_ids))


def _parsed(path: Path) -> Iterator[Numbers]:
    """The lines as numbers [lines, 5], in chunks; behaviours become their index in `BEHAVIOURS`."""
    with open_regular(path) as file:
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
        warnings.simplefilter("error")  # numpy only warns, and stops, at text that is not a number
        try:
            numbers = np.fromstring(text.strip().replace(b"\r", b"").replace(b"\n", b","), dtype=np.int64, sep=",")
        except (DeprecationWarning, ValueError) as error:
            raise ValueError("a line is not user,item,category,behaviour,time") from error
    if len(numbers) % _COLUMNS:
        raise ValueError(f"its lines do not all have {_COLUMNS} columns")
    return numbers.reshape(-1, _COLUMNS)

"""Job arrays: `--array=0-9%4` as sbatch reads it, `0-9%4` as squeue writes it, and `12_[3-5]` as commands name jobs."""

from __future__ import annotations

import os
import re
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.emulator.jobs import JobRecord

MAX_SIZE = 1001  # Slurm's default MaxArraySize; the highest index is one less
_LONGEST = 64  # longest index list that squeue prints, unless SLURM_BITSTR_LEN overrides it; 0: no limit
UNKNOWN_JOB = "Invalid job id specified"
_INVALID = "Batch job submission failed: Invalid job array specification"
_RANGE = re.compile(r"\[?\s*([0-9]{1,9})\]?(?:-([0-9]{1,9})\]?(?::([0-9]{1,9})\]?)?)?(?:%.*)?", re.DOTALL)


def parse(text: str) -> list[int]:
    """The indices in `0-9%4`, `1,3,5-8` or `0-20:5`; empty if `text` is. Raises SlurmError."""
    found: set[int] = set()
    for word in filter(None, text.split(",")):
        match = _RANGE.fullmatch(word)
        if not match:
            raise SlurmError(_INVALID)
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not (first <= last < MAX_SIZE and 0 < step < MAX_SIZE):
            raise SlurmError(_INVALID)
        found.update(range(first, last + 1, step))
    return sorted(found)


def throttle(text: str) -> int:
    """How many elements may run at once: 4 for `0-9%4`, 0 for no limit. Like Slurm's parser, it never fails."""
    match = re.search(r"%([0-9]{1,9})", text)
    return int(match[1]) if match else 0


def environment(text: str) -> dict[str, object]:
    """The variables that describe the whole array to each of its elements; all None in a job outside an array."""
    indices = parse(text)
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("COUNT", "MIN", "MAX", "STEP")]
    if not indices:
        return dict.fromkeys(names)
    step = re.search(r":([0-9]+)", text)
    return dict(zip(names, (len(indices), indices[0], indices[-1], int(step[1]) if step else 1), strict=True))


def ranges(indices: Sequence[int]) -> str:
    """1,3,5,6,7 -> 1,3,5-7"""
    runs = [[index for _, index in run] for _, run in groupby(enumerate(indices), lambda pair: pair[1] - pair[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def shown(record: JobRecord) -> str:
    """The elements of a job as squeue shows them: `3`, or `3-9%4` for pending ones."""
    tasks = record.tasks
    if len(tasks) < 2:
        return str(tasks[0]) if tasks else "N/A"
    steps = {later - earlier for earlier, later in pairwise(tasks)}
    if len(tasks) > 5 and tasks[-1] - tasks[0] > 10 and len(steps) == 1 and steps != {1}:
        text = f"{tasks[0]}-{tasks[-1]}:{steps.pop()}"
    else:
        text = ranges(tasks)
        longest = int(os.environ.get("SLURM_BITSTR_LEN", _LONGEST))
        if longest and len(text) > longest - 3:
            text = f"{text[: longest - 4]}..."
    return f"{text}%{record.throttle}" if record.throttle else text


def job_name(job_id: int, record: JobRecord) -> str:
    """What squeue calls a job: `12`, `12_3` for an array element, `12_[3-9%4]` for its pending elements."""
    if not record.tasks:
        return str(job_id)
    return f"{record.array}_[{shown(record)}]" if len(record.tasks) > 1 else f"{record.array}_{record.tasks[0]}"


def parse_target(text: str) -> tuple[int, list[int]]:
    """The job number and the indices of `12_3` or `12_[3-5]`; no indices for `12` and `12_*`. Raises SlurmError."""
    match = re.fullmatch(r"([0-9]{1,10})(?:_\*)?(?:_(?:([0-9]{1,9})|\[([0-9:,%-]*[0-9])\]))?", text)
    if not match:
        raise SlurmError(UNKNOWN_JOB)
    try:
        return int(match[1]), parse(match[2] or match[3] or "")
    except SlurmError:
        raise SlurmError(UNKNOWN_JOB) from None


def targets(text: str) -> list[str]:
    """12,13_[1,3-4] -> 12 and 13_[1,3-4]"""
    return re.findall(r"(?:\[[^\]]*\]|[^,])+", text) or [text]

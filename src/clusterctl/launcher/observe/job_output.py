"""The output of a job's batch script: the end and the beginning of its files, since its last start.

A job that Slurm has started again may append to the files of its earlier starts.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.lines import MISSING, text_lines
from clusterctl.launcher.observe.logs import time_of
from clusterctl.launcher.observe.slurm_log import EndedBy, job_ends
from clusterctl.shared.record.files import status_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MOST_BYTES = 2**17  # at either end of a file: many ranks may share it
_CLOCK_SECONDS = 60.0  # between the clocks of a node and of the controller
_STARTED_AGAIN = frozenset({EndedBy.PREEMPTION, EndedBy.REQUEUE, EndedBy.NODE_FAILURE})
_SLURMS = re.compile(r"(?:slurmstepd|srun)[\w.-]*: ")


@dataclass(frozen=True)
class JobOutput:
    """The lines of a job's files. `printed` are those of stdout, if stderr has a file of its own.

    `changed`: when a file last grew, by the file server's clock; `unknown`: files that could not be read, and why.
    """

    lines: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    changed: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether stdout and stderr share a file, so that any line may be about progress."""
        return len(self.files) < 2


def read_output(files: Sequence[Path], started: float | None = None) -> JobOutput:
    """Read `files`: one for stdout and stderr, or one for each. `started` is the job's last start, if known."""
    texts = [text_lines(path, _MOST_BYTES, head=True) for path in files]
    unknown = [
        f"{path}: {'no such file on this machine' if text.problem == MISSING else text.problem}"
        for path, text in zip(files, texts, strict=True)
        if text.problem
    ]
    changed = []
    for path in files:
        with suppress(OSError):
            changed.append(status_of(path).st_mtime)
    *printed, lines = [since_start(text.lines, started) for text in texts] or [()]
    newest = max(changed, default=None)
    return JobOutput(lines, printed[0] if printed else (), tuple(files), newest, tuple(unknown))


def since_start(lines: tuple[str, ...], started: float | None) -> tuple[str, ...]:
    """Those of `lines` that were written since `started`; if that is unknown, since a start that Slurm's lines show."""
    for at in range(len(lines) - 1, -1, -1):
        for end in job_ends(lines[at : at + 1]):
            when = time_of(end.at.encode())
            if started is not None and when is not None:
                earlier = when < started - _CLOCK_SECONDS
            else:
                later = any(not _SLURMS.match(line) for line in lines[at + 1 :])
                earlier = end.by in _STARTED_AGAIN and later
            if earlier:
                return lines[at + 1 :]
    return lines

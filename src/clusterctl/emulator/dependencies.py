"""Jobs that wait for others, `--dependency=afterok:7:8,afterany:9`, as Slurm 22.05 judges them."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.emulator import jobs
from clusterctl.emulator.jobs import EmulatedState
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.emulator.jobs import JobRecord
    from clusterctl.emulator.virtual_cluster import Machine

WAITS, NEVER = "Dependency", "DependencyNeverSatisfied"  # reasons
_NONSENSE = "Batch job submission failed: Job dependency problem"


class DependencyKind(StrEnum):
    AFTER = "after"
    AFTER_ANY = "afterany"
    AFTER_NOT_OK = "afternotok"
    AFTER_OK = "afterok"


class Dependency(NamedTuple):
    """One job that is waited for. Those that are met are dropped, as from squeue's list."""

    kind: str
    job: int
    failed: bool = False  # it can never be met

    def __str__(self) -> str:
        return f"{self.kind}:{self.job}({'failed' if self.failed else 'unfulfilled'})"


def parse(text: str) -> list[Dependency]:
    """All of the list, each once. Raises SlurmError."""
    if "?" in text or "+" in text or text.lower().startswith(("singleton", "expand", "aftercorr")):
        raise SlurmError(f"the emulator does not do --dependency={text}")
    found = []
    for word in text.split(",") if text else ():
        kind, *numbers = word.lower().split(":")
        if (
            kind not in set(DependencyKind)
            or not numbers
            or not all(re.fullmatch(r"[0-9]{1,10}", one) for one in numbers)
        ):
            raise SlurmError(_NONSENSE)
        found += [Dependency(kind, int(number)) for number in numbers]
    return list(dict.fromkeys(found))


def left(machine: Machine, dependencies: Sequence[Dependency]) -> list[Dependency]:
    """Those that are not met yet, or never can be. A job that is not known, or no longer, meets every one of them."""
    found = {one.job: jobs.EmulatedJob(machine.jobs / str(one.job)) for one in dependencies}
    known = {number: job for number, job in found.items() if job.folder.is_dir()}
    if any(job.is_lost for job in known.values()):
        jobs.bury_lost(machine)
    judged = ((one, verdict(one.kind, known[one.job].record)) for one in dependencies if one.job in known)
    return [one._replace(failed=met is False) for one, met in judged if met is not True]


def shown(record: JobRecord) -> str:
    """As squeue and scontrol show what a job still waits for."""
    return ",".join(str(Dependency(*one)) for one in record.dependencies) or "(null)"


def verdict(kind: str, record: JobRecord) -> bool | None:
    """Whether what a job waits for has come; None while it may. A job that is requeued has neither ended nor begun."""
    state = record.state
    if kind == DependencyKind.AFTER:
        return state is EmulatedState.RUNNING or state.ended or None
    if not state.ended:
        return None
    return kind == DependencyKind.AFTER_ANY or (state is EmulatedState.COMPLETED) == (kind == DependencyKind.AFTER_OK)

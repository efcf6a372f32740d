"""Jobs that wait for others, `--dependency=afterok:7:8,afterany:9`, as Slurm 22.05 judges them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.emulator import arrays, jobs
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
    """One job, array or element that is waited for. Those that are met are dropped, as from squeue's list."""

    kind: str
    job: str  # 12, 12_* or 12_3
    failed: bool = False  # it can never be met

    def __str__(self) -> str:
        return f"{self.kind}:{self.job}({'failed' if self.failed else 'unfulfilled'})"


def parse(text: str) -> list[Dependency]:
    """All of the list, each once. Raises SlurmError."""
    if "?" in text or "+" in text or text.lower().startswith(("singleton", "expand", "aftercorr")):
        raise SlurmError(f"the emulator does not do --dependency={text}")
    found = []
    for word in text.split(",") if text else ():
        kind, *targets = word.lower().split(":")
        if kind not in set(DependencyKind) or not targets:
            raise SlurmError(_NONSENSE)
        found += [Dependency(kind, job) for target in targets for job in _jobs(target)]
    return list(dict.fromkeys(found))


def _jobs(target: str) -> list[str]:
    """12_[3-4] -> 12_3, 12_4"""
    try:
        number, indices = arrays.parse_target(target)
    except SlurmError:
        raise SlurmError(_NONSENSE) from None
    return [f"{number}_{index}" for index in indices] or [str(number)]


def left(machine: Machine, dependencies: Sequence[Dependency]) -> list[Dependency]:
    """Those that are not met yet, or never can be. A job that is not known, or no longer, meets every one of them."""
    judged = [_judge(machine, one) for one in dependencies]
    return [one for one in judged if one]


def _judge(machine: Machine, one: Dependency) -> Dependency | None:
    """The dependency as squeue shows it; None once it is met."""
    try:
        found = jobs.chosen(machine, one.job)
    except SlurmError:
        return None
    if any(job.is_lost for job in found):
        jobs.bury_lost(machine)
    records = [job.record for job in found]
    met = verdict(one.kind, records)
    job = f"{one.job}_*" if one.job == str(records[0].array) else one.job
    return None if met else Dependency(one.kind, job, failed=met is False)


def shown(record: JobRecord) -> str:
    """As squeue and scontrol show what a job still waits for."""
    return ",".join(str(Dependency(*one)) for one in record.dependencies) or "(null)"


def verdict(kind: str, records: Sequence[JobRecord]) -> bool | None:
    """Whether what all these jobs are waited for has come; None while it may."""
    verdicts = [_verdict(kind, record) for record in records]
    if None in verdicts:
        return None
    return any(verdicts) if kind == DependencyKind.AFTER_NOT_OK else all(verdicts)


def _verdict(kind: str, record: JobRecord) -> bool | None:
    """As `verdict`. A job that is requeued has neither ended nor begun."""
    state = record.state
    if kind == DependencyKind.AFTER:
        return state is EmulatedState.RUNNING or state.ended or None
    if not state.ended:
        return None
    return kind == DependencyKind.AFTER_ANY or (state is EmulatedState.COMPLETED) == (kind == DependencyKind.AFTER_OK)

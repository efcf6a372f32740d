"""Job dependencies, such as `--dependency=afterok:7:8,afterany:9`, as Slurm 22.05 evaluates them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.emulator import jobs
from clusterctl.launcher.emulator.jobs import EmulatedState
from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.launcher.emulator.jobs import JobRecord
    from clusterctl.launcher.emulator.virtual_cluster import Machine

WAITS, NEVER = "Dependency", "DependencyNeverSatisfied"  # reasons
_NONSENSE = "Batch job submission failed: Job dependency problem"


class DependencyKind(StrEnum):
    AFTER = "after"
    AFTER_ANY = "afterany"
    AFTER_NOT_OK = "afternotok"
    AFTER_OK = "afterok"


class Dependency(NamedTuple):
    """One job, array or element to wait for. Satisfied ones are dropped, as in squeue's list."""

    kind: str
    job: str  # 12, 12_* or 12_3
    failed: bool = False  # it can never be satisfied

    def __str__(self) -> str:
        return f"{self.kind}:{self.job}({'failed' if self.failed else 'unfulfilled'})"


def parse(text: str) -> list[Dependency]:
    """The dependencies in `text`, without duplicates. Raises SlurmError."""
    if "?" in text or "+" in text or text.lower().startswith(("singleton", "expand", "aftercorr")):
        raise SlurmError(f"the emulator does not support --dependency={text}")
    found = []
    for word in text.split(",") if text else ():
        kind, *targets = word.lower().split(":")
        if kind not in set(DependencyKind) or not targets:
            raise SlurmError(_NONSENSE)
        for target in targets:
            try:
                number, indices = jobs.parse_target(target)  # 12_[3-4] -> 12_3, 12_4
            except SlurmError:
                raise SlurmError(_NONSENSE) from None
            found += [Dependency(kind, f"{number}_{index}") for index in indices] or [Dependency(kind, str(number))]
    return list(dict.fromkeys(found))


def left(machine: Machine, dependencies: Sequence[Dependency]) -> list[Dependency]:
    """Those not satisfied yet, or that never can be, as squeue shows them.

    An unknown or forgotten job satisfies every kind.
    """
    open_ones = []
    for one in dependencies:
        try:
            found = jobs.chosen(machine, one.job)
        except SlurmError:
            continue
        if any(job.is_lost for job in found):
            jobs.bury_lost(machine)
        records = [job.record for job in found]
        satisfied = verdict(one.kind, records)
        if not satisfied:
            job = f"{one.job}_*" if one.job == str(records[0].array) else one.job
            open_ones.append(Dependency(one.kind, job, failed=satisfied is False))
    return open_ones


def shown(record: JobRecord) -> str:
    """The remaining dependencies of a job, in the format of squeue and scontrol."""
    return ",".join(str(Dependency(*one)) for one in record.dependencies) or "(null)"


def verdict(kind: str, records: Sequence[JobRecord]) -> bool | None:
    """Whether these jobs satisfy a dependency of this kind; None while that is open."""

    def of_job(state: EmulatedState) -> bool | None:
        """A requeued job counts as neither ended nor started."""
        if kind == DependencyKind.AFTER:
            return state is EmulatedState.RUNNING or state.ended or None
        if not state.ended:
            return None
        succeeded = state is EmulatedState.COMPLETED
        return kind == DependencyKind.AFTER_ANY or succeeded == (kind == DependencyKind.AFTER_OK)

    verdicts = [of_job(record.state) for record in records]
    if None in verdicts:
        return None
    return any(verdicts) if kind == DependencyKind.AFTER_NOT_OK else all(verdicts)

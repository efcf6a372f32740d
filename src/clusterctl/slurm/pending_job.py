"""What squeue knows of one job that waits, beyond the snapshot of all: asked for when somebody wants to know why."""

from __future__ import annotations

from dataclasses import dataclass

SEPARATOR = "\x1f"
FIELDS = ("JobID", "Reason", "Partition", "StartTime", "Dependency")
FORMAT = ",".join(f"{field}:{SEPARATOR}" for field in FIELDS)


@dataclass(frozen=True)
class WaitingJob:
    """One pending job. `start` is Slurm's estimate in seconds since the epoch, None where it has none."""

    job_id: str
    reason: str
    partition: str
    start: float | None
    dependency: str


def question(job_id: str) -> tuple[str, ...]:
    """The one job by its number: the controller filters, so the answer costs what one job costs."""
    return ("squeue", "-h", "-j", job_id, "-O", FORMAT)


def parse_waiting(text: str) -> WaitingJob | None:
    """Read the answer to `question`; None where there is no such job."""
    for line in text.split("\n"):
        values = line.split(SEPARATOR)
        if len(values) > len(FIELDS):
            job_id, reason, partition, start = values[:4]
            dependency = SEPARATOR.join(values[4:-1])
            return WaitingJob(
                job_id,
                reason,
                partition,
                float(start) if start.isascii() and start.isdigit() and len(start) < 13 else None,
                "" if dependency in ("(null)", "") else dependency,
            )
    return None

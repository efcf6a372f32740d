"""When a run was submitted, cancelled and finished, each recorded in a small file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.record.fields import read_fields

if TYPE_CHECKING:
    from clusterctl.shared.record.layout import ArrayDir, RunDir


class Submission(NamedTuple):
    """Slurm's job id, such as 12 or 12_7, and when sbatch returned it; empty and None before that."""

    job_id: str = ""
    time: float | None = None


class Cancellation(NamedTuple):
    """When the run was cancelled (0: unknown), and by whom."""

    time: float
    by: str


class Finish(NamedTuple):
    """When the run finished (0: unknown), and in which attempt (None: unknown)."""

    time: float
    attempt: int | None


def read_submission(run: RunDir | ArrayDir) -> Submission:
    fields = read_fields(run.submission_json)
    return Submission(fields.job("job_id"), fields.moment("time"))


def read_cancellation(run: RunDir) -> Cancellation | None:
    """None unless the run was cancelled; a damaged file counts, as it is written before anything else."""
    fields = read_fields(run.cancel_json)
    return None if fields.absent else Cancellation(fields.moment("time") or 0.0, fields.text("by"))


def read_finish(run: RunDir) -> Finish | None:
    """None unless the run finished; a damaged file counts."""
    fields = read_fields(run.finished_json)
    return None if fields.absent else Finish(fields.moment("time") or 0.0, fields.whole("attempt"))

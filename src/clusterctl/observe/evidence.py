"""What the files of a run say, read once and parsed: the evidence that `stage` judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.observe.lines import last_records
from clusterctl.runs.files import read_json
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.observe.record import Record
    from clusterctl.runs.layout import Attempt
    from clusterctl.slurm import QueuedJob

Number = int | float


@dataclass(frozen=True)
class AttemptEvidence:
    """One attempt: what its batch script and its rank 0 wrote. `exit_code` is None until the batch script has ended."""

    number: int
    job_id: str = ""
    restart_count: int = 0
    nodes: str = ""
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    terminated: bool = False  # the batch script itself got TERM: time limit, cancel or preemption
    stage: Stage | None = None
    metrics: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What Slurm said when asked: the run's job, or None where it knows no such job."""

    job: QueuedJob | None


@dataclass(frozen=True)
class Evidence:
    """All that is known of a run. `answer` is None where Slurm was not asked, or did not answer."""

    record: Record
    job_id: str | None
    cancelled_at: float | None
    finished_at: float | None
    attempts: tuple[AttemptEvidence, ...]
    answer: Answer | None = None


def read_evidence(record: Record) -> Evidence:
    """Look at the run directory once. A file that is missing, or is none of ours, says nothing."""
    run = record.run
    # The marks of the end are read first: what is read after them is at least as new.
    finished, cancelled, submission = (
        _read_table(path) for path in (run.finished_json, run.cancel_json, run.submission_json)
    )
    *earlier, last = [*run.attempts(), None]
    attempts = [_read_host(attempt) for attempt in earlier]
    del last
    if earlier:
        attempts[-1] = _read_progress(earlier[-1], attempts[-1])
    submitted = _text(submission.get("job_id")) if submission else ""
    return Evidence(
        record=record,
        job_id=submitted or (attempts[-1].job_id if attempts else "") or None,
        cancelled_at=_mark(cancelled),
        finished_at=_mark(finished),
        attempts=tuple(attempts),
    )


def numbers_of(record: dict[str, Any]) -> dict[str, Number]:
    """The numbers of one line of metrics.jsonl, by name."""
    return {
        name: value
        for name, value in record.items()
        if name != "time" and isinstance(value, int | float) and not isinstance(value, bool)
    }

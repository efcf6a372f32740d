"""What the files of a run say, read once and parsed: the evidence that `stage` judges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusterctl.observe.course import Course, read_course
from clusterctl.observe.lines import last_lines, newest_first
from clusterctl.observe.pace import Pace, pace_of
from clusterctl.observe.telemetry import gpu_utilisation, latest_samples
from clusterctl.runs.files import parse_record, read_json
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.observe.run_record import Record
    from clusterctl.runs.layout import Attempt
    from clusterctl.slurm import JobState, QueuedJob

Number = int | float
_STAGES = frozenset(Stage)
# Of metrics.jsonl: an evaluation may lie some hundred steps back, but for the last one of a run that is over.
_TAIL_BYTES, _TAIL_OF_ENDED_BYTES = 65536, 16384


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
    hung: bool = False  # ended by the watchdog
    requeued: bool = False  # its batch script has sent the job back to the queue
    terminated: bool = False  # ended from outside: TERM of a time limit, cancel or preemption, or a lost node
    stage: Stage | None = None
    metrics: dict[str, Number] = field(default_factory=dict)
    pace: Pace | None = None
    gpu: float | None = None  # utilisation of its GPUs now, in percent, their mean
    course: Course | None = None  # of the loss, unless the training clearly learns


@dataclass(frozen=True)
class Answer:
    """What Slurm said when asked: the run's job, or None where it knows no such job.

    `early`: it was asked before the run was submitted, so that it says nothing. `stale`: it does not answer any more.
    """

    job: QueuedJob | None
    early: bool = False
    stale: bool = False
    ended: JobState | None = None  # how a job that squeue no longer knows ended, by the accounting


@dataclass(frozen=True)
class Evidence:
    """All that is known of a run. `answer` is None where Slurm was not asked, or did not answer."""

    record: Record
    job_id: str | None
    cancelled_at: float | None
    finished_at: float | None
    attempts: tuple[AttemptEvidence, ...]
    answer: Answer | None = None
    submitted_at: float | None = None  # when sbatch had answered

    @property
    def last(self) -> AttemptEvidence | None:
        """The last attempt of the present job: a run that was resumed has older ones."""
        found = self.attempts[-1] if self.attempts else None
        return found if found and found.number >= self.record.past_attempts else None


def read_evidence(record: Record) -> Evidence:
    """Look at the run directory once. A file that is missing, or is none of ours, says nothing."""
    run = record.run
    # The marks of the end come first: the attempts, read after them, are then at least as new.
    finished, cancelled, submission = map(_read_table, (run.finished_json, run.cancel_json, run.submission_json))
    folders = run.attempts()
    attempts = [_read_attempt(folder) for folder in folders]
    if attempts:
        over = attempts[-1].exit_code is not None
        lines = last_lines(folders[-1].metrics, _TAIL_OF_ENDED_BYTES if over else _TAIL_BYTES)
        numbers = newest_numbers(lines)
        attempts[-1] = replace(
            attempts[-1],
            stage=_read_stage(folders[-1]),
            hung=folders[-1].hang_json.exists(),
            metrics=numbers,
            course=read_course([folder.metrics for folder in folders], lines, numbers),
            pace=None if over else pace_of(lines),
            gpu=None if over else gpu_utilisation(latest_samples(folders[-1])),
        )
    known = [_job_id(submission), attempts[-1].job_id if attempts else ""]
    job_id = next((number for number in known if number and number not in record.past_jobs), "")
    if finished and attempts and _whole(finished, "attempt") not in (None, attempts[-1].number):
        finished = None  # of an attempt that was given up for lost, and followed by another one
    submitted_at = _number(submission or {}, "time")
    return Evidence(record, job_id or None, _mark(cancelled), _mark(finished), tuple(attempts), None, submitted_at)


def numbers_of(record: dict[str, Any]) -> dict[str, Number]:
    """The numbers of one line of metrics.jsonl, by name."""
    return {name: value for name, value in record.items() if name != "time" and _is_number(value)}


def _read_attempt(attempt: Attempt) -> AttemptEvidence:
    host = _read_table(attempt.host_json) or {}
    return AttemptEvidence(
        number=attempt.number,
        job_id=_job_id(host),
        restart_count=_whole(host, "restart_count") or 0,
        nodes=_text(host, "nodes"),
        start=_number(host, "start"),
        end=_number(host, "end"),
        exit_code=_whole(host, "exit_code"),
        requeued=host.get("requeued") is True,
        terminated=_text(host, "signal") != "",
    )


def newest_numbers(lines: list[bytes]) -> dict[str, Number]:
    """The newest value of each name in lines of metrics.jsonl: loss and accuracies stand in different ones."""
    merged: dict[str, Number] = {}
    shapes = set()
    for line in reversed(lines):
        shape = tuple(line.split(b'"')[1::2])  # its names: of most steps they are the same, so parse one of them
        if shape not in shapes and (record := parse_record(line)) is not None:
            shapes.add(shape)
            merged = numbers_of(record) | merged
    return merged


def _read_stage(attempt: Attempt) -> Stage | None:
    """The last stage that rank 0 entered."""
    for event in newest_first(last_lines(attempt.events(0))):
        if event.get("event") == "stage" and _text(event, "stage") in _STAGES:
            return Stage(event["stage"])
    return None


def _read_table(path: Path) -> dict[str, Any] | None:
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if content is None or isinstance(content, dict) else {}


def _mark(table: dict[str, Any] | None) -> float | None:
    """When something was marked; a mark without a time is one all the same."""
    return None if table is None else _number(table, "time") or 0.0


def _text(table: dict[str, Any] | None, key: str) -> str:
    value = (table or {}).get(key)
    return value if isinstance(value, str) else ""


def _job_id(table: dict[str, Any] | None) -> str:
    """Slurm's number of the job: digits, as it becomes an argument of scancel."""
    text = _text(table, "job_id")
    return text if text.isascii() and text.isdigit() else ""


def _number(table: dict[str, Any], key: str) -> float | None:
    return numbers_of({"value": table.get(key)}).get("value")


def _whole(table: dict[str, Any], key: str) -> int | None:
    value = table.get(key)
    return value if type(value) is int and _is_number(value) else None


def _is_number(value: object) -> bool:
    """Whether `value` is a number that a float can hold."""
    return type(value) is float or (type(value) is int and value.bit_length() < 1024)

"""What the files of a run say, read once and parsed: the evidence that `stage` judges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.observe.course import Course, read_course
from clusterctl.observe.deaths import deaths
from clusterctl.observe.lines import last_lines
from clusterctl.observe.measurements import Pace, newest_values, pace_of
from clusterctl.observe.milestones import read_cancellation, read_finish, read_submission
from clusterctl.observe.rank_events import newest_stage
from clusterctl.observe.run_names import submission as submission_of
from clusterctl.observe.telemetry import NodesNow, nodes_now
from clusterctl.runs.fields import read_fields
from clusterctl.runs.marks import all_done
from clusterctl.runs.requests import Refusal
from clusterctl.runs.signals import EXIT_TERMINATED
from clusterctl.runs.unfit_nodes import EXIT_UNFIT, failed_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.observe.deaths import Death
    from clusterctl.observe.run_record import RunRecord
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.stages import Stage
    from clusterctl.runs.vocabulary import Number
    from clusterctl.slurm import JobState, QueuedJob

# Of metrics.jsonl: an evaluation may lie some hundred steps back, but for the last one of a run that is over.
_TAIL_BYTES, _TAIL_OF_ENDED_BYTES = 65536, 16384


@dataclass(frozen=True)
class HostRecord:
    """host.json: what an attempt's batch script wrote. `exit_code` is None until the script has ended.

    `signal` is the one that the script got, `requeued` whether it sent the job back to the queue, `refused` why it did
    not although the attempt needed another one, `disk_full` whether it found no room to write, `no_work` whether it
    could not make the run's working directory. `problem` says why the file could not be read. `unfit` are the
    nodes that failed the check before the ranks began, and in which words.
    """

    number: int
    job_id: str = ""
    restart_count: int = 0
    nodes: str = ""
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    signal: str = ""
    requeued: bool = False
    refused: Refusal | None = None
    disk_full: bool = False
    no_work: bool = False
    problem: str = ""
    unfit: Mapping[str, str] = field(default_factory=dict)


def read_host(attempt: Attempt) -> HostRecord:
    """The one reader of host.json; whatever is missing or damaged keeps its default."""
    fields = read_fields(attempt.host_json)
    exit_code = fields.whole("exit_code")
    return HostRecord(
        number=attempt.number,
        job_id=fields.digits("job_id"),
        restart_count=fields.whole("restart_count") or 0,
        nodes=fields.text("nodes"),
        start=fields.moment("start"),
        end=fields.moment("end"),
        exit_code=exit_code,
        signal=fields.text("signal"),
        requeued=fields.flag("requeued"),
        refused=fields.member("refused", Refusal),
        disk_full=fields.flag("disk_full"),
        no_work=fields.flag("no_work"),
        problem=fields.problem,
        unfit=failed_nodes(attempt) if exit_code == EXIT_UNFIT else {},
    )


@dataclass(frozen=True)
class AttemptEvidence(HostRecord):
    """One attempt: what its batch script wrote and, of the last attempt, what its ranks did."""

    done: bool = False  # every rank left with 0; what its batch script did not live to write down
    hung: str = ""  # ended by the watchdog: how it showed
    death: Death | None = None  # of the first task that ended badly by itself, as srun saw it
    stage: Stage | None = None
    metrics: dict[str, Number] = field(default_factory=dict)
    pace: Pace | None = None
    gpu: float | None = None  # utilisation of its GPUs now, in percent, their mean
    idle_since: float | None = None  # when a program that logs no steps did anything for the last time, on any rank
    gpus_idle_since: float | None = None  # when any of its GPUs did anything for the last time
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
class RunEvidence:
    """All that is known of a run. `answer` is None where Slurm was not asked, or did not answer."""

    record: RunRecord
    job_id: str | None
    cancelled_at: float | None
    finished_at: float | None
    attempts: tuple[AttemptEvidence, ...]
    answer: Answer | None = None
    submitted_at: float | None = None  # when sbatch had answered
    late_seconds: float = 0.0  # for so long other nodes' changes of its files may not be seen here

    @property
    def job(self) -> QueuedJob | None:
        return self.answer.job if self.answer else None

    @property
    def last(self) -> AttemptEvidence | None:
        """The last attempt of the present job: a run that was resumed has older ones."""
        found = self.attempts[-1] if self.attempts else None
        return found if found and found.number >= self.record.past_attempts else None


def read_evidence(record: RunRecord, before: RunEvidence | None = None, nodes: NodesNow | None = None) -> RunEvidence:
    """Look at the run directory once. A file that is missing, or is none of ours, says nothing.

    For who looks again and again: of attempts that were over `before`, nothing is read again, nor what the `nodes` do
    where that is given.
    """
    run = record.run
    # The marks of the end come first: the attempts, read after them, are then at least as new.
    finish, cancellation, submission = read_finish(run), read_cancellation(run), read_submission(run)
    folders = run.attempts()
    past = before.attempts[:-1] if before else ()
    over = {attempt.number: attempt for attempt in past if attempt.exit_code is not None}
    attempts = [over.get(folder.number) or AttemptEvidence(**vars(read_host(folder))) for folder in folders]
    if attempts:
        ranks = record.job.resources.nodes * record.tasks_per_node
        done = finish is None and all_done(folders[-1], ranks)
        attempts[-1] = replace(_with_its_ranks(attempts[-1], folders, ranks, nodes), done=done)
    # An element of an array has two numbers: its own, which its batch script knows, and the one that squeue shows.
    told = attempts[-1].job_id if attempts and submission_of(run.id) == run.id else ""
    known = [submission.job_id, told]
    job_id = next((number for number in known if number and number not in record.past_jobs), None)
    if finish and attempts and finish.attempt not in (None, attempts[-1].number):
        finish = None  # of an attempt that was given up for lost, and followed by another one
    cancelled_at, finished_at = cancellation.time if cancellation else None, finish.time if finish else None
    return RunEvidence(record, job_id, cancelled_at, finished_at, tuple(attempts), submitted_at=submission.time)


def _first_death(attempt: Attempt) -> Death | None:
    """Where only the end of a long log is read, those that were told to end may seem the first."""
    lines = (line.decode(errors="replace") for line in last_lines(attempt.host_log))
    return next((death for death in deaths(lines) if death.code != EXIT_TERMINATED), None)


def _alarm(attempt: Attempt) -> str:
    """How the alarm came about that ended the attempt; empty without one."""
    fields = read_fields(attempt.hang_json)
    return "" if fields.absent else fields.text("how") or "unknown"


def _with_its_ranks(
    evidence: AttemptEvidence, folders: Sequence[Attempt], tasks: int, nodes: NodesNow | None
) -> AttemptEvidence:
    attempt, over = folders[-1], evidence.exit_code is not None
    lines = last_lines(attempt.metrics, _TAIL_OF_ENDED_BYTES if over else _TAIL_BYTES)
    newest = newest_values(lines)
    if over or nodes is None:
        nodes = NodesNow() if over else nodes_now(attempt, tasks)
    return replace(
        evidence,
        hung=_alarm(attempt),
        death=_first_death(attempt) if evidence.exit_code else None,
        stage=newest_stage(attempt),
        metrics=newest,
        course=read_course([folder.metrics for folder in folders], lines, newest),
        pace=None if over else pace_of(lines),
        gpu=nodes.gpu,
        idle_since=nodes.idle_since,
        gpus_idle_since=nodes.gpus_idle_since,
    )

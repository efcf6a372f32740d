"""The stage of a run, judged from evidence: pure rules, the surest evidence first.

What the run wrote about itself beats what Slurm says: Slurm forgets a job minutes after its end, and the files of a
run that goes on are newer than any answer. Slurm is needed for what a run cannot write: that it waits, that it was
cancelled before it began, that its node is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.observe.predecessors import Condition
from clusterctl.runs.marks import EXIT_RESTART
from clusterctl.runs.stages import Stage
from clusterctl.slurm.queue import JobState

if TYPE_CHECKING:
    from clusterctl.observe.attempt import Answer, AttemptEvidence, HostRecord, RunEvidence
    from clusterctl.observe.run_record import RunRecord
    from clusterctl.runs.vocabulary import Number
    from clusterctl.spec import Resources

HELD, NEVER_STARTS = "JobHeldUser", "DependencyNeverSatisfied"  # Slurm's reasons
SUBMIT_SECONDS = 120  # for so long a run without a job may still be on its way to Slurm
ARRIVAL_SECONDS = 60  # for so long NFS may not show a file that was written
_LONGEST_SLACK_SECONDS = 60  # the limit counts from the allocation, the attempt from its script's first line

_STAGE_OF_ENDED_JOB = {
    JobState.CANCELLED: Stage.CANCELLED,
    JobState.TIMEOUT: Stage.TIMED_OUT,
    JobState.DEADLINE: Stage.TIMED_OUT,
    JobState.PREEMPTED: Stage.PREEMPTED,
}
# A warm run is a step of the job: how the job ended is not how the run did, only that it cannot go on.
_STAGE_OF_ENDED_ALLOCATION = _STAGE_OF_ENDED_JOB | {JobState.COMPLETED: Stage.CANCELLED}


@dataclass(frozen=True)
class Status:
    """A run as it is known now. Times are seconds since the epoch."""

    record: RunRecord
    stage: Stage
    sure: bool  # False: Slurm would have to say, and has not
    job_id: str | None
    attempts: tuple[AttemptEvidence, ...]
    cancelling: bool  # asked to be cancelled, and not yet gone
    reason: str  # Slurm's: why it is waiting or suspended, or was cancelled before it started
    started: float | None  # the first attempt
    ended: float | None
    suspended: bool = False  # it has its nodes, and Slurm has stopped its processes

    @property
    def attempt(self) -> AttemptEvidence | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def held_up_by(self) -> str:
        """Slurm's reason why it has not started; where that is another run, its id. What failed its check is named."""
        if self.stage is Stage.QUEUED and self.attempt and self.attempt.unfit:
            return ", ".join(filter(None, [self.reason, f"without {', '.join(self.attempt.unfit)}"]))
        if not self.record.predecessors or not self.reason.startswith("Dependency"):
            return self.reason
        first, *others = dict.fromkeys(one.run for one in self.record.predecessors)
        text = f"after {first}" + (f" and {len(others)} more" if others else "")
        return f"never started: {text}" if self.stage.ended else text

    @property
    def metrics(self) -> dict[str, Number]:
        return self.attempt.metrics if self.attempt else {}

    @property
    def exit_code(self) -> int | None:
        return self.attempt.exit_code if self.attempt and self.stage.ended else None

    def ran(self, now: float) -> float | None:
        """The seconds that its attempts ran until `now`, without the pauses between them; None before the first."""
        spans = self.spans(now)
        return sum(end - start for _, start, end in spans) if spans else None

    def spans(self, now: float) -> list[tuple[AttemptEvidence, float, float]]:
        """The attempts that have started, each with its start, and its end or `now`; the newest first."""
        until = self.ended if self.stage.ended and self.ended else now
        found = []
        for attempt in reversed(self.attempts):
            if attempt.start is not None:
                end = until if attempt.end is None else attempt.end  # a lost one ran until the next at most
                found.append((attempt, attempt.start, max(attempt.start, end)))
                until = attempt.start
        return found


def judge(evidence: RunEvidence, now: float) -> Status:
    """The status of a run at `now`."""
    by_files, answer, job, last = settled(evidence), evidence.answer, evidence.job, evidence.last
    stage = by_files or (_stage_by_slurm(evidence, answer, now) if answer else _stage_by_files(evidence))
    end = (last.end if last else None) or (job.end_time if job else None)
    suspended = job is not None and job.state in (JobState.SUSPENDED, JobState.STOPPED) and not stage.ended
    reason = "Suspended" if suspended else job.reason if job and stage is Stage.QUEUED else ""
    if stage is Stage.CANCELLED and _cut_off(evidence) and (job is None or job.reason == NEVER_STARTS):
        reason = NEVER_STARTS
    return Status(
        record=evidence.record,
        stage=stage,
        sure=by_files is not None or (answer is not None and not answer.stale),
        job_id=evidence.job_id or (job.job_id if job else None),
        attempts=evidence.attempts,
        cancelling=evidence.cancelled_at is not None and not stage.ended,
        reason=reason,
        started=evidence.attempts[0].start if evidence.attempts else None,
        ended=(evidence.finished_at or end or evidence.cancelled_at) if stage.ended else None,
        suspended=suspended,
    )


def settled(evidence: RunEvidence) -> Stage | None:
    """How the run ended, where its files alone say so; None where Slurm has to be asked."""
    if evidence.finished_at is not None:
        return Stage.FINISHED
    last = evidence.last
    if last is None or last.exit_code is None or _started_again(evidence, last):
        return None
    if evidence.cancelled_at is not None:
        return Stage.CANCELLED
    if last.exit_code == 0:  # its batch script has counted the ranks; the files in which they say so may be seen later
        return Stage.FINISHED
    if last.requeued:
        return None
    if last.signal:  # ended from outside: at its time limit, else preempted, cancelled by hand or requeued
        return Stage.TIMED_OUT if _reached_limit(evidence, last) else None
    if last.exit_code == EXIT_RESTART and not last.hung:  # it was warned, has saved and left, and is not started again
        return Stage.TIMED_OUT if _reached_limit(evidence, last) else Stage.PREEMPTED
    return Stage.FINISHED if last.done else Stage.FAILED


def _stage_by_slurm(evidence: RunEvidence, answer: Answer, now: float) -> Stage:
    """The stage of a run whose end is not settled by files, now that Slurm has answered."""
    job, last = answer.job, evidence.last
    if job is None:
        if answer.early:
            return _stage_by_files(evidence)
        if last and last.done:
            return Stage.FINISHED
        if evidence.cancelled_at is not None:
            return Stage.CANCELLED
        if answer.ended:
            return _stage_of_ended(evidence, answer.ended, now)
        if last and last.exit_code is not None and not last.requeued:
            # TERM far from the limit, nobody's cancel, and not in the queue again; or its allocation is gone.
            return Stage.CANCELLED if evidence.record.allocation else Stage.PREEMPTED
        if evidence.job_id is None and now - evidence.record.submitted < SUBMIT_SECONDS:
            return Stage.QUEUED  # on its way
        return Stage.CANCELLED if _cut_off(evidence) else Stage.LOST
    if job.state.waiting:
        claimed = last is not None and last.exit_code is None and last.restart_count == job.restart_count
        return _stage_by_files(evidence) if claimed else Stage.QUEUED
    if job.state.ended:
        return _stage_of_ended(evidence, job.state, now)
    if last and last.requeued and not _started_again(evidence, last):
        return Stage.QUEUED  # Slurm is still taking the last attempt down
    return Stage.STARTING if last is None or _started_again(evidence, last) else _stage_by_files(evidence)


def _stage_of_ended(evidence: RunEvidence, state: JobState, now: float) -> Stage:
    """How a run ended whose files do not say so. That its job COMPLETED is no proof of what its ranks did."""
    if evidence.last and evidence.last.done:
        return Stage.FINISHED
    ended = evidence.job.end_time if evidence.job else None
    under_way = evidence.last is None or evidence.last.exit_code is None  # what its batch script wrote last
    arrives = {JobState.COMPLETED: max(ARRIVAL_SECONDS, evidence.late_seconds), JobState.FAILED: evidence.late_seconds}
    if under_way and ended is not None and now - ended < arrives.get(state, 0):
        return _stage_by_files(evidence)
    known = _STAGE_OF_ENDED_ALLOCATION if evidence.record.allocation else _STAGE_OF_ENDED_JOB
    return known.get(state, Stage.FAILED)


def _stage_by_files(evidence: RunEvidence) -> Stage:
    """The stage of a run that goes on, or may: as far as it said itself."""
    last = evidence.last
    return Stage.QUEUED if last is None or last.requeued else last.stage or Stage.STARTING


def _cut_off(evidence: RunEvidence) -> bool:
    """Whether a job that is gone was cancelled by Slurm, most likely: it waited for others to finish, nobody asked
    for its end, and its batch script never ran.
    """
    waited = any(one.condition is Condition.FINISHED for one in evidence.record.predecessors)
    return waited and not evidence.attempts and evidence.cancelled_at is None


def _started_again(evidence: RunEvidence, last: AttemptEvidence) -> bool:
    """Whether Slurm has restarted the job since the last attempt was claimed."""
    job = evidence.job
    return job is not None and not job.state.ended and job.restart_count > last.restart_count


def _reached_limit(evidence: RunEvidence, last: AttemptEvidence) -> bool:
    timed_out = evidence.job is not None and evidence.job.state is JobState.TIMEOUT
    return timed_out or reached_limit(last, evidence.record.job.resources)


def reached_limit(attempt: HostRecord, resources: Resources) -> bool:
    """Whether the attempt ended at its time limit, or was warned of it and left, by the clock of its batch script."""
    if attempt.start is None or attempt.end is None:
        return False
    slack = min(_LONGEST_SLACK_SECONDS, resources.time / 4)
    if attempt.exit_code == EXIT_RESTART:
        slack += resources.warning or 0
    return attempt.end - attempt.start >= resources.time - slack

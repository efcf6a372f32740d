"""The state of a run, judged from evidence by pure functions, the most reliable evidence first.

The run's files take precedence over Slurm: Slurm forgets a job minutes after its end, and the files of an active run
are newer than any answer. Slurm is needed for what a run cannot record: that it is waiting, was cancelled before it
started, or lost its node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.observe.measurements import seconds_left
from clusterctl.launcher.observe.run_record import Condition
from clusterctl.launcher.observe.slurm_log import EndedBy
from clusterctl.launcher.slurm.queue import JobState
from clusterctl.shared.node.signals import EXIT_TERMINATED
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.observe.attempt import Answer, AttemptEvidence, HostRecord, LeftOut, RunEvidence
    from clusterctl.launcher.observe.measurements import Pace
    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.shared.record.metrics import Number
    from clusterctl.shared.spec import Resources

NEVER_STARTS = "DependencyNeverSatisfied"  # Slurm's reason code
SUBMIT_SECONDS = 120  # a run without a job may still be on its way to Slurm for this long
ARRIVAL_SECONDS = 60  # NFS may not show a new file for this long
_EARLY_SECONDS = 60  # Slurm may send the warning this much sooner, sbatch(1): to a job of a minute as it starts
_LONGEST_SLACK_SECONDS = 60  # the limit counts from the allocation, the attempt's time from its script's first line

_STATE_OF_ENDED_JOB = {
    JobState.CANCELLED: State.CANCELLED,
    JobState.TIMEOUT: State.TIMED_OUT,
    JobState.DEADLINE: State.TIMED_OUT,
    JobState.PREEMPTED: State.PREEMPTED,
}
# Of a batch script of the user's own: Slurm alone knows how it ended.
_STATE_OF_SCRIPT = _STATE_OF_ENDED_JOB | {JobState.COMPLETED: State.FINISHED}
# slurmstepd's words. After a preemption or the loss of a node, Slurm may start the job again.
_STATE_OF_ENDING = {EndedBy.CANCELLATION: State.CANCELLED, EndedBy.TIME_LIMIT: State.TIMED_OUT}
# A warm run is a step of the job, whose end only shows that the run cannot continue.
_STATE_OF_ENDED_ALLOCATION = _STATE_OF_ENDED_JOB | {JobState.COMPLETED: State.CANCELLED}


@dataclass(frozen=True)
class Status(Shown):
    """The current state of a run. Times are seconds since the epoch."""

    record: RunRecord
    state: State
    sure: bool  # False: only Slurm knows, and has not answered
    job_id: str | None
    attempts: tuple[AttemptEvidence, ...]
    cancelling: bool  # cancellation requested, but not ended yet
    reason: str  # Slurm's reason why it is waiting, suspended or not requeued, or was cancelled before it started
    started: float | None  # the first attempt
    ended: float | None
    suspended: bool = False  # it has its nodes, but Slurm has stopped its processes
    requeuing: bool = False  # its ranks have ended, and its batch script asks Slurm in vain to start it again
    successor: str | None = None  # the job that waits for the end of this one, to go on
    later: tuple[str, ...] = ()  # those that wait for its end in turn
    no_successor: str = ""  # why there is none although Slurm will not requeue the job
    elsewhere: bool = False  # the Slurm that was asked does not know its job, but its ranks are at work

    @property
    def attempt(self) -> AttemptEvidence | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def shown(self) -> str:
        """The state in a word. Of a plain job, only Slurm's word is known."""
        at_work = not (self.state.ended or self.state is State.QUEUED)
        return "running" if self.record.is_plain_job and at_work else self.state.value

    @property
    def held_up_by(self) -> str:
        """Why it has not started: Slurm's reason or the run it depends on, and nodes that it no longer gets."""
        if self.state is State.QUEUED and (nodes := ", ".join(one.node for one in self.left_out)):
            return ", ".join(filter(None, [self.reason, f"without {nodes}"]))
        if not self.record.predecessors or not self.reason.startswith("Dependency"):
            return self.reason
        first, *others = dict.fromkeys(one.run for one in self.record.predecessors)
        text = f"after {first}" + (f" and {len(others)} more" if others else "")
        return f"never started: {text}" if self.state.ended else text

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The nodes that it goes on without: its last attempt, or the one that is queued."""
        found = [
            one
            for attempt in self.attempts
            if attempt.goes_on and attempt.number >= self.record.past_attempts
            for one in attempt.excluded
        ]
        found += self.attempt.left_out if self.attempt and self.state is not State.QUEUED else ()
        return tuple({one.node: one for one in found}.values())

    @property
    def metrics(self) -> dict[str, Number]:
        return self.attempt.metrics if self.attempt else {}

    @property
    def exit_code(self) -> int | None:
        return self.attempt.exit_code if self.attempt and self.state.ended else None

    def ran(self, now: float) -> float | None:
        """The total seconds that its attempts have run until `now`; None before the first."""
        spans = self.spans(now)
        return sum(end - start for _, start, end in spans) if spans else None

    @property
    def pace(self) -> Pace | None:
        """The pace of its training; None if it is unknown, or if the run has ended."""
        return self.attempt.pace if self.attempt and not self.state.ended else None

    def seconds_left(self, now: float) -> float | None:
        """The time left at its pace; None if that is unknown."""
        return seconds_left(self.metrics, self.pace, now)

    def gpu_hours(self, now: float) -> float | None:
        """The GPU-hours that its attempts have held until `now`; None if it has no GPUs, or before the first."""
        resources, ran = self.record.job.resources, self.ran(now)
        gpus = resources.nodes * (resources.gpus_per_node or 0)
        return ran * gpus / 3600 if gpus and ran is not None else None

    def spans(self, now: float) -> list[tuple[AttemptEvidence, float, float]]:
        """The started attempts with their start and end (or `now`), newest first."""
        until = self.ended if self.state.ended and self.ended else now
        found = []
        for attempt in reversed(self.attempts):
            if attempt.start is not None:
                end = until if attempt.end is None else attempt.end  # a lost attempt ran until the next one at most
                found.append((attempt, attempt.start, max(attempt.start, end)))
                until = attempt.start
        return found


def judge(evidence: RunEvidence, now: float) -> Status:
    """The status of a run at `now`."""
    by_files, answer, job, last = settled(evidence), evidence.answer, evidence.job, evidence.last
    state = by_files or (_state_by_slurm(evidence, answer, now) if answer else _state_by_files(evidence))
    end = (last.end if last else None) or (job.end_time if job else None)
    requeuing = last is not None and last.requeuing and not state.ended and state is not State.QUEUED
    suspended = job is not None and job.state in (JobState.SUSPENDED, JobState.STOPPED) and not state.ended
    reason = "Suspended" if suspended else job.reason if job and state is State.QUEUED else ""
    job_id, following = evidence.job_id or (job.job_id if job else None), evidence.successor
    if requeuing and last:
        reason = f"not requeued: {last.requeue_problem or 'no answer yet'}"
    if state is State.CANCELLED and _cut_off(evidence) and (job is None or job.reason == NEVER_STARTS):
        reason = NEVER_STARTS
    return Status(
        record=evidence.record,
        state=state,
        sure=by_files is not None or (answer is not None and not answer.stale and not answer.elsewhere),
        job_id=job_id,
        attempts=evidence.attempts,
        cancelling=evidence.cancelled_at is not None and not state.ended,
        reason=reason,
        started=evidence.attempts[0].start if evidence.attempts else None,
        ended=(evidence.finished_at or end or evidence.cancelled_at) if state.ended else None,
        suspended=suspended,
        requeuing=requeuing,
        successor=(following.job_id or None) if following and following.of == job_id else None,
        later=following.later if following and following.of == job_id else (),
        no_successor=following.problem if following and following.of == job_id and not state.ended else "",
        elsewhere=answer is not None and answer.elsewhere,
    )


def settled(evidence: RunEvidence) -> State | None:
    """How the run ended according to its files; None if Slurm must be queried."""
    if evidence.finished_at is not None:
        return State.FINISHED
    last = evidence.last
    if last is None or last.exit_code is None or _restarted(evidence, last):
        return None
    if last.job_state:
        return _STATE_OF_SCRIPT.get(last.job_state, State.FAILED)
    # Whether the end fits a cancellation that was requested: Slurm may have refused it, or never got it.
    fits = last.signal or last.goes_on or last.refused is Refusal.CANCELLED or last.ended_by is EndedBy.CANCELLATION
    if evidence.cancelled_at is not None and (fits or last.exit_code == EXIT_TERMINATED):
        return State.CANCELLED
    if last.exit_code == 0:  # the batch script has counted the ranks, whose files may appear later
        return State.FINISHED
    if last.goes_on:
        return None
    if last.ended_by in _STATE_OF_ENDING:
        return _STATE_OF_ENDING[last.ended_by]
    if last.signal:  # ended from outside: at its time limit, or preempted, cancelled or requeued
        return State.TIMED_OUT if last.ended_by is None and _reached_limit(evidence, last) else None
    if last.asked and not last.hung:  # warned, saved, and not restarted
        # Slurm may warn before either, and only the clock tells them apart.
        return State.TIMED_OUT if _reached_limit(evidence, last) else State.PREEMPTED
    return State.FINISHED if last.done else State.FAILED


def _state_by_slurm(evidence: RunEvidence, answer: Answer, now: float) -> State:
    """The state of a run whose files do not show its end, from Slurm's answer."""
    job, last = answer.job, evidence.last
    if job is None:
        if answer.early or answer.elsewhere:
            return _state_by_files(evidence)
        if last and last.done:
            return State.FINISHED
        if evidence.cancelled_at is not None:
            return State.CANCELLED
        if answer.ended:
            return _state_of_ended(evidence, answer.ended, now)
        if last and last.in_vain:
            return State.FAILED
        if last and last.exit_code is not None and not last.goes_on:
            # SIGTERM long before the limit, without a cancellation or requeue; or the end of its allocation.
            return State.CANCELLED if evidence.record.allocation else State.PREEMPTED
        if evidence.job_id is None and now - evidence.record.submitted < SUBMIT_SECONDS:
            return State.QUEUED  # being submitted
        # A job that is neither waiting nor has ever started was cancelled; an element of an array then leaves no trace.
        vanished = evidence.job_id is not None and evidence.never_wrote
        return State.CANCELLED if vanished or _cut_off(evidence) else State.LOST
    if last and _in_successor(evidence, last) and last.ended_by in _STATE_OF_ENDING:
        return _STATE_OF_ENDING[last.ended_by]
    if job.state.waiting:
        # Slurm's answer may be some seconds old: an attempt that has begun since is right.
        claimed = last is not None and last.exit_code is None and not _restarted(evidence, last)
        return _state_by_files(evidence) if claimed else State.QUEUED
    if job.state.ended:
        return _state_of_ended(evidence, job.state, now)
    if last and _is_being_requeued(evidence, last) and not _restarted(evidence, last):
        return State.QUEUED  # Slurm is still ending the last attempt
    return State.STARTING if last is None or _restarted(evidence, last) else _state_by_files(evidence)


def _state_of_ended(evidence: RunEvidence, state: JobState, now: float) -> State:
    """How a run ended, if its files do not show it. A COMPLETED job does not prove that its ranks succeeded."""
    if evidence.record.is_script:
        return _STATE_OF_SCRIPT.get(state, State.FAILED)
    if evidence.last and evidence.last.done:
        return State.FINISHED
    ended = evidence.job.end_time if evidence.job else None
    under_way = evidence.last is None or evidence.last.exit_code is None  # its last record may still arrive
    arrives = {JobState.COMPLETED: max(ARRIVAL_SECONDS, evidence.late_seconds), JobState.FAILED: evidence.late_seconds}
    if under_way and ended is not None and now - ended < arrives.get(state, 0):
        return _state_by_files(evidence)
    known = _STATE_OF_ENDED_ALLOCATION if evidence.record.allocation else _STATE_OF_ENDED_JOB
    return known.get(state, State.FAILED)


def state_of_job(state: JobState) -> State:
    """The state of a plain job, which has no run directory; TRAINING for any job that is running."""
    if state.waiting:
        return State.QUEUED
    if state is JobState.COMPLETED:
        return State.FINISHED
    return _STATE_OF_ENDED_JOB.get(state, State.FAILED) if state.ended else State.TRAINING


def _state_by_files(evidence: RunEvidence) -> State:
    """The state of a run that is or may be active, according to its files."""
    last = evidence.last
    if last is None or _is_being_requeued(evidence, last):
        return State.QUEUED
    if evidence.record.is_script:
        return State.TRAINING
    if last.restarting:
        return State.STARTING
    setting_up = last.node_setup_start is not None and last.node_setup_end is None
    return last.state or (State.NODE_SETUP if setting_up else State.STARTING)


def _is_being_requeued(evidence: RunEvidence, last: AttemptEvidence) -> bool:
    """Whether Slurm has agreed to start the job again; the batch script may have been ended before it recorded that."""
    ending = evidence.job is not None and evidence.job.state is JobState.COMPLETING
    return last.requeued or (last.requeuing and (ending or last.ended_by is EndedBy.REQUEUE))


def _cut_off(evidence: RunEvidence) -> bool:
    """Whether Slurm has probably cancelled a job that no longer exists: the run depended on others to finish, nobody
    cancelled it, and its batch script never ran.
    """
    waited = any(one.condition is Condition.FINISHED for one in evidence.record.predecessors)
    return waited and not evidence.attempts and evidence.cancelled_at is None


def _restarted(evidence: RunEvidence, last: AttemptEvidence) -> bool:
    """Whether Slurm has restarted the job since the last attempt started, or will start its successor."""
    job = evidence.job
    if job is None or job.state.ended:
        return False
    if _in_successor(evidence, last):
        from_outside = last.exit_code is None or bool(last.signal)
        return last.goes_on or (from_outside and last.ended_by not in _STATE_OF_ENDING)
    return job.restart_count > last.restart_count


def _in_successor(evidence: RunEvidence, last: AttemptEvidence) -> bool:
    following = evidence.successor
    return following is not None and evidence.job_id == following.job_id != last.job_id


def _reached_limit(evidence: RunEvidence, last: AttemptEvidence) -> bool:
    timed_out = evidence.job is not None and evidence.job.state is JobState.TIMEOUT
    return timed_out or reached_limit(last, evidence.record.job.resources)


def reached_limit(attempt: HostRecord, resources: Resources) -> bool:
    """Whether the attempt ended at its time limit, or after the warning before it, by its batch script's clock."""
    if attempt.start is None or attempt.end is None:
        return False
    limit = resources.time if attempt.limit is None else attempt.limit
    slack = min(_LONGEST_SLACK_SECONDS, limit / 4)
    if attempt.asked:
        slack += (resources.warning or 0) + _EARLY_SECONDS
    return attempt.end - attempt.start >= limit - slack


# What the state of a run means for those that depend on it.


class Standing(Enum):
    MET = "met"
    OPEN = "open"
    NEVER = "never"


def standing(condition: Condition, status: Status) -> Standing:
    """Whether the run of `status` meets `condition`, by Slurm's rules: a cancelled run counts as started.

    A run between two starts has not ended: its next start counts.
    """
    state = status.state
    if state is State.FINISHED:
        return Standing.MET
    if state.ended:
        return Standing.NEVER if condition is Condition.FINISHED else Standing.MET
    return Standing.MET if condition is Condition.STARTED and state is not State.QUEUED else Standing.OPEN


def standing_of_all(condition: Condition, statuses: Iterable[Status]) -> Standing:
    """Like `standing`, for all runs of a sweep: NEVER if any run can never meet it."""
    found = {standing(condition, status) for status in statuses}
    return Standing.NEVER if Standing.NEVER in found else Standing.OPEN if Standing.OPEN in found else Standing.MET

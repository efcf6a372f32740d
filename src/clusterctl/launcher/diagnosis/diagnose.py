"""The state of a run explained from its files and, where they are not enough, from Slurm, by pure functions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.config.suggestions import suggested
from clusterctl.launcher.diagnosis.efficiency import not_learning, single_steps
from clusterctl.launcher.diagnosis.finding import CERTAIN, LIKELY, UNSURE, Finding, commands
from clusterctl.launcher.diagnosis.hangs import ended_writers
from clusterctl.launcher.diagnosis.traces import gather, listen_again, with_accounting
from clusterctl.launcher.diagnosis.waiting import explain_chain, explain_waiting, read_chain
from clusterctl.launcher.observe.needs import written_memory
from clusterctl.launcher.observe.run_record import Condition, newer_records
from clusterctl.launcher.observe.slurm_log import started_in_vain
from clusterctl.launcher.observe.state import NEVER_STARTS
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import Cause, SlurmError
from clusterctl.shared.record.plain_text import duration
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.launcher.diagnosis.traces import AttemptTrace, RunTrace, Seen
    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster

    SlurmOf = Callable[[Cluster], Slurm]


@dataclass(frozen=True)
class Diagnosis(Shown):
    """Findings about a run, the most important first; what to type next; what could not be read."""

    status: Status
    findings: tuple[Finding, ...]
    commands: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    history: tuple[Finding, ...] = ()  # why the earlier attempts ended

    def restarted_in(self, attempt: int | None) -> str | None:
        """How the run continued: in the same "allocation", through the "queue", or None if unknown."""
        host = next((one for one in self.status.attempts if one.number == attempt), None)
        if host is None:
            return None
        return "allocation" if host.restarting else "queue" if host.requeued or host.requeuing else None

    def went_on_with(self, attempt: int | None) -> str:
        """How much memory or time the next job got instead of what it was short of; empty if it got the same."""
        grown = next((one.grown for one in self.status.attempts if one.number == attempt and one.goes_on), None)
        if grown is None:
            return ""
        if grown.what == "time":
            return f"a time limit of {duration(grown.gets)} instead of {duration(grown.had)}"
        return f"{written_memory(grown.gets << 20)} instead of {written_memory(grown.had << 20)} of memory"

    @property
    def headline(self) -> Finding:
        return self.findings[0]


def diagnose(run: RunDir, slurm_of: SlurmOf = Slurm.of) -> Diagnosis:
    """Explain why `run` is waiting or has failed, or whether it is healthy.

    Raises ConfigError if its record cannot be read. If Slurm does not answer, that is listed in `unknown`.
    """
    found = statuses_of([run], slurm_of)
    if not found.statuses:
        raise found.problems[0]
    diagnosis = diagnose_status(found.statuses[0], slurm_of)
    silent = (f"Slurm's queue: {problem.message}" for problem in found.problems)
    return replace(diagnosis, unknown=_each_once(*diagnosis.unknown, *silent))


def diagnose_status(
    status: Status,
    slurm_of: SlurmOf = Slurm.of,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    seen: Seen | None = None,
) -> Diagnosis:
    """Like `diagnose`, for a run whose status is already known. For a running run, Slurm is not queried.

    `seen` gets the events read, as in `gather`.
    """
    trace = gather(status, clock, seen=seen)
    queued = status.state is State.QUEUED
    at_work = not (queued or status.state.ended or status.suspended)
    if at_work and trace.attempts and trace.attempts[-1].exit_code is None:
        trace = listen_again(trace, clock, sleep)
    found = judge(trace)
    waits = status.record.predecessors and not status.attempts and not trace.cancelled and status.sure
    if waits and (explained := explain_chain(status, read_chain(status, slurm_of))):
        return for_person(replace(found, findings=(explained[0],), commands=explained[1]))
    if accounting_may_help(found.headline):
        found = judge(with_accounting(trace, slurm_of))
    if queued and status.job_id is not None and status.record.is_ours:
        try:
            waiting = explain_waiting(status, slurm_of(status.record.cluster))
        except SlurmError as error:
            unknown = (*found.unknown, f"why it is waiting: {error.message}")
            return for_person(replace(found, unknown=unknown))
        finding = replace(found.headline, cause=waiting.cause, facts=waiting.facts, hint=waiting.hint)
        unknown = _each_once(*found.unknown, *waiting.unknown)
        findings = (finding, *found.findings[1:])
        found = replace(found, findings=findings, commands=waiting.commands, unknown=unknown)
    return for_person(found)


def for_person(diagnosis: Diagnosis) -> Diagnosis:
    """`diagnosis`, with the cluster that was typed in what it suggests."""
    findings = (replace(one, hint=suggested(one.hint)) for one in diagnosis.findings)
    return replace(diagnosis, findings=(*findings,), commands=(*map(suggested, diagnosis.commands),))


def judge(trace: RunTrace) -> Diagnosis:
    """The diagnosis of a run from the evidence gathered; a pure function."""
    status, last = trace.status, trace.attempts[-1] if trace.attempts else None
    found, past, unknown = _by_state(trace)
    if lesson := not_learning(status.attempt.loss_trend if status.attempt else None):
        number = last.number if last else None
        found = (*found, Finding(Cause.NOT_LEARNING, lesson.text, LIKELY, number, hint=lesson.hint))
    if last and (writers := ended_writers(last.ranks)):
        found = (replace(found[0], facts=(*found[0].facts, *writers)), *found[1:])
    if status.left_out:
        found = (replace(found[0], facts=(*found[0].facts, *map(str, status.left_out))), *found[1:])
    if text := single_steps(status):
        fact = f"{text}; set train.global_batch_size instead of train.batch_size"
        found = (replace(found[0], facts=(*found[0].facts, fact)), *found[1:])
    unknown = [*trace.unknown, *unknown, *(notice.message for notice in newer_records([status.record]))]
    if not status.sure:
        unknown.append("the job's state in Slurm: not queried, or no answer")
    history: tuple[Finding, ...] = ()
    if past:
        from clusterctl.launcher.diagnosis.failure import explain_attempt

        history = tuple(explain_attempt(attempt, trace) for attempt in past)
    return Diagnosis(status, found, commands(trace, found[0]), _each_once(*unknown), history)


def _by_state(trace: RunTrace) -> tuple[tuple[Finding, ...], tuple[AttemptTrace, ...], list[str]]:
    """The findings for the run's state, the attempts that ended before, and what is not known yet."""
    status, attempts, cancelled = trace.status, trace.attempts, trace.cancelled
    last = attempts[-1] if attempts else None
    number = last.number if last else None
    begun = last if last and last.number >= status.record.past_attempts else None  # not before a resume
    if status.state is State.FINISHED:
        return (Finding(Cause.FINISHED, "the run finished", attempt=number),), attempts[:-1], []
    if status.state is State.QUEUED:
        cause = "waiting in the queue" + (f": {status.reason}" if status.reason else "")
        return (Finding(Cause.PENDING, cause, hint="see Slurm's start estimate: squeue --me --start"),), attempts, []
    if status.requeuing and last:
        problem = last.requeue_problem or "no answer yet"
        cause = f"its batch script asks Slurm to start it again, and holds its nodes meanwhile: {problem}"
        hint = "the script repeats the request for ten minutes, then ends the job; resume it afterwards"
        return (Finding(Cause.PENDING, cause, attempt=number, hint=hint),), attempts, []
    # Late: the rules of failures compile a hundred patterns, which a run in the queue does not need.
    from clusterctl.launcher.diagnosis.failure import explain_attempt, known_line
    from clusterctl.launcher.diagnosis.running import explain_running, unheard

    if status.state.ended and begun and (line := started_in_vain(begun.job_lines)):
        known = known_line([line])
        assert known is not None
        disk = known_line([known.cause])
        cause_class = Cause.DISK if disk and disk.cause_class is Cause.DISK else known.cause_class
        return (Finding(cause_class, f"it was started again, but could not begin: {known.cause}"),), attempts, []
    ended = last.end + 1 if last and last.end is not None else float("inf")  # the batch script records whole seconds
    if status.state is State.CANCELLED and cancelled and cancelled.time > ended:
        cause = f"cancelled by {cancelled.by} while waiting to restart"
        return (Finding(Cause.CANCELLED, cause, attempt=number),), attempts, []
    if begun and (status.state.ended or begun.exit_code is not None):  # the files may record it before Slurm does
        return (explain_attempt(begun, trace),), attempts[:-1], []
    if status.state.ended:
        return (_never_started(trace, known_line(trace.slurm_lines)),), attempts, []
    if last and not begun:
        return explain_running(replace(trace, attempts=())), attempts, []
    if status.suspended:
        cause = "Slurm suspended the job and its processes (scontrol suspend, or gang scheduling)"
        hint = "it continues when Slurm resumes the job"
        return (Finding(Cause.PENDING, cause, attempt=number, hint=hint),), attempts[:-1], []
    return explain_running(trace), attempts[:-1], unheard(trace)


def _never_started(trace: RunTrace, known: Finding | None) -> Finding:
    """The run ended before its batch script had started an attempt. `known`: the reason in Slurm's log, if any."""
    if trace.cancelled:
        by = trace.cancelled.by
        return Finding(Cause.CANCELLED, f"cancelled by {by} before it started" if by else "cancelled before it started")
    if trace.status.reason == NEVER_STARTS:
        predecessors = trace.status.record.predecessors
        runs = [one.run for one in predecessors if one.condition is Condition.FINISHED]
        which = f"{'one of ' * (len(runs) > 1)}{', '.join(runs)}"
        cause = f"cancelled by Slurm before it started: it depends on {which}, which did not finish"
        return Finding(Cause.CANCELLED, cause, LIKELY)
    if trace.status.state is State.CANCELLED:
        by_hand = "" if trace.status.record.is_plain_job else ", not by clusterctl"
        words = f"cancelled by scancel before it started{by_hand}"
        is_accounted = any(job.state == "CANCELLED" for job in trace.accounted)
        return Finding(
            Cause.CANCELLED, words, CERTAIN if is_accounted else LIKELY
        )  # a controller may lose its queue, too
    if known:
        return known
    if trace.status.attempt is not None and not trace.attempts:
        return Finding(Cause.UNKNOWN, "its attempts' files can no longer be read", UNSURE)
    if trace.status.state is State.LOST:
        return Finding(Cause.UNKNOWN, "Slurm no longer knows the job, and there is no record of how it ended", UNSURE)
    return Finding(Cause.LAUNCH, "its batch script never started", LIKELY)


def accounting_may_help(found: Finding) -> bool:
    """Whether Slurm's accounting may know more, such as who cancelled the run, or that its memory was short."""
    return found.certainty != CERTAIN or found.cause_class in (Cause.CANCELLED, Cause.KILLED)


def _each_once(*items: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))

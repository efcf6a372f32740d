"""Why a run is where it is: failed, running well or badly, waiting - from its trace to findings, by pure rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis.failure import explain_attempt
from clusterctl.diagnosis.findings import CERTAIN, LIKELY, UNSURE, Findings, Past
from clusterctl.diagnosis.next_steps import commands
from clusterctl.diagnosis.running import explain_running
from clusterctl.diagnosis.signatures import Level, signature
from clusterctl.errors import Cause
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from clusterctl.diagnosis.traces import Trace


def explain(trace: Trace) -> Findings:
    """The findings on a run, with what to type next and what could not be read."""
    status = trace.status
    history = tuple(_past(trace, index) for index in range(len(trace.attempts) - 1))
    if status.stage is Stage.FINISHED:
        found = Findings(Cause.FINISHED, "the run finished", attempt=_last_number(trace))
    elif status.stage is Stage.QUEUED:
        found = _waiting(trace)
        history += (_past(trace, len(trace.attempts) - 1),) if trace.attempts else ()
    elif trace.attempts and (later := _cancelled_between(trace)):
        found = later
        history += (_past(trace, len(trace.attempts) - 1),)
    elif status.stage.ended or _has_ended(trace):
        found = explain_attempt(trace.attempts[-1], trace) if trace.attempts else _never_began(trace)
    else:
        found = explain_running(trace)
    unknown = [*trace.unknown, *found.unknown]
    if not status.sure:
        unknown.append("what Slurm says of the job: it was not asked, or did not answer")
    return replace(found, history=history, unknown=each_once(unknown), commands=commands(trace, found))


def headline(findings: Findings) -> str:
    """The first cause in one line."""
    place = f"{findings.place}: " if findings.place else ""
    doubt = {LIKELY: " (likely)", UNSURE: " (uncertain)"}.get(findings.certainty, "")
    return f"{place}{findings.cause}{doubt}"


def each_once(items: list[str]) -> tuple[str, ...]:
    """Each once, in order."""
    return tuple(dict.fromkeys(items))


def needs_accounting(findings: Findings) -> bool:
    """Whether Slurm's accounting may know more: who cancelled it, or what nothing else tells."""
    return findings.certainty != CERTAIN or findings.cause_class is Cause.CANCELLED


def _cancelled_between(trace: Trace) -> Findings | None:
    """Cancelled after its last attempt had ended, while it waited for the next."""
    last = trace.attempts[-1]
    if trace.status.stage is not Stage.CANCELLED or not trace.cancelled or last.end is None:
        return None
    when, by = trace.cancelled
    if when <= last.end + 1:  # the batch script notes whole seconds
        return None
    return Findings(Cause.CANCELLED, f"cancelled by {by} while it waited to start again", attempt=last.number)


def _past(trace: Trace, index: int) -> Past:
    found = explain_attempt(trace.attempts[index], trace)
    return Past(trace.attempts[index].number, found.cause_class, headline(found))


def _last_number(trace: Trace) -> int | None:
    return trace.attempts[-1].number if trace.attempts else None


def _has_ended(trace: Trace) -> bool:
    """By the files alone: its batch script has recorded the end, and nothing says that it starts again."""
    return bool(trace.attempts) and trace.attempts[-1].exit_code is not None


def _waiting(trace: Trace) -> Findings:
    reason = trace.status.reason
    cause = f"waits in the queue: {reason}" if reason else "waits in the queue"
    return Findings(Cause.PENDING, cause, hint="squeue --me --start shows when Slurm expects to start it")


def _never_began(trace: Trace) -> Findings:
    """Ended without an attempt: its batch script never got so far."""
    if trace.cancelled:
        by = trace.cancelled[1]
        return Findings(Cause.CANCELLED, f"cancelled by {by} before it began" if by else "cancelled before it began")
    if trace.status.stage is Stage.CANCELLED:
        return Findings(Cause.CANCELLED, "cancelled by scancel before it began, not by clusterctl")
    for line in trace.slurm_lines:
        if (known := signature(line)) and known.level is Level.PRIMARY:
            return Findings(known.cause, known.words or line.strip())
    if trace.status.attempt is not None:
        return Findings(Cause.UNKNOWN, "what its attempts left can no longer be read", UNSURE)
    if trace.status.stage is Stage.LOST:
        return Findings(Cause.UNKNOWN, "Slurm does not know its job, and nothing tells how it ended", UNSURE)
    return Findings(Cause.LAUNCH, "its batch script never began", LIKELY)

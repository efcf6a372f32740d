"""Whether a running run is healthy, stuck, or slowed down by some of its ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from statistics import median_low
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.finding import CERTAIN, LIKELY, Finding
from clusterctl.launcher.diagnosis.hangs import (
    DID_NOTHING,
    left_early,
    lost,
    no_writer,
    node_fell_silent,
    noticed,
    several_each,
    silent_nodes,
    whereabouts,
)
from clusterctl.launcher.diagnosis.traces import SILENT_SECONDS
from clusterctl.launcher.observe.attempt import flawed_lines
from clusterctl.launcher.observe.script_runs import unseen_ranks
from clusterctl.launcher.observe.telemetry import GPU_IDLE_SECONDS
from clusterctl.shared.errors import Cause
from clusterctl.shared.node.staging import IN_VAIN
from clusterctl.shared.record.heartbeats import ENDED, IDLE_GPUS, IDLE_SECONDS, Beat, action, idle_together, patience
from clusterctl.shared.record.plain_text import clock
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.launcher.diagnosis.traces import AttemptTrace, RunTrace

LEAST_SLOWDOWN = 1.5
LEAST_SECONDS = 0.002  # per step; less is noise
_NOT_STAGED = re.compile(rf"clusterctl: (?P<node>\S+) {IN_VAIN}: (?P<problem>.+)")


def explain_running(trace: RunTrace) -> tuple[Finding, ...]:
    """The problems of the last attempt by its heartbeats, the worst first; or one finding that it is healthy."""
    if not trace.attempts:
        return (Finding(Cause.HEALTHY, "nodes allocated; its batch script has not started yet", LIKELY),)
    attempt = trace.attempts[-1]
    if trace.status.record.is_script:
        return (_script_running(trace, attempt),)
    beats = {rank.rank: rank.beat for rank in attempt.ranks if rank.beat}
    flaws = [f"failed: {line}" for line in flawed_lines(attempt, trace.status.record)]
    if not_staged := {match["node"]: match["problem"] for match in map(_NOT_STAGED.search, attempt.lines) if match}:
        node, problem = min(not_staged.items())
        imports = f"{plural(len(not_staged), 'node')} {'import' if len(not_staged) > 1 else 'imports'}"
        flaws.append(f"{imports} from the shared file system, which is slower; {node}: {problem}")
    if problem := trace.status.no_successor:
        then = f"clusterctl resume {trace.status.record.run.id}"
        flaws.append(f"no job could be queued to go on in when this one ends (then: {then}): {problem}")
        flaws.append("if jobs may not call sbatch here: `successors` in the cluster file lets submit queue it")
    if attempt.lost:
        then = "its batch script starts the ranks again without it"
        if attempt.script_node in attempt.lost:
            then = "its batch script was there: the others end the job, and the run goes on once Slurm has noticed, too"
        return (replace(lost(attempt), attempt=attempt.number, facts=(then, *flaws)),)
    if not beats:
        words = f"{trace.status.state}; no rank has sent a heartbeat yet"
        return (Finding(Cause.HEALTHY, words, LIKELY, attempt.number, facts=tuple(flaws)),)
    if all(beat.phase == ENDED for beat in beats.values()) and len(beats) == attempt.tasks:
        # Its batch script, which records how the attempt ended, is still to end.
        unrecorded = "its batch script has not recorded the end yet"
        if failed := _failed(attempt):
            return (Finding(Cause.PENDING, f"{failed[0]}; {unrecorded}", facts=failed[1:]),)
        words = f"all {attempt.tasks} ranks have exited; {unrecorded}"
        return (Finding(Cause.HEALTHY, words, LIKELY, attempt.number),)
    idle = _idle(trace, attempt, beats) or _gpus_idle(trace, attempt, beats)
    wrong = (_stuck(trace, attempt, beats), idle, _slowed(attempt, beats))
    first, *others = [finding for finding in wrong if finding] or [_healthy(attempt, beats)]
    clocks = (f"the clock of {node} is off by {seconds:+.0f} s" for node, seconds in sorted(trace.clocks.items()))
    return (replace(first, facts=(*first.facts, *flaws, *clocks)), *others)


def unheard(trace: RunTrace) -> list[str]:
    if not trace.attempts or trace.status.record.is_script:
        return []
    attempt = trace.attempts[-1]
    heard = {rank.rank for rank in attempt.ranks if rank.beat}
    missing = len(set(range(attempt.tasks)) - heard)
    return [f"heartbeats of {missing} of {attempt.tasks} ranks: not written yet"] if missing else []


def _script_running(trace: RunTrace, attempt: AttemptTrace) -> Finding:
    """A batch script writes no heartbeats: only its output shows that it is at work."""
    words = "its batch script is running"
    if attempt.wrote is not None:
        words += f"; its output last changed {max(trace.now - attempt.wrote, 0):.0f} s ago"
    facts = [f"srun reported rank {death.rank} on {death.node}: {death.how}" for death in attempt.deaths[:3]]
    facts += filter(None, [unseen_ranks(trace.status.record)])
    return Finding(Cause.HEALTHY, words, LIKELY, attempt.number, facts=tuple(facts))


def _stuck(trace: RunTrace, attempt: AttemptTrace, beats: Mapping[int, Beat]) -> Finding | None:
    """A rank that stopped writing heartbeats while others did not, or that has been in a step for too long."""
    newest = max(beat.time for beat in beats.values())
    settings = trace.status.record.job.watchdog
    silent = {
        rank: newest - beat.time
        for rank, beat in sorted(beats.items())
        if newest - beat.time > SILENT_SECONDS and beat.phase != ENDED
    }
    if unwritten := next((rank for rank in map(attempt.rank, silent) if rank.writer and rank.writer.error), None):
        return _of_rank(attempt, unwritten.rank, beats[unwritten.rank], Cause.NODE, no_writer(unwritten))
    if several_each(nodes := silent_nodes(attempt.ranks, silent)):
        first = min(silent)
        return node_fell_silent(attempt, nodes, beats[first].phase, f"no heartbeat for {silent[first]:.0f} s")
    for rank, seconds in silent.items():
        words = f"has written no heartbeat for {seconds:.0f} s while others have: stopped, or its node is faulty"
        return _of_rank(attempt, rank, beats[rank], Cause.HANG, words)
    if (seconds := trace.now - newest) > 3 * SILENT_SECONDS:
        words = f"no rank has written a heartbeat for {seconds:.0f} s: the nodes or their file system are stuck"
        return _of_rank(attempt, min(beats), beats[min(beats)], Cause.HANG, words)
    late = {rank: beat for rank, beat in beats.items() if beat.time - beat.still_since > patience(settings, beat)}
    if not late:
        return None
    rank = min(late, key=lambda rank: (late[rank].waiting is not None, late[rank].step, rank))
    seconds = late[rank].time - late[rank].still_since
    off = "" if settings.enabled else "; the watchdog is off"
    words = f"stuck while {late[rank].phase} for {seconds:.0f} s{off}"
    return _of_rank(attempt, rank, late[rank], Cause.HANG, words)


def _idle(trace: RunTrace, attempt: AttemptTrace, beats: Mapping[int, Beat]) -> Finding | None:
    """A program that logs no steps and has been idle on all ranks for a while."""
    settings = trace.status.record.job.watchdog
    seconds = idle_together(beats.values(), attempt.tasks)
    if seconds is None or seconds < min(IDLE_SECONDS, settings.idle or IDLE_SECONDS):
        return None
    present = {rank: beat for rank, beat in beats.items() if beat.phase != ENDED}
    last = min(present, key=lambda rank: (present[rank].idle or 0.0, rank))
    since = clock(max(0.0, present[last].time - seconds), date=True)
    words = f"logs no steps and has been idle since {since}: for {seconds:.0f} s {DID_NOTHING}"
    facts = [f"rank {gone.rank} had exited with 0 before" for gone in left_early(attempt)[:1]]
    if len({int((beat.idle or 0.0) / IDLE_SECONDS) for beat in present.values()}) > 1:
        facts.append(f"the last active rank was rank {last} on {beats[last].host}")
    coming = "the watchdog is off"
    if settings.enabled and settings.idle:
        coming = _will(action(settings, logs_steps=False), "idle", settings.idle)
    facts.append(noticed(attempt.reported) if attempt.reported else coming)
    hint = "" if attempt.reported else "log steps for a better diagnosis: see docs/guides/when-a-run-fails.md"
    traceback = whereabouts(attempt) if attempt.reported else ""
    return Finding(
        Cause.HANG,
        words,
        LIKELY,
        attempt.number,
        state=present[last].phase,
        traceback=traceback,
        facts=tuple(facts),
        hint=hint,
    )


def _gpus_idle(trace: RunTrace, attempt: AttemptTrace, beats: Mapping[int, Beat]) -> Finding | None:
    """GPUs that have been idle on all nodes for a while."""
    settings = trace.status.record.job.watchdog
    present = [beat for beat in beats.values() if beat.phase != ENDED]
    seconds = min((beat.gpu_idle or 0.0 for beat in present), default=0.0)
    if seconds < min(GPU_IDLE_SECONDS, settings.idle_gpu or GPU_IDLE_SECONDS):
        return None
    since = clock(max(0.0, max(beat.time for beat in present) - seconds), date=True)
    coming = _will(action(settings, logs_steps=True, how=IDLE_GPUS), "idle_gpu", settings.idle_gpu)
    facts = (coming if settings.enabled and settings.idle_gpu else "set watchdog.idle_gpu to end such runs",)
    words = f"all GPUs on all nodes have been idle since {since}: for {seconds:.0f} s"
    return Finding(Cause.IDLE_GPUS, words, CERTAIN, attempt.number, state=present[0].phase, facts=facts)


def _will(what: str, setting: str, seconds: int) -> str:
    verb = {"restart": "restarts", "fail": "ends", "report": "reports"}[what]
    return f"the watchdog {verb} it after {seconds} s (watchdog.{setting}, watchdog.action)"


def _of_rank(attempt: AttemptTrace, rank: int, beat: Beat, cause: Cause, words: str) -> Finding:
    return Finding(cause, words, LIKELY, attempt.number, rank, beat.host, beat.phase, beat.step)


def _slowed(attempt: AttemptTrace, beats: Mapping[int, Beat]) -> Finding | None:
    slow = stragglers({rank: beat.busy_seconds for rank, beat in beats.items() if beat.phase == State.TRAINING})
    if not slow:
        return None
    worst = slow[0]
    facts = [f"rank {other.rank} on {beats[other.rank].host}: {other.slowdown:.1f} times" for other in slow[1:4]]
    words = (
        f"slows the others down: {worst.seconds * 1000:.0f} ms of its own work per step, "
        f"{worst.slowdown:.1f} times the others' {worst.usual_seconds * 1000:.0f} ms"
    )
    found = _of_rank(attempt, worst.rank, beats[worst.rank], Cause.STRAGGLER, words)
    return replace(found, certainty=CERTAIN, facts=tuple(facts))


def _failed(attempt: AttemptTrace) -> tuple[str, ...]:
    """The ranks that exited with another code than 0."""
    return tuple(f"rank {rank.rank} exited with {rank.exit_code}" for rank in attempt.ranks if rank.exit_code)[:4]


def _healthy(attempt: AttemptTrace, every: Mapping[int, Beat]) -> Finding:
    beats = {rank: beat for rank, beat in every.items() if beat.phase != ENDED} or every
    first = beats[min(beats)]
    if first.idle is not None:  # it logs no steps; some ranks may wait a long time for others, e.g. during evaluation
        running = [beat for beat in beats.values() if beat.phase != ENDED]
        idle = [beat.idle for beat in running if beat.idle is not None and beat.idle > IDLE_SECONDS]
        words = f"logs no steps; {len(beats) - len(idle)} of {attempt.tasks} ranks were active within the last minute"
        waiting = (f"the other {len(idle)} have been idle for {min(idle):.0f} s or more",) if idle else ()
        return Finding(Cause.HEALTHY, words, CERTAIN, attempt.number, state=first.phase, facts=waiting)
    known = first.step_seconds if first.phase == State.TRAINING else None
    pace = f", {known * 1000:.0f} ms per step" if known else ""
    done = f", step {first.step}" if first.step else ""
    words = f"{len(beats)} of {attempt.tasks} ranks are making progress: {first.phase}{done}{pace}"
    certainty, facts = (LIKELY, failed) if (failed := _failed(attempt)) else (CERTAIN, ())
    return Finding(
        Cause.HEALTHY, words, certainty, attempt.number, state=first.phase, step=first.step or None, facts=facts
    )


@dataclass(frozen=True)
class Straggler:
    """A rank that takes `slowdown` times as long for its own work in a step as the median rank."""

    rank: int
    slowdown: float
    seconds: float
    usual_seconds: float


def stragglers(busy: Mapping[int, float | None]) -> list[Straggler]:
    """The ranks that are clearly slower than the others, the slowest first. Two ranks are compared with each other.

    In synchronous training all ranks are at the same step, and each step takes as long as on the slowest rank. The
    difference is in the part of a step in which a rank is not waiting for the others.

    `busy`: rank -> seconds per training step in which it is not waiting; None if unknown.
    """
    known = {rank: seconds for rank, seconds in busy.items() if seconds is not None}
    if not known:
        return []
    usual = median_low(known.values())
    found = [
        Straggler(rank, seconds / usual if usual > 0 else float("inf"), seconds, usual)
        for rank, seconds in known.items()
        if seconds >= LEAST_SLOWDOWN * usual and seconds - usual >= LEAST_SECONDS
    ]
    return sorted(found, key=lambda straggler: -straggler.slowdown)

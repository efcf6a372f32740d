"""How a run that goes on is doing: well, standing still, or slowed down by some of its ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.diagnosis.findings import CERTAIN, LIKELY, Findings
from clusterctl.diagnosis.standstill import node_fell_silent, several_each, silent_nodes
from clusterctl.diagnosis.stragglers import stragglers
from clusterctl.errors import Cause
from clusterctl.runs.heartbeats import ENDED, Beat
from clusterctl.runs.stages import Stage
from clusterctl.runs.watchdog import patience

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.diagnosis.traces import AttemptTrace, Trace

SILENT_SECONDS = 20.0  # a rank writes every second; file systems and clocks may hold that up for a while


def explain_running(trace: Trace) -> Findings:
    """The state of the last attempt, from its heartbeats and nothing else: Slurm need not be asked."""
    if not trace.attempts:
        return Findings(Cause.HEALTHY, "has its nodes, and its batch script has not begun yet", LIKELY)
    attempt = trace.attempts[-1]
    beats = {rank.rank: rank.beat for rank in attempt.ranks if rank.beat}
    missing = [rank for rank in range(attempt.tasks) if rank not in beats]
    unknown = (
        (f"the heartbeats of {len(missing)} of {attempt.tasks} ranks: they have written none yet",) if missing else ()
    )
    if not beats:
        stage = trace.status.stage
        return Findings(Cause.HEALTHY, f"{stage}; no rank has told more yet", LIKELY, attempt.number, unknown=unknown)
    found = _standing_still(trace, attempt, beats) or _slowed(attempt, beats) or _well(attempt, beats)
    return replace(found, unknown=unknown)


def _standing_still(trace: Trace, attempt: AttemptTrace, beats: Mapping[int, Beat]) -> Findings | None:
    """A rank that writes no more while others do, or one that does no step for longer than the watchdog would wait."""
    newest = max(beat.time for beat in beats.values())
    settings = trace.status.record.job.watchdog
    silent = {
        rank: newest - beat.time
        for rank, beat in sorted(beats.items())
        if newest - beat.time > SILENT_SECONDS and beat.phase != ENDED
    }
    if several_each(nodes := silent_nodes(attempt.ranks, silent)):
        first = min(silent)
        return node_fell_silent(attempt, nodes, beats[first].phase, f"no heartbeat for {silent[first]:.0f} s")
    for rank, seconds in silent.items():
        words = f"has written no heartbeat for {seconds:.0f} s while others have: stopped, or its node is ill"
        return _hang(attempt, rank, beats[rank], words)
    if trace.now - newest > 3 * SILENT_SECONDS:
        words = (
            f"no rank has written a heartbeat for {trace.now - newest:.0f} s: the nodes, or their file system, stand"
        )
        return _hang(attempt, min(beats), beats[min(beats)], words)
    late = {rank: beat for rank, beat in beats.items() if beat.time - beat.still_since > patience(settings, beat)}
    if not late:
        return None
    rank = min(late, key=lambda rank: (late[rank].waiting is not None, late[rank].step, rank))
    seconds = late[rank].time - late[rank].still_since
    action = "" if settings.enabled else "; the watchdog is off"
    return _hang(attempt, rank, late[rank], f"stands still while {late[rank].phase} for {seconds:.0f} s{action}")


def _hang(attempt: AttemptTrace, rank: int, beat: Beat, words: str) -> Findings:
    return Findings(
        Cause.HANG, words, LIKELY, attempt.number, rank=rank, node=beat.host, stage=beat.phase, step=beat.step
    )


def _slowed(attempt: AttemptTrace, beats: Mapping[int, Beat]) -> Findings | None:
    slow = stragglers({rank: beat.busy_seconds for rank, beat in beats.items() if beat.phase == Stage.TRAINING})
    if not slow:
        return None
    worst = slow[0]
    facts = [f"rank {other.rank} on {beats[other.rank].host}: {other.slowdown:.1f} times" for other in slow[1:4]]
    words = (
        f"slows the others down: {worst.seconds * 1000:.0f} ms of a step for its own part, "
        f"{worst.slowdown:.1f} times the others' {worst.usual_seconds * 1000:.0f} ms"
    )
    beat = beats[worst.rank]
    return Findings(
        Cause.STRAGGLER,
        words,
        CERTAIN,
        attempt.number,
        rank=worst.rank,
        node=beat.host,
        stage=beat.phase,
        step=beat.step,
        facts=tuple(facts),
    )


def _well(attempt: AttemptTrace, beats: Mapping[int, Beat]) -> Findings:
    first = beats[min(beats)]
    pace = (
        f", {first.step_seconds * 1000:.0f} ms a step" if first.step_seconds and first.phase == Stage.TRAINING else ""
    )
    done = f", step {first.step}" if first.step else ""
    words = f"{len(beats)} of {attempt.tasks} ranks get on: {first.phase}{done}{pace}"
    return Findings(Cause.HEALTHY, words, CERTAIN, attempt.number, stage=first.phase, step=first.step or None)

"""Why an attempt failed: the first cause among the reports of its ranks and Slurm, by causal rules, then by time.

Node clocks differ by up to seconds, so times decide only between messages that are causes in their own right. What a
rank reports because another one died, or because it was terminated, is a cause only if there is nothing else.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from functools import cached_property
from signal import SIGKILL, SIGUSR2
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.finding import (
    CERTAIN,
    LIKELY,
    UNSURE,
    Consequence,
    Evidence,
    Finding,
    ranks_in_words,
    same_on,
)
from clusterctl.launcher.diagnosis.hangs import hang, left_early, lost, noticed, outside_collectives, someone_left
from clusterctl.launcher.diagnosis.last_words import SLURMS_LINE
from clusterctl.launcher.diagnosis.reports import BY_SIGKILL, CLOCK_SECONDS, candidates
from clusterctl.launcher.diagnosis.signatures import Level, most_specific
from clusterctl.launcher.observe.attempt import flawed_lines, node_setup_flaws
from clusterctl.launcher.observe.logs import time_of
from clusterctl.launcher.observe.rank_events import ended_together
from clusterctl.launcher.observe.script_runs import unseen_ranks
from clusterctl.launcher.observe.slurm_log import EndedBy, job_ends
from clusterctl.launcher.observe.state import reached_limit
from clusterctl.shared.errors import Cause
from clusterctl.shared.node.signals import EXIT_TERMINATED
from clusterctl.shared.record.marks import Refusal
from clusterctl.shared.record.ownership import user_name
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.launcher.diagnosis.reports import Candidate
    from clusterctl.launcher.diagnosis.traces import AttemptTrace, JobTrace, RankTrace, RunTrace


_SOONER_SECONDS = 5.0  # a rank that failed this long before Slurm ended the job failed on its own
_REFUSALS = {
    Refusal.SUPERSEDED: "a newer attempt has started",
    Refusal.CANCELLED: "the run was cancelled",
    Refusal.NO_PROGRESS: "this attempt made no progress",
    Refusal.KILLED_AGAIN: "ranks were killed at the same step again",
    Refusal.RESTART_LIMIT: "restart limit ({limit}) reached",
    Refusal.IN_ALLOCATION: "a requeue would end the allocation that it runs in",
    Refusal.REQUEUE_FAILED: "scontrol requeue failed",
    Refusal.NO_MORE_MEMORY: "no node of its partition has more memory (restart.grow)",
    Refusal.NO_MORE_TIME: "its partition allows no more time (restart.grow)",
}


@dataclass(frozen=True)
class Case:
    """The evidence about the end of one attempt, as the rules read it. `first` is the first report of a rank."""

    attempt: AttemptTrace
    trace: RunTrace
    reports: tuple[Candidate, ...]
    ending: Ending | None

    @classmethod
    def of(cls, attempt: AttemptTrace, trace: RunTrace) -> Case:
        accounted = trace.job_of(attempt).accounted if trace.ended_its_job(attempt) else ()
        out_of_memory = any(one.state == "OUT_OF_MEMORY" for one in accounted)
        reports = candidates(attempt, out_of_memory=out_of_memory)
        return cls(attempt, trace, tuple(reports), _ending(attempt, trace))

    @cached_property
    def first(self) -> Candidate | None:
        return min(self.reports, key=lambda report: report.precedence, default=None)

    @cached_property
    def silent(self) -> list[RankTrace]:
        """The ranks that left no record of their end."""
        return [rank for rank in self.attempt.ranks if rank.began and rank.is_silent]

    @cached_property
    def by_the_end(self) -> bool:
        """Whether srun ended the step before it reported any task: no rank failed before that, regardless of clocks."""
        return ended_together(self.attempt.lines) and all(report.order is None for report in self.reports)


def explain_attempt(attempt: AttemptTrace, trace: RunTrace) -> Finding:
    """The first cause of the end of `attempt`, and its consequences, by the first of RULES that applies."""
    case, record = Case.of(attempt, trace), trace.status.record
    evidence, found = next((evidence, found) for evidence, rule in RULES if (found := rule(case)))
    doubtful = found.certainty == CERTAIN and not evidence.may_be_certain
    if attempt.one_output and not attempt.deaths:
        found = replace(found, rank=None)
    elif attempt.one_output and evidence is Evidence.LAST_WORDS:
        doubtful = True  # another rank may have written it
    rank = attempt.rank(found.rank) if found.rank is not None else None
    step = rank.beat.step if rank and rank.beat else 0
    facts = [*found.facts]
    if attempt.one_output and (unseen := unseen_ranks(record)):
        facts.append(unseen)
    if attempt.setup and attempt.setup_ended is None:
        facts += [f"failed before it: {line}" for line in flawed_lines(attempt, record)]
    if refused := attempt.refused:
        if refused is Refusal.RESTART_LIMIT and record.allocation:  # by the script of an earlier version
            refused = Refusal.IN_ALLOCATION
        problem = f": {attempt.requeue_problem}" if attempt.requeue_problem else ""
        if refused is Refusal.NO_PROGRESS and attempt.unasked:
            problem = ": nothing shows that it saved, neither a later step logged nor a new file of restart.progress"
        reason = _REFUSALS[refused].format(limit=record.job.restart.limit)
        if refused is Refusal.KILLED_AGAIN and attempt.kills:
            reason = str(attempt.kills)
        facts.append(f"not restarted: {reason}{problem}")
    elif found.cause_class is Cause.PREEMPTED and _state_after(attempt, trace) is State.PREEMPTED:
        # Slurm did not start it again, and its script was not asked to.
        mode = "Slurm cancels the jobs that it preempts there (PreemptMode=CANCEL), and left no time to save"
        off = record.job.resources.requeue is False
        facts.append(f"not restarted: {'resources.requeue is false' if off else mode}")
    words = {candidate.rank: candidate.words for candidate in case.reports}

    def member(number: int | None) -> tuple[str, int | None]:
        return record.seating.member(number) if record.seating and number is not None else ("", None)

    role, role_rank = member(found.rank)
    return replace(
        found,
        certainty=LIKELY if doubtful else found.certainty,
        attempt=attempt.number,
        state=found.state or (rank.state if rank else ""),
        step=step or found.step,
        facts=tuple(facts),
        role=role,
        role_rank=role_rank,
        secondary=tuple(
            Consequence(other.rank, other.node, words.get(other.rank, "ended with the others"), *member(other.rank))
            for other in attempt.ranks
            if other.rank != found.rank and other.exit_code != 0 and not attempt.one_output
        ),
    )


def _state_after(attempt: AttemptTrace, trace: RunTrace) -> State | None:
    """The state in which `attempt` left the run, if it was the last one of its job."""
    return trace.job_of(attempt).state if trace.ended_its_job(attempt) else None


def _stuck(case: Case) -> Finding | None:
    """The watchdog's alarm, unless a rank had failed before it, all had ended, or Slurm has lost the node."""
    attempt, alarm = case.attempt, case.attempt.alarm
    if alarm is None or _came_before(case.first, alarm.time):
        return None
    ends = [attempt.end] if attempt.end is not None else [rank.ended for rank in attempt.ranks if rank.began]
    if ends and all(end is not None and end + CLOCK_SECONDS < alarm.time for end in ends):
        return None
    if case.ending and case.ending.cause is Cause.NODE:
        # Slurm notices a lost node later than the watchdog. If all ranks were in a collective and no suspect is known,
        # they were waiting for any node that Slurm lost. The script writes these lines, so none names its own node.
        suspects = alarm.suspects or outside_collectives(attempt)
        lost = lost_nodes(attempt.lines) or _lost_with_the_script(attempt)
        if all(attempt.rank(suspect).node in lost for suspect in suspects):
            return None
    return hang(attempt)


def _lost_with_the_script(attempt: AttemptTrace) -> list[str]:
    """The nodes whose ranks met a newer attempt; if none did, that of the script, which ended without a message."""
    met = [rank.node for rank in attempt.ranks if rank.superseded]
    return met or [attempt.script_node or attempt.rank(0).node]  # earlier versions did not record it


def _from_outside(case: Case) -> Finding | None:
    """What Slurm or a person did to the whole job, unless a rank had failed before it."""
    attempt, ending = case.attempt, case.ending
    sooner = ending and _came_before(case.first, ending.time - _SOONER_SECONDS if ending.time else None)
    if ending and case.trace.status.record.is_plain_job:  # without times, there is srun's order
        sooner = case.first is not None and case.first.primary and case.first.order is not None
    if ending is None or (sooner and not case.by_the_end):
        return None
    facts: tuple[str, ...] = ()
    if ending.cause is Cause.TIME and attempt.start and attempt.end:  # it may have been stuck before
        beats = [rank.beat for rank in attempt.ranks if rank.beat]
        beats = [beat for beat in beats if beat.phase == State.TRAINING and beat.step]
        still = min((beat.time - beat.still_since for beat in beats), default=0.0)
        usual = max((beat.slow_seconds or 0.0 for beat in beats), default=0.0)
        if attempt.reported:
            facts = (f"it was stuck before: {noticed(attempt.reported)}",)
        elif still > max(60.0, 10 * usual):
            facts = (f"no rank had completed a step for {still:.0f} s",)
    certainty = CERTAIN if ending.certain else LIKELY
    return Finding(ending.cause, ending.words, certainty, node=ending.node, state=attempt.rank(0).state, facts=facts)


def _came_before(first: Candidate | None, moment: float | None) -> bool:
    """Whether a rank had failed on its own before `moment` (None: unknown)."""
    return first is not None and first.primary and moment is not None and first.time is not None and first.time < moment


def _lost(case: Case) -> Finding | None:
    """A node that the others missed, unless a rank had failed on its own."""
    return lost(case.attempt) if case.attempt.lost and not (case.first and case.first.primary) else None


def _before_the_ranks(case: Case) -> Finding | None:
    """What the batch script recorded instead of starting its ranks."""
    attempt = case.attempt
    if attempt.unfit:
        (node, problem), *unfit = attempt.unfit.items()
        facts = [f"{other} also failed it: {words}" for other, words in unfit]
        hint = "report it to the administrators of the cluster; to avoid the node, set resources.exclude"
        words = f"failed the node check: {problem}"
        return Finding(Cause.NODE, words, CERTAIN, node=node, facts=tuple(facts), hint=hint)
    if attempt.setup_ended is not None:
        ended, *flaws = flawed_lines(attempt, case.trace.status.record)
        own = [line for line in attempt.lines if not line.startswith("clusterctl: ")]
        facts = [*(f"also failed: {line}" for line in flaws), *(own[-1:] if attempt.exit_code != 0 else ())]
        hint = "correct `setup` in the job or cluster file, and submit it again"
        return Finding(Cause.LAUNCH, ended, CERTAIN, facts=tuple(facts), hint=hint)
    if attempt.node_setup:
        ended, *others = node_setup_flaws(attempt, case.trace.status.record)
        printed = attempt.node_setup[0].last
        facts = [*([printed] if printed else []), *(f"also failed: {line}" for line in others)]
        hint = "correct `node_setup` in the job file, and submit it again"
        return Finding(Cause.LAUNCH, ended, CERTAIN, facts=tuple(facts), hint=hint)
    if attempt.no_work:
        words = "cannot create the run's working directory"
        if attempt.disk_full:
            return Finding(Cause.DISK, f"{words}: the disk of the run directory is full", CERTAIN)
        return Finding(Cause.LAUNCH, f"{words}: the code could not be copied", CERTAIN, facts=attempt.lines[-1:])
    return None


def _full_disk(case: Case) -> Finding | None:
    """The script found the disk full, and no rank reports more than an exit code."""
    first = case.first
    reliable = first and first.evidence is not Evidence.ELSEWHERE
    more_than_a_code = first and reliable and (first.signature.cause is not Cause.USER or first.traceback)
    if not case.attempt.disk_full or (first and first.primary and more_than_a_code):
        return None
    words = "the disk of the run directory was full when it ended, and messages of its ranks may be lost"
    return Finding(Cause.DISK, words, LIKELY)


def _left_early(case: Case) -> Finding | None:
    """A rank exited with 0, and the others report only that they lost a peer."""
    if case.first is None or case.first.primary or case.silent or not (gone := left_early(case.attempt)):
        return None
    return someone_left(gone)


def _of_a_rank(case: Case) -> Finding | None:
    first, attempt, silent = case.first, case.attempt, case.silent
    if first is None or not (first.primary or not silent):
        return None
    if first.evidence is Evidence.ELSEWHERE and silent and not attempt.arriving:
        return None  # a rank that was killed may have survived what it wrote
    found = _reported_by(first, case.reports, left_early(attempt, first.time))
    if case.ending and case.trace.status.record.is_plain_job:
        return replace(found, certainty=LIKELY, facts=(*found.facts, f"Slurm ended the job later: {case.ending.words}"))
    if first.signature.software and not case.trace.status.record.job.container.image:
        is_plain = case.trace.status.record.is_plain_job  # which may use an image all the same
        found = replace(found, cause_class=Cause.LAUNCH, certainty=LIKELY if is_plain else found.certainty)
    if first.order is None and (case.ending or case.by_the_end):
        fact = "srun had not reported it before all ranks were ended: what ended them may have come first"
        return replace(found, certainty=LIKELY, facts=(*found.facts, fact))
    unreported = {rank.rank for rank in silent} - {candidate.rank for candidate in case.reports}
    if unreported and (attempt.arriving or first.may_follow):
        # An earlier report of another rank may not be visible here yet, or that rank may have been killed before.
        return replace(found, certainty=LIKELY)
    return found


def _reported_by(first: Candidate, reports: Iterable[Candidate], gone: list[RankTrace]) -> Finding:
    """The finding of the `first` report. It is uncertain which of two came first if their clocks may differ."""
    close = [
        other
        for other in reports
        if first.primary
        and other.primary
        and other.words != first.words
        and (
            other.time is None
            or first.time is None
            or (other.node != first.node and other.time - first.time < CLOCK_SECONDS)
        )
    ]
    facts = [
        *first.facts,
        *(f"rank {other.rank} also failed within {CLOCK_SECONDS:g} s: {other.words}" for other in close[:3]),
    ]
    same = sorted(other.rank for other in reports if other.rank != first.rank and other.words == first.words)
    if same:
        facts.append(same_on(same))
    follows = bool(gone) and first.may_follow
    if follows:
        facts.append(f"{ranks_in_words([rank.rank for rank in gone])} had exited with 0 before")
    certain = first.primary and first.reliable and not close and not follows
    if first.signature.level is Level.ECHO:
        facts.append("every rank reports the end of another rank, and none its own: the cause is unclear")
    elif not first.primary:
        facts.append("whatever it could not reach may have ended before")
    return Finding(
        first.signature.cause,
        first.words,
        CERTAIN if certain else LIKELY,
        rank=first.rank,
        node=first.node,
        traceback=first.traceback,
        hint=first.hint,
        facts=tuple(facts),
    )


def _terminated(case: Case) -> Finding | None:
    """Ranks that got TERM before srun ended the others, and no report of a cause."""
    if case.silent or (case.first and case.first.primary):
        return None
    numbers = sorted({death.rank for death in case.attempt.deaths if death.code == EXIT_TERMINATED})
    words = f"ended by SIGTERM (exit code {EXIT_TERMINATED}): by kill or scancel --signal=TERM; nothing records by whom"
    is_plain = case.trace.status.record.is_plain_job
    if is_plain and case.attempt.exit_code == EXIT_TERMINATED and not (numbers or case.first):
        return Finding(Cause.KILLED, f"the last program of its batch script was {words}", LIKELY)
    if not numbers:
        return None
    if len(numbers) == case.attempt.tasks:
        return Finding(Cause.KILLED, f"every rank was {words}", LIKELY)
    also = (f"like {ranks_in_words(numbers[1:])}",) if numbers[1:] else ()
    first = case.attempt.rank(numbers[0])
    return Finding(Cause.KILLED, f"was {words}", LIKELY, rank=first.rank, node=first.node, facts=also)


def _died_silently(case: Case) -> Finding | None:
    """A process killed by the kernel or along with its node leaves no message."""
    attempt, silent = case.attempt, case.silent
    if not silent or attempt.arriving:
        return None
    numbers = {rank.rank for rank in silent}
    nodes = {rank.node for rank in attempt.ranks if rank.node}
    gone = sorted(nodes - {rank.node for rank in attempt.ranks if rank.rank not in numbers})
    if len(nodes) > 1 and gone and len(gone) < len(nodes):
        words = f"no rank on {', '.join(gone)} left a record of its end: the node was lost"
        return Finding(Cause.NODE, words, LIKELY, rank=silent[0].rank, node=gone[0])
    if attempt.signal == "LOST":
        words = f"srun ended without a report on {ranks_in_words([rank.rank for rank in silent])}: a node was lost"
        return Finding(Cause.NODE, words, LIKELY, rank=silent[0].rank, node=silent[0].node)
    words = "ended without a message: killed from outside or by the kernel"
    return Finding(Cause.KILLED, words, LIKELY, rank=silent[0].rank, node=silent[0].node)


def known_line(lines: Iterable[str]) -> Finding | None:
    """The meaning of the most specific of `lines`, if it names a cause that no rank has reported."""
    known = most_specific(lines)
    return Finding(known.cause, known.words) if known and known.level is Level.PRIMARY else None


def _before_any_rank(case: Case) -> Finding | None:
    """What srun and pyxis report if no rank wrote anything, e.g. about importing a warm run's image."""
    attempt = case.attempt
    if any(rank.began or rank.last_words for rank in attempt.ranks) or not (known := known_line(attempt.lines)):
        return None
    return replace(known, node=next((death.node for death in attempt.deaths), ""))


def _by_slurm(case: Case) -> Finding | None:
    """What srun and slurmstepd wrote into the batch script's log."""
    return known_line(line for line in case.attempt.lines if SLURMS_LINE.match(line))


def _script_killed(case: Case) -> Finding | None:
    """According to Slurm, a signal ended the batch script itself; Slurm did not send it."""
    number = case.attempt.killed_by
    if number is None or (case.first and case.first.evidence is Evidence.RECORDED and case.attempt.deaths):
        return None
    name = signal.Signals(number).name if number in {*map(int, signal.Signals)} else f"signal {number}"
    return Finding(Cause.KILLED, f"its batch script was ended by {name}; nothing records who sent it", CERTAIN)


def _unexplained(case: Case) -> Finding:
    attempt = case.attempt
    if known := known_line(attempt.lines):
        return known
    if attempt.arriving:
        words = "its nodes' last files are not visible on this machine yet"
        return Finding(
            Cause.UNKNOWN, words, UNSURE, hint="try again in a minute: its file system shows changes with a delay"
        )
    if attempt.exit_code is None:
        return Finding(Cause.UNKNOWN, "its batch script ended without a message", UNSURE)
    if attempt.one_output:
        words = f"its batch script ended with exit code {attempt.exit_code}, and wrote nothing that explains it"
        return Finding(Cause.USER, words, LIKELY)
    if not any(rank.began for rank in attempt.ranks):
        return Finding(Cause.LAUNCH, f"no rank ever started: srun ended with exit code {attempt.exit_code}", LIKELY)
    return Finding(Cause.UNKNOWN, f"it ended with exit code {attempt.exit_code}, and no rank reported why", UNSURE)


# The order of precedence; a rule that does not apply finds None. Evidence (finding.py) lists what can be certain.
RULES: tuple[tuple[Evidence, Callable[[Case], Finding | None]], ...] = (
    (Evidence.RECORDED, _stuck),
    (Evidence.RECORDED, _from_outside),
    (Evidence.RECORDED, _lost),
    (Evidence.RECORDED, _before_the_ranks),
    (Evidence.RECORDED, _full_disk),
    (Evidence.RECORDED, _before_any_rank),
    (Evidence.RECORDED, _left_early),
    (Evidence.RECORDED, _terminated),
    (Evidence.RECORDED, _script_killed),
    (Evidence.LAST_WORDS, _of_a_rank),
    (Evidence.NOTHING, _died_silently),
    (Evidence.RECORDED, _by_slurm),
    (Evidence.NOTHING, _unexplained),
)


# What ended a whole job from outside: a person, Slurm, or a lost node.

_NODE_LOST = re.compile(r"srun: error: Node failure on (?P<node>\S+)")
# srun has lost its connection to a step's slurmstepd, and slurmd, if it still answers, no longer knows the step.
_STEP_GONE = re.compile(
    r"srun: error: (?:Aborting, io error and missing step on|Cannot communicate with) node (?P<index>\d+)"
)
_WARNED = re.compile(rf"terminated with signal {int(SIGUSR2)}\b")  # pyxis, about the process that unpacks the image
_SRUN_KILLED = re.compile(
    r'slurm_script: line \d+: +\d+ Killed +"\$\{(?:cctl_)?srun\[@\]\}" '
)  # bash's message about its child
_MEANINGS = {
    EndedBy.CANCELLATION: (Cause.CANCELLED, "the job was cancelled"),
    EndedBy.TIME_LIMIT: (Cause.TIME, "the time limit was reached"),
    EndedBy.PREEMPTION: (Cause.PREEMPTED, "another job took its nodes"),
    EndedBy.REQUEUE: (Cause.PREEMPTED, "the job was requeued (scontrol requeue, or a preemption)"),
    EndedBy.NODE_FAILURE: (Cause.NODE, "Slurm lost a node of the job"),
}


@dataclass(frozen=True)
class Ending:
    """What ended a whole job from outside, and when (0: unknown)."""

    cause: Cause
    words: str
    node: str = ""
    time: float = 0.0
    certain: bool = True


def _ending(attempt: AttemptTrace, trace: RunTrace) -> Ending | None:
    """What ended the job from outside, from Slurm's log lines, cancel.json, and the job's state in Slurm."""
    job, last, state = trace.job_of(attempt), trace.ended_its_job(attempt), _state_after(attempt, trace)
    logged = job_ending(attempt)
    terminated = attempt.signal == "TERM" or state is State.CANCELLED
    if job.cancelled and last and (logged is None or logged.cause is Cause.CANCELLED) and terminated:
        when, by = job.cancelled
        return Ending(Cause.CANCELLED, f"cancelled by {by}" if by else "cancelled", time=when)
    if attempt.number < trace.attempts[-1].number and any(rank.superseded for rank in attempt.ranks):
        words = "a newer attempt replaced it while it was still running: Slurm had lost contact with its node"
        return Ending(Cause.NODE, words, certain=False)
    if logged and logged.cause is Cause.CANCELLED and last:
        return replace(logged, words=_cancelled_by(job, trace))
    if logged:
        return logged
    end = attempt.end or 0.0
    accounted = [one for one in job.accounted if "." not in one.step] if last else []
    states = {one.state for one in accounted}
    left = attempt.asked and attempt.alarm is None
    if left and not states:  # the state only repeats what the time says
        return _warned(attempt, trace, _left(attempt))
    if state is State.TIMED_OUT or "TIMEOUT" in states:
        return Ending(Cause.TIME, "the time limit was reached", time=end)
    if "NODE_FAIL" in states:
        return Ending(Cause.NODE, "Slurm lost a node of the job", time=end)
    if state is State.PREEMPTED or "PREEMPTED" in states:
        return Ending(Cause.PREEMPTED, "another job took its nodes", time=end, certain=bool(states))
    if state is State.CANCELLED or "CANCELLED" in states:
        return Ending(Cause.CANCELLED, _cancelled_by(job, trace), time=end)
    if attempt.exit_code is None and any(one.signal == SIGKILL for one in accounted):
        return Ending(Cause.KILLED, f"its batch script was {BY_SIGKILL}", time=end)
    if warned_before_start(attempt):
        return _warned(attempt, trace, "before any rank had started")
    if left:
        return _warned(attempt, trace, _left(attempt))
    if (not last or attempt.requeued or attempt.requeuing) and attempt.signal == "TERM":
        return Ending(Cause.PREEMPTED, "it was terminated from outside and restarted", time=end, certain=False)
    if not last and attempt.exit_code is None and not attempt.arriving:
        words = "its batch script ended without a message: its first node was lost, or the job was requeued"
        return Ending(Cause.NODE, words, certain=False)
    return None


def _left(attempt: AttemptTrace) -> str:
    if not attempt.unasked:
        return "saved a checkpoint and exited"
    return "and its program left" + " (started again this once: nothing shows that it saved)" * attempt.unproven


def _warned(attempt: AttemptTrace, trace: RunTrace, then: str) -> Ending:
    """Slurm sends the same signal before a time limit and a preemption; the elapsed time tells them apart."""
    end = attempt.end or 0.0
    if reached_limit(replace(attempt, asked=True), trace.status.record.job.resources):
        return Ending(Cause.TIME, f"it received the warning before its time limit, {then}", time=end)
    words = f"it received the warning signal long before its time limit (a preemption, or manually), {then}"
    return Ending(Cause.PREEMPTED, words, time=end)


def _cancelled_by(job: JobTrace, trace: RunTrace) -> str:
    uid = next((accounted.by for accounted in job.accounted if accounted.by), "")
    if not uid.isdecimal():
        return "cancelled by scancel" + ", not by clusterctl" * (not trace.status.record.is_plain_job)
    return f"cancelled by {user_name(int(uid))} with scancel"


def lost_nodes(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(match["node"] for line in lines if (match := _NODE_LOST.search(line))))


def warned_before_start(attempt: AttemptTrace) -> bool:
    """Whether the warning signal killed the process unpacking the image, so that no rank started."""
    words = (line for rank in attempt.ranks for line in rank.last_words)
    return not any(rank.began for rank in attempt.ranks) and any(map(_WARNED.search, (*attempt.lines, *words)))


def job_ending(attempt: AttemptTrace) -> Ending | None:
    """What ended this attempt's job according to slurmstepd and srun; None without a message."""
    if nodes := lost_nodes(attempt.lines):
        return Ending(Cause.NODE, f"Slurm lost node {', '.join(nodes)}", nodes[0])
    if gone := next(filter(None, map(_STEP_GONE.search, attempt.lines)), None):
        nodes = list(dict.fromkeys(rank.node for rank in attempt.ranks))  # of the step, in its order
        node = nodes[int(gone["index"])] if attempt.whole and int(gone["index"]) < len(nodes) else ""
        where = f"on {node}" if node else "of a node"
        words = f"the slurmstepd {where} ended: it was killed, manually or by the kernel, or the node was restarted"
        return Ending(Cause.KILLED, words, node, certain=False)
    if any(_SRUN_KILLED.search(line) for line in attempt.lines):
        words = "srun was killed on the job's first node: manually, by the kernel, or by a Slurm that forgot the job"
        return Ending(Cause.KILLED, words, time=attempt.end or 0.0, certain=False)
    own_nodes = {rank.node for rank in attempt.ranks if rank.node}
    for end in job_ends(attempt.job_lines, attempt.job_id):
        if own_nodes and end.node not in own_nodes:
            continue
        if end.by is EndedBy.REQUEUE and (attempt.requeued or attempt.requeuing):
            continue  # a consequence of its end
        unknown = Cause.UNKNOWN, f"Slurm ended the job: {end.words.lower()}"
        cause, words = _MEANINGS.get(end.by, unknown)
        # slurmstepd writes local time; nodes and login node nearly always share a time zone.
        return Ending(cause, words, time=time_of(end.at.encode()) or 0.0)
    return None

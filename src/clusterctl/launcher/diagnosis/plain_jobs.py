"""`clusterctl why` for any Slurm job, and for output files alone: the evidence about a run, from other sources.

Slurm's record stands in for the run directory, and what the batch script wrote for the logs of the ranks. The rules
that judge them are those of `failure`, `waiting` and `last_words`; only a running job, of which there are no
heartbeats, is described here.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.diagnose import Diagnosis, judge
from clusterctl.launcher.diagnosis.failure import explain_attempt, lost_nodes
from clusterctl.launcher.diagnosis.finding import CERTAIN, LIKELY, UNSURE, Finding, commands
from clusterctl.launcher.diagnosis.last_words import SLURMS_LINE, last_words, survived
from clusterctl.launcher.diagnosis.reports import COMPLAINT
from clusterctl.launcher.diagnosis.signatures import most_specific
from clusterctl.launcher.diagnosis.traces import AttemptTrace, RankTrace, RunTrace
from clusterctl.launcher.diagnosis.waiting import explain, gather_pending
from clusterctl.launcher.observe.rank_events import deaths, ended_together
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.slurm_log import job_ends
from clusterctl.launcher.observe.state import Status, state_of_job
from clusterctl.launcher.slurm.jobs import Accounted, SlurmJob
from clusterctl.launcher.slurm.nodes import NO_LIMIT_SECONDS
from clusterctl.launcher.slurm.queue import JobState
from clusterctl.shared.errors import Cause, SlurmError
from clusterctl.shared.node.signals import EXIT_TERMINATED
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.plain_text import duration
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import CommandTrain, Job, Resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.launcher.observe.logs import JobOutput
    from clusterctl.launcher.slurm import Inventory, Slurm
    from clusterctl.shared.spec import Cluster

_RUNNING = "running"  # RankTrace.state: it has begun
_NOT_LAUNCHED = 53  # slurmd's "signal", 0:53, if it cannot set up a batch script
_SILENT_SECONDS = 1800.0  # without a new line of output
# The number in slurm-123.out. That in slurm-12_3.out is the array's, which Slurm's lines do not mention.
_IN_NAME = re.compile(r"(?:\D*[^\d_])?(?P<number>\d{1,10})(?:[^\d_]\D*)?", re.ASCII)
_JOB_IN_LINE = re.compile(r"(?:\bStepId=|\bstep |\*\*\* (?:STEP|JOB) )(?P<number>\d+)", re.ASCII | re.IGNORECASE)
_NODE_IN_LINE = re.compile(r"srun: error: (?P<name>[\w.-]+): tasks? \d", re.ASCII)
_REPORT = re.compile(r"(?<!\s)(?=srun: error: \S+: tasks? [\d,-]+: [\w ]+$)")
_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r"(?: *\d+: )?(?:\[[\w:.-]+\]:)?[ \t]")  # perhaps with the prefix of its rank
_LAST_LINES = 30  # among which srun's reports are
_BEFORE_PROGRAM = frozenset({Cause.LAUNCH, Cause.IMAGE})
_STATE_OF_CAUSE = {Cause.TIME: State.TIMED_OUT, Cause.CANCELLED: State.CANCELLED, Cause.PREEMPTED: State.PREEMPTED}


def diagnose_job(
    job: SlurmJob, output: JobOutput, cluster: Cluster, slurm: Slurm, now: float, unknown: Sequence[str] = ()
) -> Diagnosis:
    """Why `job` is waiting or has failed, or what is known while it runs.

    A waiting job costs two more requests to Slurm, a running one one. What Slurm does not answer is listed in
    `unknown`.
    """
    trace = trace_of(job, output, cluster, now)
    trace = replace(trace, unknown=(*unknown, *output.unknown))
    status = trace.status
    if status.state is State.QUEUED:
        waiting = explain(gather_pending(status, slurm))
        found = Finding(Cause.PENDING, waiting.cause, facts=waiting.facts, hint=waiting.hint)
        unknown = (*trace.unknown, *waiting.unknown)
        return Diagnosis(status, (found, *_also(found, trace)), commands(trace, found), unknown)
    if status.state is State.FINISHED:
        failed = [step for step in trace.accounted if "." in step.step and (step.exit_code or step.signal)]
        facts = [f"step {step.step} ended with exit code {step.exit_code}:{step.signal}" for step in failed[:3]]
        done = Finding(Cause.FINISHED, "the job completed: its batch script exited with 0", facts=tuple(facts))
        return Diagnosis(status, (done, *_also(done, trace)), commands(trace, done), trace.unknown)
    if job.signal == _NOT_LAUNCHED and not (output.lines or output.printed):
        return _not_launched(trace, job)
    if status.state.ended or status.suspended:
        judged = judge(trace)
        mine = [_as_proven(_of_job(one, trace), trace, job) for one in judged.findings]
        also = _also(judged.headline, trace)
        ignored = [*trace.attempts] and len(deaths(output.lines)) > len(deaths(trace.attempts[0].lines))
        if also or (ignored and mine[0].certainty == CERTAIN):
            mine[0] = replace(mine[0], certainty=LIKELY)  # what the output shows may have come first
        return replace(judged, findings=(*mine, *also))
    try:
        inventory = slurm.nodes()
    except SlurmError as error:
        inventory, trace = None, replace(trace, unknown=(*trace.unknown, f"the state of its nodes: {error.message}"))
    return _running(trace, job, output, inventory)


def diagnose_output(name: str, output: JobOutput, cluster: Cluster, now: float) -> Diagnosis:
    """What `output` shows, called `name`, without asking Slurm: nothing about the job's state or exit code is known."""
    number = _IN_NAME.fullmatch(name)
    job = SlurmJob(name, JobState.UNKNOWN, number["number"] if number else "", work_dir=str(Path.cwd()))
    trace = replace(trace_of(job, output, cluster, now), unknown=output.unknown)
    found = explain_attempt(trace.attempts[0], trace)
    if found.cause_class is Cause.UNKNOWN and not output.unknown:
        words = "nothing in it shows why the job ended, or whether it has ended"
        hint = f"for what Slurm knows: clusterctl why {job.number or 'JOBID'}"
        found = Finding(Cause.UNKNOWN, words, UNSURE, hint=hint)
    elif found.cause_class is Cause.UNKNOWN:
        found = Finding(Cause.UNKNOWN, "its output cannot be read", UNSURE)
    elif job.number == "" or found.cause_class is Cause.KILLED or _may_go_on(trace.attempts[0]):
        # Lines may be about another job; Slurm may know that memory was short; the script may have gone on.
        found = replace(found, certainty=LIKELY)
    state = State.LOST if found.cause_class is Cause.UNKNOWN else _STATE_OF_CAUSE.get(found.cause_class, State.FAILED)
    status = replace(trace.status, state=state, sure=False)
    return Diagnosis(status, (_of_job(found, trace),), (), trace.unknown)


def trace_of(job: SlurmJob, output: JobOutput, cluster: Cluster, now: float) -> RunTrace:
    """The evidence about `job`, as the rules for runs read it."""
    attempt = _attempt_of(job, output)
    started = job.started is not None and (job.nodes != "" or not job.state.ended)
    attempts = (attempt,) if started or job.state is JobState.UNKNOWN else ()
    status = Status(
        record=record_of(job, cluster),
        state=state_of_job(job.state),
        sure=True,
        job_id=job.job_id if job.state is not JobState.UNKNOWN else None,
        attempts=attempts,
        cancelling=False,
        reason="Suspended" if job.state is JobState.SUSPENDED else job.reason if job.state.waiting else "",
        started=job.started,
        ended=job.ended,
        suspended=job.state in (JobState.SUSPENDED, JobState.STOPPED),
    )
    steps = job.steps or (Accounted(job.job_id, job.state.value, "", job.exit_code or 0, job.signal, job.nodes),)
    return RunTrace(status, now, attempts, accounted=steps if job.state.ended else ())


def record_of(job: SlurmJob, cluster: Cluster) -> RunRecord:
    """What was requested, as the record of a run: there is no such run directory."""
    resources = Resources(
        nodes=job.node_count,
        tasks_per_node=1,
        cpus_per_task=max(1, (job.cpus or 1) // job.node_count),
        gpus_per_node=job.gpus_per_node,
        memory=None if job.memory is None else f"{job.memory}M",
        time=job.limit or NO_LIMIT_SECONDS,
        partition=job.partition or None,
        constraint=job.constraint or None,
        exclusive=job.is_exclusive,
        requeue=job.requeues,
    )
    made = Job(name=job.name or job.job_id, workload="command", resources=resources, train=CommandTrain())
    run = RunDir(Path(job.work_dir or "/") / job.job_id)
    return RunRecord(run, job.submitted or job.started or 0.0, made, cluster, is_plain_job=True)


def _attempt_of(job: SlurmJob, output: JobOutput) -> AttemptTrace:
    """The job's last start: its batch script's output, as that of the task which failed first according to srun."""
    # srun's reports of failed tasks may follow a line without an end that was written before.
    ends = [part for line in output.lines[-_LAST_LINES:] for part in _REPORT.split(line, maxsplit=1) if part]
    parted = (*output.lines[:-_LAST_LINES], *ends)
    lines = _untangled(line for line in parted if not _is_about_another(line, job))
    lines = _without_survived_steps(lines, job)
    written = (*output.printed, *_without_survived(lines, job))
    slurms = tuple(line for line in written if SLURMS_LINE.match(line) and not _is_about_another(line, job))
    died = deaths(slurms)
    code = died[0].code if died else _exit_code(job, lines)
    if code == EXIT_TERMINATED and not died and most_specific(last_words(lines).telling):
        code = 1  # what was terminated may have been the rest of a step that failed
    if died and died[0].by_kill and last_words(lines).errors:
        code = 1  # srun reports this for each task on the node
    rank = RankTrace(
        died[0].rank if died else 0,
        node=died[0].node if died else job.nodes if job.node_count == 1 else "",
        state=_RUNNING,
        exit_code=code,
        last_words=lines,
        printed=output.printed,
        is_mixed=output.is_mixed or job.tasks > 1 or len(died) > 1,
        may_go_on=not job.state.ended or job.state is JobState.COMPLETED,
    )
    # What those that a signal killed wrote is among the same lines, if anything.
    killed = [death for death in died[1:] if death.rank != died[0].rank and death.by_kill]
    others = {death.rank: RankTrace(death.rank, death.node, _RUNNING) for death in killed}
    if problem := _launch_problem(lines):
        rank = replace(rank, state="", last_words=problem)
    return AttemptTrace(
        0,
        job_id=job.number,
        restart_count=job.restarts,
        nodes=job.nodes,
        start=job.started,
        end=job.ended,
        exit_code=_exit_code(job, lines),
        limit=job.limit,
        tasks=job.tasks,
        whole=False,  # the others wrote to the same files
        lines=slurms,
        job_lines=slurms,
        ranks=(rank, *others.values()),
    )


def _untangled(lines: Iterable[str]) -> tuple[str, ...]:
    """`lines`, with those of Slurm after the traceback into which they were written: srun shares the job's stderr."""
    found: list[str] = []
    held: list[str] = []
    inside = False
    for line in lines:
        if inside and SLURMS_LINE.match(line):
            held.append(line)
            continue
        found.append(line)
        goes_on = inside and _FRAME.match(line) is not None
        if inside and not goes_on:
            found += held
            held.clear()
        inside = goes_on or line.endswith(_HEADER)
    return (*found, *held)


def _may_go_on(attempt: AttemptTrace) -> bool:
    """Whether the output goes on after Slurm's first report of a failed task, or has none, or gives no reason.

    A script may test an exit code, and go on without a word.
    """
    lines = attempt.ranks[0].last_words
    at = next((at for at, line in enumerate(lines) if deaths([line]) or job_ends([line])), len(lines))
    if at == len(lines) or any(not SLURMS_LINE.match(line) for line in lines[at:]):
        return True
    words = last_words(lines)
    return not (words.errors or words.last or job_ends(attempt.lines))


def _without_survived(lines: Sequence[str], job: SlurmJob) -> list[str]:
    """`lines` without lost nodes that the job survived: it went on writing, and Slurm records another end."""
    last_own = max((at for at, line in enumerate(lines) if not SLURMS_LINE.match(line)), default=-1)
    survived = job.state.ended and job.state is not JobState.NODE_FAIL
    return [line for at, line in enumerate(lines) if not (survived and at < last_own and lost_nodes([line]))]


def _is_about_another(line: str, job: SlurmJob) -> bool:
    """Whether Slurm wrote it about another job, whose log this one may have printed."""
    if not SLURMS_LINE.match(line):
        return False
    other, node = _JOB_IN_LINE.search(line), _NODE_IN_LINE.match(line)
    if other is not None:
        return job.number not in ("", other["number"])
    return node is not None and job.nodes != "" and not job.runs_on(node["name"])


def _without_survived_steps(lines: tuple[str, ...], job: SlurmJob) -> tuple[str, ...]:
    """`lines` without Slurm's about killed steps, if the script says that it goes on, and ended with another code."""
    ended = [at for at, line in enumerate(lines) if SLURMS_LINE.match(line) and (deaths([line]) or job_ends([line]))]
    if job.state is not JobState.FAILED or job.exit_code in (0, None) or job.signal:
        return lines
    for at in reversed(ended):
        codes = {128 + SIGKILL if death.code is None else death.code for death in deaths(lines[: at + 1])}
        own = next((line for line in lines[at:] if not SLURMS_LINE.match(line)), "")
        if job.exit_code not in codes and survived(own):
            return (*(line for line in lines[:at] if not SLURMS_LINE.match(line)), *lines[at + 1 :])
    return lines


def _exit_code(job: SlurmJob, lines: tuple[str, ...]) -> int | None:
    """The batch script's exit code as a shell has it: 128 and the number of a signal that killed it."""
    if job.state is JobState.OUT_OF_MEMORY:  # shown as 0:125, whatever the kernel killed
        words = last_words(lines)
        return 1 if words.errors or COMPLAINT.search(words.last) else 128 + SIGKILL
    words = last_words(lines)
    if job.state is JobState.UNKNOWN and not words.errors and re.search(r"\bKilled\b", words.ended_child):
        return 128 + SIGKILL
    return 128 + job.signal if job.signal else job.exit_code


def _as_proven(found: Finding, trace: RunTrace, job: SlurmJob) -> Finding:
    """`found`, not certain unless Slurm's record proves it, or the end of a task that ended the job.

    A batch script may go on after a program that failed, and exit with the code of another.
    """
    if job.state is JobState.DEADLINE and found.cause_class is Cause.TIME:
        return replace(found, cause="its deadline passed (sbatch --deadline)")
    if job.state is JobState.OUT_OF_MEMORY and found.cause_class is not Cause.HOST_MEMORY:
        words = f"the kernel killed a process of the job for lack of memory; its output shows: {found.cause}"
        return replace(found, cause_class=Cause.HOST_MEMORY, cause=words, certainty=LIKELY)
    if not trace.attempts or job.signal or job.state not in (JobState.FAILED, JobState.UNKNOWN):
        return found
    attempt = trace.attempts[0]
    codes = {128 + SIGKILL if death.code is None else death.code for death in attempt.deaths}
    with_others = ended_together(attempt.lines) and job.exit_code in (EXIT_TERMINATED, 128 + SIGKILL)
    proven = job.exit_code in codes or (codes and with_others)
    return found if proven or found.certainty != CERTAIN else replace(found, certainty=LIKELY)


def _launch_problem(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines from which on Slurm reports that it could not start the program; none if it could.

    The batch script may have printed something before.
    """
    at = next((at for at, line in enumerate(lines) if SLURMS_LINE.match(line) and most_specific([line])), len(lines))
    rest = lines[at:]
    known = most_specific(rest)
    if known is None or known.cause not in _BEFORE_PROGRAM or last_words(lines).errors or last_words(rest).own:
        return ()
    return rest


def _not_launched(trace: RunTrace, job: SlurmJob) -> Diagnosis:
    """Slurm gave up before the batch script's first line, most often because it could not open its output."""
    folders = [Path(path).parent for path in (job.stdout, job.stderr)]
    missing = next((str(folder) for folder in folders if not folder.is_dir()), "")
    words, fact = "Slurm could not start its batch script", "most often, it cannot create the output file there"
    if missing:
        words, fact = f"{words}: the folder of its output does not exist: {missing}", ""
    hint = f"mkdir -p {shlex.quote(missing)}" if missing else ""
    facts = (fact,) if fact else ()
    found = Finding(Cause.LAUNCH, words, LIKELY, node=job.first_node, facts=facts, hint=hint)
    return Diagnosis(trace.status, (found,))


def _also(headline: Finding, trace: RunTrace) -> tuple[Finding, ...]:
    """An error in the output of a job that did not end because of it, as far as Slurm shows."""
    unrelated = (Cause.FINISHED, Cause.TIME, Cause.CANCELLED, Cause.PREEMPTED, Cause.PENDING)
    found = _in_output(trace) if headline.cause_class in unrelated else None
    return (found,) if found else ()


def _in_output(trace: RunTrace) -> Finding | None:
    """What the output alone shows, without a claim that anything ended because of it."""
    if not trace.attempts:
        return None
    attempt = trace.attempts[0]
    words = last_words(attempt.ranks[0].last_words)
    ended = words.worker or any(not (error.after or error.logged) for error in words.final)
    if not (ended or attempt.deaths):
        return None  # programs write about what they survive
    ranks = tuple(replace(rank, exit_code=None, may_go_on=True) for rank in attempt.ranks)
    running = replace(trace.status, state=State.FAILED)
    alone = replace(attempt, exit_code=None, job_lines=(), ranks=ranks)
    found = explain_attempt(alone, replace(trace, status=running, attempts=(alone,), accounted=()))
    if found.cause_class in (Cause.UNKNOWN, Cause.CANCELLED):
        return None
    return replace(_of_job(found, trace), certainty=LIKELY, cause=f"its output shows: {found.cause}")


def _running(trace: RunTrace, job: SlurmJob, output: JobOutput, inventory: Inventory | None) -> Diagnosis:
    """What is known about a running job: where, since when, what its output shows, and nodes that are in trouble."""
    where = f" on {job.nodes}" if job.nodes else ""
    since = "" if job.started is None else f" for {duration(trace.now - job.started)}"
    facts, findings = [], []
    if output.changed is not None:
        quiet = max(0.0, trace.now - output.changed)
        stuck = quiet > _SILENT_SECONDS
        facts.append(f"last output: {duration(quiet)} ago" + ("; it may be stuck, or log nothing" if stuck else ""))
    for node in inventory.nodes.values() if inventory else ():
        if job.runs_on(node.name) and node.state in ("down", "fail", "error"):
            words = f"its node is {node.state}" + (f": {node.reason}" if node.reason else "")
            findings.append(Finding(Cause.NODE, words, LIKELY, node=node.name))
    if (found := _in_output(trace)) is not None:
        findings.append(replace(found, facts=(*found.facts, "the job is still running")))
    findings.append(Finding(Cause.HEALTHY, f"running{where}{since}", LIKELY, facts=tuple(facts)))
    return Diagnosis(trace.status, tuple(findings), commands(trace, findings[0]), trace.unknown)


def _of_job(found: Finding, trace: RunTrace) -> Finding:
    """`found` without what only a run has; the rank is kept where the output shows it."""
    rank = None
    words = last_words(trace.attempts[0].ranks[0].last_words) if trace.attempts else None
    if words and not words.worker:  # a launcher's ranks are not srun's
        # The rank in the prefix of the exception's lines, else the only task that failed on its own.
        prefix = next((error.stream for error in words.errors if found.traceback == error.text), "")
        named, died = prefix.removeprefix("rank"), {death.rank for death in trace.attempts[0].deaths}
        if named.isdecimal():
            rank = int(named) if int(named) in died or not died else None
        elif len(died) == 1 or (died and found.cause_class is Cause.KILLED):
            rank = found.rank
    return replace(found, attempt=None, state="", step=None, rank=rank, secondary=())

"""The files of a run, parsed: the evidence that `state` judges, and the trend of the loss that `learning` judges."""

from __future__ import annotations

import math
import textwrap
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, NamedTuple

from clusterctl.launcher.observe.lines import last_lines, log_lines
from clusterctl.launcher.observe.measurements import Pace, measurements_in, newest_values, pace_of
from clusterctl.launcher.observe.rank_events import deaths, newest_state
from clusterctl.launcher.observe.run_names import submission as submission_of
from clusterctl.launcher.observe.run_record import (
    read_cancellation,
    read_finish,
    read_submission,
    read_successor,
)
from clusterctl.launcher.observe.slurm_log import EndedBy, read_end
from clusterctl.launcher.observe.telemetry import NOT_MEASURED, NodesNow, Used, nodes_now, used_by
from clusterctl.launcher.slurm.queue import JobState
from clusterctl.shared.node.node_check import EXIT_UNFIT, failed_nodes
from clusterctl.shared.node.signals import EXIT_TERMINATED
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import modified_at, names_in, read_beginning, read_regular, status_of
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.marks import EXIT_RESTART, Refusal, all_done, asked_for_restart
from clusterctl.shared.record.metrics import score_of
from clusterctl.shared.spec.values import parse_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.observe.rank_events import Death
    from clusterctl.launcher.observe.run_record import RunRecord, Successor
    from clusterctl.launcher.slurm import QueuedJob
    from clusterctl.shared.record.fields import Fields
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.metrics import Metric, Number
    from clusterctl.shared.record.states import State


_LONGEST_SETUP_LINE = 100
_MOST_LOST_BYTES = 65536
_WAS_SPARE = "-"  # instead of the node that has replaced it
EXIT_NO_COMMAND = 127  # of a shell
# Of metrics.jsonl: the last evaluation may be hundreds of steps back, but not in a run that has ended.
_TAIL_BYTES, _TAIL_OF_ENDED_BYTES = 65536, 16384


class LeftOut(NamedTuple):
    """A node of the job that its ranks do not have: the spare one that it was replaced by, if any.

    `why` is "lost" (the guards noticed, `shared/node/guard.py`), "down" (Slurm did), "drained", "check", "gpu" (one is
    broken), or "killed" (ranks were, twice at one step).
    """

    node: str
    why: str
    by: str

    def __str__(self) -> str:
        reasons = {"lost": "it did not answer", "down": "Slurm lost it", "check": "it failed its check"}
        reasons["gpu"] = "a GPU there is broken"
        reasons["killed"] = "a rank was killed there after one had been killed at the same step"
        why = reasons.get(self.why, f"it was {self.why}")
        if self.by == _WAS_SPARE:
            return f"the spare node {self.node} was left out: {why}"
        return f"{self.node} replaced by the spare node {self.by}: {why}" if self.by else f"without {self.node}: {why}"


class Kills(NamedTuple):
    """A rank was killed when `step` was the last one logged, `times` in a row; `without`: the node then left out."""

    step: int
    times: int
    without: str

    def __str__(self) -> str:
        node = f"without {self.without}" if self.without else "and no node is to blame"
        return f"a rank was killed {self.times} times in a row at step {self.step}, {node}"


class Grown(NamedTuple):
    """What a run was short of, "memory" or "time", how much it had, and how much its next job gets: MiB or seconds."""

    what: str
    had: int
    gets: int


class SetupFlaw(NamedTuple):
    """A line of `setup` that failed: its number, counting the cluster's lines and then the job's."""

    line: int
    code: int


class NodeSetupFlaw(NamedTuple):
    """A line of `node_setup` that failed: its node, number and exit code, and the last line that it printed."""

    node: str
    line: int
    code: int
    last: str = ""


@dataclass(frozen=True)
class HostRecord:
    """host.json, written by an attempt's batch script. `exit_code` is None until the script has ended.

    `signal` is the signal the script received. `asked`: a task requested a restart, which an exit code of 75 alone does
    not prove; `unasked`: on behalf of a program that had left after the warning, `unproven`: without a sign that it had
    saved. `requeuing`: the script is asking Slurm to requeue the job, or was ended meanwhile; `requeue_problem` is
    Slurm's last refusal. `requeued`: Slurm has agreed. `restarting`: the script starts the next attempt in the same
    job. `refused` is why the script did not try although a restart was needed. `limit` is the job's time limit in
    Slurm at that time, which an administrator may have changed, in seconds. `disk_full`: it could not write;
    `no_work`: it could not create the run's working directory; `problem`: why the file could not be read; `unfit`:
    the nodes that failed the check before the ranks started, with the reason. `rank_count`: its ranks, if the job may
    go on with fewer; `left_out`: nodes of the job that they do not have; `excluded`: those that Slurm does not give to
    the next attempt; `lost`: those of the attempt that no longer
    answered the others; `script_node`: where the script runs. `copied`: somebody copied another
    attempt's folder. `setup`: the lines of `setup` that failed; `setup_ended`: the one that ended the attempt, 0
    after a syntax error. `node_setup_start`, `node_setup_end`: when the lines of `node_setup` ran on the nodes;
    `node_setup`: those that failed, and so ended the attempt. `job_state`: how the job of a batch script ended in
    Slurm; `killed_by`: the signal that ended the script. `grown`: it was short of memory or time, and its next job gets
    more. `kills`: a rank was killed, perhaps as in the attempt before.
    """

    number: int
    job_id: str = ""
    restart_count: int = 0
    nodes: str = ""
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    signal: str = ""
    asked: bool = False
    unasked: bool = False
    unproven: bool = False
    requeuing: bool = False
    requeue_problem: str = ""
    requeued: bool = False
    restarting: bool = False
    refused: Refusal | None = None
    limit: int | None = None
    disk_full: bool = False
    no_work: bool = False
    setup: tuple[SetupFlaw, ...] = ()
    setup_ended: int | None = None
    node_setup_start: float | None = None
    node_setup_end: float | None = None
    node_setup: tuple[NodeSetupFlaw, ...] = ()
    problem: str = ""
    unfit: Mapping[str, str] = field(default_factory=dict)
    rank_count: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    excluded: tuple[LeftOut, ...] = ()
    lost: tuple[str, ...] = ()
    script_node: str = ""
    job_state: JobState | None = None
    killed_by: int | None = None
    copied: bool = False
    grown: Grown | None = None
    kills: Kills | None = None

    @property
    def goes_on(self) -> bool:
        """Whether its script has arranged for another attempt, or was doing so when it ended."""
        return self.requeued or self.requeuing or self.restarting


def read_host(attempt: Attempt) -> HostRecord:
    """The only reader of host.json; missing or damaged fields keep their defaults."""
    fields = read_fields(attempt.host_json)
    exit_code = fields.whole("exit_code")
    unfit = failed_nodes(attempt) if exit_code == EXIT_UNFIT else {}
    return HostRecord(
        number=attempt.number,
        job_id=fields.digits("job_id"),
        restart_count=fields.whole("restart_count") or 0,
        nodes=fields.text("nodes"),
        start=fields.moment("start"),
        end=fields.moment("end"),
        exit_code=exit_code,
        signal=fields.text("signal"),
        asked=exit_code == EXIT_RESTART and (fields.flag("asked") or asked_for_restart(attempt)),
        unasked=fields.flag("unasked"),
        unproven=fields.flag("unproven"),
        requeuing=fields.flag("requeuing"),
        requeue_problem=fields.text("requeue_problem"),
        requeued=fields.flag("requeued"),
        restarting=fields.flag("restarting"),
        refused=fields.member("refused", Refusal),
        limit=parse_limit(fields.text("limit")),
        disk_full=fields.flag("disk_full"),
        no_work=fields.flag("no_work"),
        setup=tuple(
            SetupFlaw(line, code)
            for one in fields.tables("setup")
            if (line := one.whole("line")) is not None and (code := one.whole("code")) is not None
        ),
        setup_ended=fields.whole("setup_ended"),
        node_setup_start=fields.moment("node_setup_start"),
        node_setup_end=fields.moment("node_setup_end"),
        node_setup=tuple(_failed_on_nodes(attempt)) if fields.flag("node_setup_failed") else (),
        problem=fields.problem,
        unfit=unfit,
        rank_count=fields.whole("ranks"),
        left_out=_left_out(fields, "left_out"),
        excluded=_left_out(fields, "excluded") or tuple(LeftOut(node, "check", "") for node in unfit),
        lost=fields.texts("lost") if exit_code is not None else _missed(attempt, fields),
        script_node=fields.text("host"),
        job_state=fields.member("job_state", JobState),
        killed_by=fields.whole("killed_by"),
        copied=fields.whole("attempt") not in (None, attempt.number),
        grown=_grown(fields.table("grown")),
        kills=_kills(fields.table("kills")),
    )


def _left_out(fields: Fields, name: str) -> tuple[LeftOut, ...]:
    found = ((one.text("node"), one.text("why"), one.text("by")) for one in fields.tables(name))
    return tuple(LeftOut(*one) for one in found if one[0])


def _grown(fields: Fields) -> Grown | None:
    what, had, gets = fields.text("what"), fields.whole("had"), fields.whole("gets")
    return Grown(what, had, gets) if what in ("memory", "time") and had is not None and gets is not None else None


def _kills(fields: Fields) -> Kills | None:
    step, times = fields.whole("step"), fields.whole("times")
    return Kills(step, times, fields.text("without")) if step is not None and times is not None else None


def _missed(attempt: Attempt, host: Fields) -> tuple[str, ...]:
    """The nodes of an attempt that no longer answer the others; its script may be on one of them."""
    if (number := host.whole("guards")) is None:
        return ()
    folder = RunDir(attempt.path.parents[1]).attempt(number).guards
    with suppress(OSError, UnicodeDecodeError):
        missed = read_beginning(folder / "lost", _MOST_LOST_BYTES).decode().split()
        return tuple(node for node in host.text("nodes").split(",") if node in missed)
    return ()


def _failed_on_nodes(attempt: Attempt) -> Iterator[NodeSetupFlaw]:
    """What the nodes recorded whose lines of `node_setup` failed; others may have been ended for that."""
    with suppress(OSError):
        for name in sorted(names_in(attempt.node_setup)):
            fields = read_fields(attempt.node_setup / name) if name.endswith(".json") else None
            if fields and (line := fields.whole("line")):
                printed = last_lines(attempt.node_setup / f"{name.removesuffix('.json')}.log")
                last = next((text for one in reversed(printed) if (text := one.decode(errors="replace").strip())), "")
                yield NodeSetupFlaw(fields.text("node"), line, fields.whole("code") or 0, last)


def node_setup_flaws(host: HostRecord, record: RunRecord) -> list[str]:
    """The lines of `node_setup` that failed, in words, each with its node."""
    found = []
    for flaw in host.node_setup:
        text = record.job.node_setup[flaw.line - 1] if flaw.line <= len(record.job.node_setup) else ""
        line = textwrap.shorten(text, _LONGEST_SETUP_LINE, placeholder=" ...")
        how = "command not found" if flaw.code == EXIT_NO_COMMAND else f"exit code {flaw.code}"
        found.append(f"node_setup line {flaw.line} on {flaw.node}: {line} ({how})")
    return found


def flawed_lines(host: HostRecord, record: RunRecord) -> list[str]:
    """The lines of `setup` that failed, in words; the one that ended the attempt comes first."""
    setup = (*record.cluster.setup, *record.job.setup)
    codes = {flaw.line: flaw.code for flaw in host.setup}
    found = []
    for number in dict.fromkeys([*([] if host.setup_ended is None else [host.setup_ended]), *codes]):
        if not 0 < number <= len(setup):
            found.append("setup: not all of its lines ran, because of a syntax error")
            continue
        line, code = textwrap.shorten(setup[number - 1], _LONGEST_SETUP_LINE, placeholder=" ..."), codes.get(number)
        how = "" if code is None else " (command not found)" if code == EXIT_NO_COMMAND else f" (exit code {code})"
        found.append(f"setup line {number}: {line}{how}")
    return found


@dataclass(frozen=True)
class Alarm:
    """The watchdog's record of a stuck attempt."""

    time: float
    seen: int
    phase: str
    still_seconds: float
    suspects: tuple[int, ...] = ()
    how: str = "unknown"


def read_alarm(path: Path) -> Alarm | None:
    """The alarm in hang.json or hang-report.json; None if there is none, or if it is damaged."""
    fields = read_fields(path)
    seen, suspects = fields.whole("seen"), fields.content.get("suspects")
    if seen is None:
        return None
    return Alarm(
        time=fields.moment("time") or 0.0,
        seen=seen,
        phase=fields.text("phase"),
        still_seconds=fields.number("still_seconds") or 0.0,
        suspects=tuple(rank for rank in suspects if type(rank) is int) if isinstance(suspects, list) else (),
        how=fields.text("how") or "unknown",
    )


@dataclass(frozen=True)
class AttemptEvidence(HostRecord):
    """One attempt: the batch script's record and, for the last attempt, the state of its ranks."""

    done: bool = False  # every rank exited with 0, though the batch script may have ended without recording it
    hung: str = ""  # ended by the watchdog: the symptom
    ended_by: EndedBy | None = None  # why Slurm ended the job; None: it did not, as far as its log shows
    in_vain: str = ""  # what a later start wrote that could not begin an attempt
    death: Death | None = None  # of the first task that failed on its own, as reported by srun
    state: State | None = None
    metrics: dict[str, Number] = field(default_factory=dict)
    pace: Pace | None = None
    gpu: float | None = None  # current mean GPU utilisation in percent
    idle_since: float | None = None  # last activity of a program that logs no steps, on any rank
    gpus_idle_since: float | None = None  # last activity of any GPU
    loss_trend: LossTrend | None = None  # of the loss, unless the training is clearly learning
    used: Used = NOT_MEASURED  # the most of its nodes' resources so far


@dataclass(frozen=True)
class Answer:
    """Slurm's answer: the run's job, or None if Slurm does not know it.

    `early`: the query preceded the submission, so the answer means nothing. `stale`: Slurm no longer answers.
    `elsewhere`: the run's ranks have just written, so its job is in the queue of another Slurm than this one.
    """

    job: QueuedJob | None
    early: bool = False
    stale: bool = False
    elsewhere: bool = False
    ended: JobState | None = None  # the end of a job that squeue no longer knows, from the accounting


@dataclass(frozen=True)
class RunEvidence:
    """All that is known about a run. `answer` is None if Slurm was not queried or did not answer."""

    record: RunRecord
    job_id: str | None
    cancelled_at: float | None
    finished_at: float | None
    attempts: tuple[AttemptEvidence, ...]
    answer: Answer | None = None
    submitted_at: float | None = None  # when sbatch returned
    never_wrote: bool = False  # the current job has not opened its log, so it has not started
    late_seconds: float = 0.0  # other nodes' changes to its files may take this long to appear here
    successor: Successor | None = None

    @property
    def job(self) -> QueuedJob | None:
        return self.answer.job if self.answer else None

    @property
    def last(self) -> AttemptEvidence | None:
        """The last attempt of the current job, as opposed to those before a resume."""
        found = self.attempts[-1] if self.attempts else None
        return found if found and found.number >= self.record.past_attempts else None


def read_evidence(record: RunRecord, before: RunEvidence | None = None, nodes: NodesNow | None = None) -> RunEvidence:
    """Read the run directory once. Missing and foreign files are ignored.

    For repeated reads: attempts that had ended `before` are not read again, nor is the state of the `nodes` if given.
    """
    run = record.run
    # The end markers come first: the attempts, read afterwards, are then at least as new.
    finish, cancellation, submission = read_finish(run), read_cancellation(run), read_submission(run)
    folders = run.attempts()
    past = before.attempts[:-1] if before else ()
    over = {attempt.number: attempt for attempt in past if attempt.exit_code is not None}
    attempts = [over.get(folder.number) or AttemptEvidence(**vars(read_host(folder))) for folder in folders]
    folders = [folder for folder, evidence in zip(folders, attempts, strict=True) if not evidence.copied]
    attempts = [evidence for evidence in attempts if not evidence.copied]
    successor = read_successor(run)
    if attempts:
        ranks = attempts[-1].rank_count or record.job.resources.nodes * record.tasks_per_node
        done = finish is None and all_done(folders[-1], ranks)
        last = replace(_with_its_ranks(attempts[-1], folders, ranks, nodes), done=done)
        if last.signal or last.goes_on if last.exit_code is not None else successor:
            ended_by, in_vain = read_end(run.path / "slurm.log", last.number, last.job_id)
            last = replace(last, ended_by=ended_by, in_vain=in_vain)
        attempts[-1] = last
    newest = attempts[-1].job_id if attempts else ""
    # An array element has two job ids: its own, which its batch script sees, and the one that squeue shows.
    reported = newest if submission_of(run.id) == run.id else ""
    known = [submission.job_id, reported]
    if successor and newest in successor.jobs:
        known.insert(0, newest)
        successor = successor.seen_from(newest)
    job_id = next((number for number in known if number and number not in record.past_jobs), None)
    if finish and attempts and finish.attempt not in (None, attempts[-1].number):
        finish = None  # from an attempt that was presumed lost and replaced
    cancelled_at, finished_at = cancellation.time if cancellation else None, finish.time if finish else None
    never_wrote = not attempts and modified_at(run.path / "slurm.log") / 1e9 < record.submitted
    return RunEvidence(
        record,
        job_id,
        cancelled_at,
        finished_at,
        tuple(attempts),
        submitted_at=submission.time,
        never_wrote=never_wrote,
        successor=successor,
    )


def _with_its_ranks(
    evidence: AttemptEvidence, folders: Sequence[Attempt], tasks: int, nodes: NodesNow | None
) -> AttemptEvidence:
    attempt, over = folders[-1], evidence.exit_code is not None
    lines = last_lines(attempt.metrics, _TAIL_OF_ENDED_BYTES if over else _TAIL_BYTES)
    newest = newest_values(lines)
    if over or nodes is None:
        nodes = NodesNow(used=used_by(attempt)) if over else nodes_now(attempt, tasks)
    alarm = read_fields(attempt.hang_json)
    death = None
    if evidence.exit_code:
        # Tasks that srun ended because of another one leave with this code, and may be reported before that one.
        reports = deaths(log_lines(attempt.host_log, head=True).lines)
        death = next((one for one in reports if one.code != EXIT_TERMINATED), None)
    return replace(
        evidence,
        hung="" if alarm.absent else alarm.text("how") or "unknown",
        death=death,
        state=newest_state(attempt),
        metrics=newest,
        loss_trend=read_loss_trend([folder.metrics for folder in folders], lines, newest),
        pace=None if over else pace_of(lines),
        gpu=nodes.gpu,
        idle_since=nodes.idle_since,
        gpus_idle_since=nodes.gpus_idle_since,
        used=nodes.used,
    )


# The trend of a training's loss, from both ends of its metrics.

LEAST_STEPS = 100  # of a training or fold: too few to draw conclusions below this
_LEAST_LOSSES = 20  # at either end, for a meaningful mean
_LEAST_BROKEN = 3  # in a row: mixed precision skips a step whose loss overflows, and continues
_LARGEST = 1e100  # beyond it, sums overflow
_LEAST_SHARE = 0.1  # of the planned steps: a warm-up of the learning rate takes time
_ENOUGH_STEPS = 1000  # if a tenth is more, or the planned number is unknown
_NEWEST = 100  # losses
_HEAD_BYTES = 8192  # about 30 steps
_BLOCK_BYTES = 65536
_LINE_BYTES = 4096  # hardly any is longer
_MOST_CLASSES = 10**9
_CLEARLY_LEARNT = 0.9  # of the loss of guessing: clearly below it, there is no need to look closer


class Mean(NamedTuple):
    """The mean of several losses."""

    value: float
    error: float  # standard error, assuming independence


@dataclass(frozen=True)
class LossTrend:
    """The mean loss of the first steps and of the newest ones, and the newest score.

    `steps`: completed so far, in this fold if there are folds. `first` is None if the beginning is unknown: the program
    logs no steps, or continued from another run. `broken`: the newest losses are "NaN" or "infinite", since the step
    `broken_since`.
    """

    steps: int
    first: Mean | None = None
    newest: Mean | None = None
    classes: int | None = None
    score: tuple[Metric, float] | None = None
    broken: str = ""
    broken_since: int | None = None


def mean_of(losses: Sequence[float]) -> Mean | None:
    """The mean of `losses`; None for too few or absurd values."""
    if len(losses) < _LEAST_LOSSES or not all(abs(loss) < _LARGEST for loss in losses):
        return None
    mean = math.fsum(losses) / len(losses)
    variance = math.fsum((loss - mean) * (loss - mean) for loss in losses) / (len(losses) - 1)
    return Mean(mean, math.sqrt(variance / len(losses)))


def broken(newest: Sequence[float]) -> str:
    """Whether the newest losses, newest first, are "NaN" or "infinite"; empty if they are numbers."""
    last = newest[:_LEAST_BROKEN]
    if len(last) < _LEAST_BROKEN or any(map(math.isfinite, last)):
        return ""
    return "NaN" if math.isnan(last[0]) else "infinite"


def read_loss_trend(files: Sequence[Path], lines: list[bytes], numbers: Mapping[str, Number]) -> LossTrend | None:
    """The trend of the run whose attempts wrote `files`; None if it is too short or the training is clearly learning.

    `lines` are the last lines of the last file, and `numbers` the newest value of each name in them.
    """
    if "loss" not in numbers:
        return None
    step, planned, folds = (float(numbers.get(name, 0)) for name in ("step", "steps", "folds"))
    own = step - (float(numbers.get("fold", 1)) - 1) * (planned / folds) if folds else step  # of the current fold
    steps = int(own) if math.isfinite(own) else 0
    classes = int(numbers["classes"]) if 2 <= numbers.get("classes", 0) < _MOST_CLASSES else None
    if not math.isfinite(numbers["loss"]):
        return LossTrend(steps, broken=broken(_newest_losses(lines, numbers)), broken_since=_broken_since(files))
    each = float(numbers.get("steps", math.inf)) / max(1.0, float(numbers.get("folds", 1)))
    too_few = steps < max(LEAST_STEPS, min(_LEAST_SHARE * each, _ENOUGH_STEPS))
    if too_few or (classes and numbers["loss"] < _CLEARLY_LEARNT * math.log(classes)):
        return None
    first = None if "fold" in numbers else mean_of(_first_losses(files))
    newest = mean_of([*filter(math.isfinite, _newest_losses(lines, numbers))])
    return LossTrend(steps, first, newest, classes, score_of(numbers, "val") or score_of(numbers, "test"))


def _newest_losses(lines: list[bytes], numbers: Mapping[str, Number]) -> list[float]:
    """The last losses of the current fold, newest first."""
    fold, found = numbers.get("fold"), list[float]()
    for measured in measurements_in(reversed(lines)):
        if measured.values.get("fold", fold) != fold or len(found) == _NEWEST:
            break
        found += _loss(measured.values)
    return found


def _first_losses(files: Sequence[Path]) -> list[float]:
    """The losses of the run's first steps; none if it started at a later step."""
    for path in files:
        records = _records(path, 0, _HEAD_BYTES)
        steps = [record["step"] for record in records if type(record.get("step")) is int]
        if steps:
            return [loss for record in records for loss in _loss(record)] if steps[0] <= LEAST_STEPS else []
    return []


def _broken_since(files: Sequence[Path]) -> int | None:
    """The step of the first non-finite loss after the last finite one.

    Found by bisection: a loss that has become NaN stays NaN, and the file may be long.
    """
    since = None
    for path in reversed(files):
        low = high = 0
        with suppress(OSError):
            high = status_of(path).st_size
        while high - low > _BLOCK_BYTES:
            middle = (low + high) // 2
            losses = [loss for record in _records(path, middle, _BLOCK_BYTES) for loss in _loss(record)]
            low, high = (middle, high) if losses and math.isfinite(losses[0]) else (low, middle)
        records = [record for record in _records(path, low, high - low + _LINE_BYTES) if _loss(record)]
        finite = [index for index, record in enumerate(records) if math.isfinite(record["loss"])]
        broken = records[finite[-1] + 1 :] if finite else records
        since = broken[0].get("step") if broken else since
        if finite:
            break
    return since if type(since) is int else None


def _loss(values: Mapping[str, Number]) -> list[float]:
    return [float(values["loss"])] if "loss" in values else []


def _records(path: Path, offset: int, size: int) -> list[dict[str, Number]]:
    """The values in the complete lines of a block, without a first partial line."""

    def read(file: IO[bytes]) -> bytes:
        file.seek(offset)
        return file.read(size)

    try:
        lines = read_regular(path, read).split(b"\n")[:-1]
    except OSError:
        return []
    return [measured.values for measured in measurements_in(lines[offset > 0 :])]

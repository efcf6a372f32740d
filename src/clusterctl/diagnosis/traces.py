"""Everything that a run left behind on its way to where it is, parsed: the evidence that `clusterctl why` judges.

Read once, from files; Slurm's accounting is asked only for what they leave open. What could not be read is told.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusterctl.errors import Cause, SlurmError
from clusterctl.observe.accounting import accounted
from clusterctl.observe.attempt import numbers_of
from clusterctl.observe.lines import NO_FILE, last_records
from clusterctl.runs.files import read_json
from clusterctl.runs.heartbeats import Beat, read_beat
from clusterctl.runs.requests import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import Attempt
    from clusterctl.slurm import Slurm
    from clusterctl.slurm.accounting import Accounted
    from clusterctl.spec import Cluster

_TAIL_BYTES = 16_384
_HOST_BYTES = 262_144
# What comes before what was printed: a time, and what torch.distributed puts before each line of a traceback.
_BEFORE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z? )?(\[rank\d+\]:( |$))?")


@dataclass(frozen=True)
class Raised:
    """An exception as a rank told it, in seconds since the epoch by its node's clock.

    One of ours carries its `cause`. Where a rank ran a program that failed, `code` is the program's, and `signal` what
    ended it.
    """

    time: float
    type: str
    message: str
    traceback: str
    hint: str = ""
    cause: Cause | None = None
    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class RankTrace:
    """One rank: how far it came, how it ended, its last heartbeat and its last words on stderr.

    `stacks` is what it told itself when the watchdog asked, at `answered`; `frozen` what faulthandler wrote the moment
    that a signal reached it: of a stopped process, where it stood before it was woken. `superseded`: a newer attempt
    came.
    """

    rank: int
    node: str = ""
    stage: str = ""
    raised: Raised | None = None
    exit_code: int | None = None
    ended: float | None = None
    superseded: bool = False
    answered: float | None = None
    stacks: str = ""
    frozen: str = ""
    beat: Beat | None = None
    last_words: tuple[str, ...] = ()

    @property
    def began(self) -> bool:
        return self.stage != ""


@dataclass(frozen=True)
class Alarm:
    """What the watchdog wrote when it ended the attempt."""

    time: float
    seen: int
    phase: str
    still_seconds: float
    suspects: tuple[int, ...] = ()
    how: str = "unknown"


@dataclass(frozen=True)
class AttemptTrace:
    """One attempt. `signal` is what its batch script got, `lines` what srun, slurmstepd and pyxis said into its log;
    `requeued` whether that script itself sent the job back to the queue, `refused` why it did not, although the attempt
    needed another one; `disk_full` whether it found no room to write.
    """

    number: int
    tasks: int
    start: float | None = None
    end: float | None = None
    exit_code: int | None = None
    signal: str = ""
    requeued: bool = False
    refused: Refusal | None = None
    disk_full: bool = False
    nodes: str = ""
    lines: tuple[str, ...] = ()
    ranks: tuple[RankTrace, ...] = ()
    alarm: Alarm | None = None
    collectives: int = 0  # files of NCCL's flight recorder

    def rank(self, number: int) -> RankTrace:
        return next((rank for rank in self.ranks if rank.rank == number), RankTrace(number))


@dataclass(frozen=True)
class Trace:
    """A run: its status, its attempts, what Slurm wrote and says, who cancelled it; `unknown` is what is missing."""

    status: Status
    now: float
    attempts: tuple[AttemptTrace, ...] = ()
    slurm_lines: tuple[str, ...] = ()
    cancelled: tuple[float, str] | None = None  # when, and by whom
    asked_again: dict[str, Any] = field(default_factory=dict)  # requeue.json
    accounted: tuple[Accounted, ...] = ()
    typed: tuple[str, ...] = ()  # the command line of its submission
    unknown: tuple[str, ...] = ()


def gather(status: Status, clock: Callable[[], float] = time.time) -> Trace:
    """Look at every file that the run of `status` left."""
    record = status.record
    run = record.run
    unknown: list[str] = []
    tasks = record.job.resources.nodes * record.tasks_per_node
    attempts = tuple(_attempt(attempt, tasks, unknown) for attempt in run.attempts())
    cancel, typed = _table(run.cancel_json), _table(run.run_json).get("argv")
    return Trace(
        status=status,
        now=clock(),
        attempts=attempts,
        slurm_lines=_lines(run.path / "slurm.log", _HOST_BYTES, unknown, missing_ok=True),
        cancelled=(float(numbers_of(cancel | {"at": cancel.get("time")}).get("at", 0)), str(cancel.get("by", "")))
        if run.cancel_json.exists()
        else None,
        asked_again=_table(run.requeue_json),
        typed=tuple(typed) if isinstance(typed, list) and all(isinstance(word, str) for word in typed) else (),
        unknown=tuple(unknown),
    )


def with_accounting(trace: Trace, slurm_of: Callable[[Cluster], Slurm]) -> Trace:
    """`trace` with what Slurm's accounting says of an ended job, where there is one; nothing depends on it."""
    run, cluster, job_id = trace.status.record.run, trace.status.record.cluster, trace.status.job_id
    if job_id is None or cluster.kind == "emulator" or not trace.status.stage.ended:
        return trace
    try:
        told = accounted({run: job_id}, slurm_of(cluster).accounted, patient=False)
        return replace(trace, accounted=told.get(run, ()))
    except SlurmError as error:
        return replace(trace, unknown=(*trace.unknown, f"Slurm's accounting: {error.message}"))


def _attempt(attempt: Attempt, tasks: int, unknown: list[str]) -> AttemptTrace:
    host = _table(attempt.host_json)
    numbers = numbers_of(host)
    events, errors = attempt.event_files(), attempt.log_files("err")
    ranks = sorted({*events, *errors})
    return AttemptTrace(
        number=attempt.number,
        tasks=tasks,
        start=numbers.get("start"),
        end=numbers.get("end"),
        exit_code=_whole(host, "exit_code"),
        signal=_text(host, "signal"),
        requeued=host.get("requeued") is True,
        refused=next((refusal for refusal in Refusal if refusal == host.get("refused")), None),
        disk_full=host.get("disk_full") is True,
        nodes=_text(host, "nodes"),
        lines=_lines(attempt.host_log, _HOST_BYTES, unknown, head=True),
        ranks=tuple(_rank(attempt, rank, unknown) for rank in ranks),
        alarm=_alarm(_table(attempt.hang_json)),
        collectives=sum(1 for _ in attempt.collectives.glob("rank_*")) if attempt.collectives.is_dir() else 0,
    )


def _rank(attempt: Attempt, number: int, unknown: list[str]) -> RankTrace:
    node, stage, stacks = "", "", ""
    raised: Raised | None = None
    superseded = False
    code: int | None = None
    ended: float | None = None
    answered: float | None = None
    try:
        events = last_records(attempt.events(number))
    except OSError as error:
        unknown.append(f"the events of rank {number}, attempt {attempt.number}: {error.strerror}")
        events = []
    for event in events:
        at = float(numbers_of({"at": event.get("time")}).get("at", 0.0))
        match event.get("event"):
            case "began":
                node = _text(event, "node") or _text(event, "host")
            case "stage":
                stage = _text(event, "stage") or stage
            case "exception" if raised is None:
                type_, message, text, hint = (_text(event, name) for name in ("type", "message", "traceback", "hint"))
                cause = next((cause for cause in Cause if cause == event.get("cause")), None)
                raised = Raised(at, type_, message, text, hint, cause, _whole(event, "code"), _whole(event, "signal"))
            case "hang":
                stacks, answered = _text(event, "stacks"), at
            case "superseded":
                superseded = True
            case "exit" if code is None:
                code, ended = _whole(event, "code"), at
    beat = read_beat(attempt.heartbeat(number))
    words = _lines(attempt.log(number, "err"), _TAIL_BYTES, unknown, missing_ok=True)
    return RankTrace(
        rank=number,
        node=node or (beat.host if beat else ""),
        stage=stage,
        raised=raised,
        exit_code=code,
        ended=ended,
        superseded=superseded,
        answered=answered,
        stacks=stacks,
        frozen=_frozen_stacks(attempt, number),
        beat=beat,
        last_words=tuple(_BEFORE.sub("", line) for line in words),
    )


def _frozen_stacks(attempt: Attempt, rank: int) -> str:
    try:
        return attempt.stacks(rank).with_suffix(".signal").read_text(errors="replace")[:_TAIL_BYTES]
    except OSError:
        return ""


def _alarm(table: dict[str, Any]) -> Alarm | None:
    numbers = numbers_of(table)
    seen = _whole(table, "seen")
    if seen is None:
        return None
    suspects = table.get("suspects")
    return Alarm(
        time=float(numbers_of({"at": table.get("time")}).get("at", 0.0)),
        seen=seen,
        phase=_text(table, "phase"),
        still_seconds=float(numbers.get("still_seconds", 0.0)),
        suspects=tuple(rank for rank in suspects if type(rank) is int) if isinstance(suspects, list) else (),
        how=_text(table, "how") or "unknown",
    )


def _lines(
    path: Path, most_bytes: int, unknown: list[str], *, head: bool = False, missing_ok: bool = False
) -> tuple[str, ...]:
    """The last lines of a log, as text; with `head`, of a longer one the first ones too, and not what lies between."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            begin = file.read(most_bytes).rpartition(b"\n")[0] + b"\n" if head and size > most_bytes else b""
            start = file.seek(max(len(begin), size - most_bytes))
            end = file.read(most_bytes)
    except NO_FILE:
        if not missing_ok:
            unknown.append(f"{path.parent.name}/{path.name}: there is no such file")
        return ()
    except OSError as error:
        unknown.append(f"{path.parent.name}/{path.name}: {error.strerror}")
        return ()
    if start > len(begin):  # in the middle of a line
        end = end.partition(b"\n")[2]
    text = (begin + end).decode(errors="replace").replace("\r", "\n")
    return tuple(line for line in text.split("\n") if line.strip())


def _table(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _whole(table: dict[str, Any], key: str) -> int | None:
    value = table.get(key)
    return value if type(value) is int else None


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""

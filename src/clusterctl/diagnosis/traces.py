"""Everything that a run left behind, parsed: the evidence that `clusterctl why` judges."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError
from clusterctl.observe.accounting import accounted
from clusterctl.observe.attempt import HostRecord, read_cancellation
from clusterctl.observe.rank_events import (
    Began,
    Entered,
    Exited,
    Frozen,
    Hung,
    Raised,
    TakenOver,
    WriterEnded,
    last_events,
)
from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import exists, open_regular
from clusterctl.runs.heartbeats import BEAT_SECONDS, ENDED, Beat, all_beats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.observe.attempt import Cancellation
    from clusterctl.observe.rank_events import Event
    from clusterctl.observe.stage import Status
    from clusterctl.runs.fields import Fields
    from clusterctl.runs.layout import Attempt
    from clusterctl.slurm import Slurm
    from clusterctl.slurm.accounting import Accounted
    from clusterctl.spec import Cluster

SILENT_SECONDS = 20.0  # a rank writes every second; file systems and clocks may hold that up for a while
_LOOKS = 3
_TAIL_BYTES = 16_384
_HOST_BYTES = 262_144
_BEGAN = re.compile(r"=== (?P<number>\d{1,9}) ===$", re.ASCII)  # by launch/batch.sh
# What comes before what was printed: a time, and what torch.distributed puts before each line of a traceback.
_BEFORE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z? )?(\[rank\d+\]:( |$))?")


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
    writer: WriterEnded | None = None  # the last time that the writer of its node had ended
    beat: Beat | None = None
    last_words: tuple[str, ...] = ()

    @property
    def began(self) -> bool:
        return self.stage != ""


@dataclass(frozen=True)
class Alarm:
    """What the watchdog wrote when it found the attempt stuck."""

    time: float
    seen: int
    phase: str
    still_seconds: float
    suspects: tuple[int, ...] = ()
    how: str = "unknown"


@dataclass(frozen=True)
class AttemptTrace(HostRecord):
    """One attempt: what its batch script wrote, and its ranks.

    `lines` of srun, slurmstepd and pyxis are from its own log, `job_lines` from that of the job, which attempts share.
    """

    tasks: int = 1
    lines: tuple[str, ...] = ()
    job_lines: tuple[str, ...] = ()
    ranks: tuple[RankTrace, ...] = ()
    alarm: Alarm | None = None
    reported: Alarm | None = None  # an alarm that ended nothing
    collectives: int = 0  # files of NCCL's flight recorder

    def rank(self, number: int) -> RankTrace:
        return next((rank for rank in self.ranks if rank.rank == number), RankTrace(number))


@dataclass(frozen=True)
class RunTrace:
    """A run: its status, its attempts, what Slurm wrote and knows, who cancelled it; `unknown` is what is missing."""

    status: Status
    now: float
    attempts: tuple[AttemptTrace, ...] = ()
    slurm_lines: tuple[str, ...] = ()
    cancelled: Cancellation | None = None
    accounted: tuple[Accounted, ...] = ()
    unknown: tuple[str, ...] = ()
    clocks: Mapping[str, float] = field(default_factory=dict)  # node -> the seconds by which its clock is off


def gather(status: Status, clock: Callable[[], float] = time.time) -> RunTrace:
    """Look at every file that the run of `status` left."""
    run, unknown = status.record.run, list[str]()
    slurm_lines = _lines(run.path / "slurm.log", _HOST_BYTES, unknown, missing_ok=True)
    job_lines = by_attempt(slurm_lines)
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    return RunTrace(
        status=status,
        now=clock(),
        attempts=tuple(
            replace(_attempt(folder, host, tasks, unknown), job_lines=job_lines.get(host.number, ()))
            for host in status.attempts
            if exists((folder := run.attempt(host.number)).path)
        ),
        slurm_lines=slurm_lines,
        cancelled=read_cancellation(run),
        unknown=tuple(unknown),
    )


def listen_again(
    trace: RunTrace, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> RunTrace:
    """`trace` with the heartbeats as a second look finds them, in the times of this machine's clock.

    Where heartbeats seem old, their nodes' clocks may be off: a rank is alive if it has written anew since the first
    look. Takes no time where all of them seem fresh.
    """
    beats = {rank.rank: rank.beat for rank in trace.attempts[-1].ranks if rank.beat and rank.beat.phase != ENDED}
    if all(abs(trace.now - beat.time) <= SILENT_SECONDS for beat in beats.values()):
        return trace
    attempt, unheard = trace.status.record.run.attempt(trace.attempts[-1].number), set(beats)
    for _ in range(_LOOKS):
        sleep(BEAT_SECONDS)
        later = {rank: beat for rank, beat in all_beats(attempt).items() if rank in unheard}
        unheard -= {rank for rank, beat in later.items() if beat.time != beats[rank].time}
        beats |= later
        if not unheard:
            break
    now = clock()
    offsets = {beat.host: beat.time - now for rank, beat in beats.items() if rank not in unheard}
    off = {host: seconds for host, seconds in offsets.items() if abs(seconds) > SILENT_SECONDS}
    heard = {rank: _earlier(beat, off.get(beat.host, 0.0)) for rank, beat in beats.items()}
    ranks = tuple(replace(rank, beat=heard.get(rank.rank, rank.beat)) for rank in trace.attempts[-1].ranks)
    attempts = (*trace.attempts[:-1], replace(trace.attempts[-1], ranks=ranks))
    return replace(trace, now=now, attempts=attempts, clocks=off)


def _earlier(beat: Beat, seconds: float) -> Beat:
    step_time, waiting = (None if at is None else at - seconds for at in (beat.step_time, beat.waiting))
    return replace(beat, time=beat.time - seconds, since=beat.since - seconds, step_time=step_time, waiting=waiting)


def by_attempt(slurm_lines: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """The lines of slurm.log that came after each attempt's batch script had written its number there."""
    found: dict[int, list[str]] = {}
    number = -1
    for line in slurm_lines:
        if match := _BEGAN.match(line):
            number = int(match["number"])
        else:
            found.setdefault(number, []).append(line)
    return {number: tuple(lines) for number, lines in found.items()}


def with_accounting(trace: RunTrace, slurm_of: Callable[[Cluster], Slurm]) -> RunTrace:
    """`trace` with what Slurm's accounting, or else its controller, says of an ended job; nothing depends on it."""
    record, job_id = trace.status.record, trace.status.job_id
    if job_id is None or not record.is_ours or not trace.status.stage.ended:
        return trace
    slurm = slurm_of(record.cluster)

    def ask(job_ids: Sequence[str]) -> tuple[Accounted, ...]:
        with suppress(SlurmError):
            if record.cluster.is_slurm and (found := slurm.accounted(job_ids)):
                return found
        return slurm.shown(job_ids[0])

    try:
        return replace(trace, accounted=accounted({record.run: job_id}, ask, patient=False).get(record.run, ()))
    except SlurmError as error:
        return replace(trace, unknown=(*trace.unknown, f"how Slurm saw its job end: {error.message}"))


def _attempt(attempt: Attempt, host: HostRecord, tasks: int, unknown: list[str]) -> AttemptTrace:
    if host.problem:
        unknown.append(f"{attempt.number}/host.json: {host.problem}")
    events, problems = last_events(attempt)
    unknown += problems
    beats = all_beats(attempt)
    ranks = sorted({*events, *attempt.event_files(), *attempt.log_files("err")})
    return AttemptTrace(
        **{field.name: getattr(host, field.name) for field in fields(HostRecord)},
        tasks=tasks,
        lines=_lines(attempt.host_log, _HOST_BYTES, unknown, head=True),
        ranks=tuple(_rank(attempt, rank, events.get(rank, ()), beats.get(rank), unknown) for rank in ranks),
        alarm=_alarm(read_fields(attempt.hang_json)),
        reported=_alarm(read_fields(attempt.hang_report_json)),
        collectives=sum(1 for _ in attempt.collectives.glob("rank_*")) if exists(attempt.collectives) else 0,
    )


def _rank(attempt: Attempt, number: int, events: Iterable[Event], beat: Beat | None, unknown: list[str]) -> RankTrace:
    words = _lines(attempt.log(number, "err"), _TAIL_BYTES, unknown, missing_ok=True)
    told = RankTrace(
        number,
        node=beat.host if beat else "",
        beat=beat,
        last_words=tuple(_BEFORE.sub("", line) for line in words),
    )
    for event in events:
        match event:
            case Began(node=node):
                told = replace(told, node=node or told.node)
            case Entered(stage=stage):
                told = replace(told, stage=stage.value)
            case Raised() if told.raised is None:
                told = replace(told, raised=event)
            case Hung(time=at, stacks=stacks):
                told = replace(told, stacks=stacks, answered=at)
            case Frozen(stacks=stacks):
                told = replace(told, frozen=stacks)
            case WriterEnded():
                told = replace(told, writer=event)
            case TakenOver():
                told = replace(told, superseded=True)
            case Exited(time=at, code=code) if told.exit_code is None:
                told = replace(told, exit_code=code, ended=at)
    return told


def _alarm(fields: Fields) -> Alarm | None:
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


def _lines(
    path: Path, most_bytes: int, unknown: list[str], *, head: bool = False, missing_ok: bool = False
) -> tuple[str, ...]:
    """The last lines of a log, as text; with `head`, of a longer one the first ones too, and not what lies between."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            begin = file.read(most_bytes).rpartition(b"\n")[0] + b"\n" if head and size > most_bytes else b""
            start = file.seek(max(len(begin), size - most_bytes))
            end = file.read(most_bytes)
    except (FileNotFoundError, NotADirectoryError):
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

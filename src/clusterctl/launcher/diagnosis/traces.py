"""The evidence for `clusterctl why`: everything a run recorded, parsed."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.observe.attempt import AttemptEvidence, read_alarm
from clusterctl.launcher.observe.lines import MISSING, log_lines, text_lines
from clusterctl.launcher.observe.rank_events import (
    Began,
    Entered,
    EventFile,
    Exited,
    Frozen,
    Hung,
    Raised,
    TakenOver,
    WriterEnded,
    deaths,
    ended_together,
    event_files,
    last_events,
)
from clusterctl.launcher.observe.run_record import read_cancellation
from clusterctl.launcher.observe.slurm_log import accounted, by_attempt, kept
from clusterctl.launcher.observe.telemetry import latest_samples, telemetry_files
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.node.signals import EXIT_TERMINATED
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import exists, lateness, modified_at, names_in, status_of
from clusterctl.shared.record.heartbeats import BEAT_SECONDS, ENDED, Beat, all_beats, read_beats
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.observe.attempt import Alarm, HostRecord
    from clusterctl.launcher.observe.lines import Text
    from clusterctl.launcher.observe.rank_events import Death, Event
    from clusterctl.launcher.observe.run_record import Cancellation
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.slurm import Slurm
    from clusterctl.launcher.slurm.jobs import Accounted
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.spec import Cluster

    Seen = Callable[[int, int, Iterable[Event]], object]  # attempt, rank, its events

SILENT_SECONDS = 20.0  # a rank writes every second; file systems and clocks may delay that
_LOOKS = 3
_MOST_NODES = 4  # whose memory is looked up
_TAIL_BYTES = 16_384
_FEW_LINES = 8  # fewer than a traceback and what follows it
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z? ")  # of the lines of our own workloads


@dataclass(frozen=True)
class RankTrace:
    """One rank: how far it got, how it ended, its last heartbeat and its last lines on stderr.

    `stacks` were recorded by the rank at `answered`, on request of the watchdog; `frozen` by faulthandler as soon as a
    signal arrived, which shows where a stopped process was before it was resumed. `superseded`: a newer attempt
    replaced it.
    """

    rank: int
    node: str = ""
    state: str = ""
    raised: Raised | None = None
    exit_code: int | None = None
    ended: float | None = None
    superseded: bool = False
    answered: float | None = None
    stacks: str = ""
    frozen: str = ""
    writer: WriterEnded | None = None  # the last end of its node's writer
    beat: Beat | None = None
    last_words: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()  # the last lines on stdout of a rank that failed with next to nothing on stderr
    is_mixed: bool = False  # `last_words` are those of stdout, too, and of all processes of a job
    may_go_on: bool = False  # nothing shows whether it has ended, or how: only that it wrote this

    @property
    def began(self) -> bool:
        return self.state != ""

    @property
    def is_silent(self) -> bool:
        """Whether it has ended without a record of how."""
        return self.exit_code is None and self.raised is None and not self.may_go_on


@dataclass(frozen=True)
class AttemptTrace(AttemptEvidence):
    """One attempt: what its status was judged by, and everything else that it recorded.

    `lines` of srun, slurmstepd and pyxis are from the attempt's log, `job_lines` from the job's, shared by attempts.
    """

    one_output: bool = False  # a batch script whose ranks were not seen: the one in `ranks` has the output of all
    wrote: float | None = None  # when the output of a batch script last changed
    tasks: int = 1
    whole: bool = True  # whether `ranks` includes all that started
    lines: tuple[str, ...] = ()
    job_lines: tuple[str, ...] = ()
    ranks: tuple[RankTrace, ...] = ()
    alarm: Alarm | None = None
    reported: Alarm | None = None  # an alarm that ended nothing
    collectives: int = 0  # files of NCCL's flight recorder
    arriving: bool = False  # its end is so recent that other nodes' files may not be visible here yet
    memory: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # node where ranks died -> used, limit

    def rank(self, number: int) -> RankTrace:
        return self._by_number.get(number) or RankTrace(number)

    @cached_property
    def deaths(self) -> list[Death]:
        """The ranks that failed on their own, as srun reported them."""
        return deaths(self.lines)

    @cached_property
    def _by_number(self) -> dict[int, RankTrace]:
        return {rank.rank: rank for rank in self.ranks}


@dataclass(frozen=True)
class JobTrace:
    """What is known about one job of a run: its first attempt and its end; `state` is None if it was not recorded."""

    first: int
    state: State | None = None
    cancelled: Cancellation | None = None
    accounted: tuple[Accounted, ...] = ()


@dataclass(frozen=True)
class RunTrace:
    """A run: status, attempts, Slurm's log and accounting, cancellation; `unknown` lists what could not be read.

    `past_jobs` are those before each resume, the oldest first; `cancelled` and `accounted` are about the current one.
    """

    status: Status
    now: float
    attempts: tuple[AttemptTrace, ...] = ()
    slurm_lines: tuple[str, ...] = ()
    cancelled: Cancellation | None = None
    accounted: tuple[Accounted, ...] = ()
    unknown: tuple[str, ...] = ()
    clocks: Mapping[str, float] = field(default_factory=dict)  # node -> seconds by which its clock is off
    past_jobs: tuple[JobTrace, ...] = ()

    @cached_property
    def _job(self) -> JobTrace:
        return JobTrace(self.status.record.past_attempts, self.status.state, self.cancelled, self.accounted)

    def job_of(self, attempt: HostRecord) -> JobTrace:
        """The job of `attempt`: what is known about the end of another one says nothing about it."""
        return next((job for job in (self._job, *reversed(self.past_jobs)) if job.first <= attempt.number), self._job)

    def ended_its_job(self, attempt: HostRecord) -> bool:
        """Whether `attempt` is the last one of its job."""
        job = self.job_of(attempt)
        return all(self.job_of(other) is not job for other in self.attempts if other.number > attempt.number)


def gather(
    status: Status, clock: Callable[[], float] = time.time, *, most_ranks: int | None = None, seen: Seen | None = None
) -> RunTrace:
    """Read all files of the run of `status`; `seen` gets the events read for each rank.

    With `most_ranks`, only that many ranks of the last attempt, starting with those named by the watchdog and Slurm.
    """
    run, now = status.record.run, clock()
    look = _Look(status, now, most_ranks, seen)
    slurm_lines = look.lines(run.path / "slurm.log", log_lines(run.path / "slurm.log"))
    job_lines = by_attempt(slurm_lines)
    return RunTrace(
        status=status,
        now=now,
        attempts=tuple(
            replace(look.at_attempt(folder, host), job_lines=job_lines.get(host.number, ()))
            for host in status.attempts[0 if most_ranks is None else -1 :]
            if exists((folder := run.attempt(host.number)).path)
        ),
        slurm_lines=slurm_lines,
        cancelled=read_cancellation(run),
        unknown=tuple(look.unknown),
        past_jobs=_past_jobs(run) if status.record.resumed is not None else (),
    )


def _past_jobs(run: RunDir) -> tuple[JobTrace, ...]:
    """The jobs before each resume, from the notes in run.json and the files that each resume has put aside."""
    notes = read_fields(run.run_json).tables("resumes")
    aside: dict[int, RunDir] = {}
    with suppress(OSError):
        for name in sorted(filter(str.isdecimal, names_in(run.submissions)), key=int):
            folder = RunDir(run.submissions / name)
            aside[len(read_fields(folder.run_json).tables("resumes"))] = folder
    firsts = [0, *(note.whole("attempts") or 0 for note in notes)]
    jobs = [JobTrace(first, note.member("stage", State)) for first, note in zip(firsts, notes, strict=False)]
    for number, note in enumerate(notes):
        if number in aside:
            ends, _ = kept(aside[number], note.job("job_id"))
            jobs[number] = replace(jobs[number], cancelled=read_cancellation(aside[number]), accounted=ends)
    return tuple(jobs)


def listen_again(
    trace: RunTrace, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> RunTrace:
    """`trace` with apparently old heartbeats read again, and their times corrected to this machine's clock.

    Their nodes' clocks may be off: a rank is alive if it has written a new heartbeat since. Takes no time if all
    heartbeats are recent.
    """
    beats = {
        rank.rank: rank.beat
        for rank in trace.attempts[-1].ranks
        if rank.beat and rank.beat.phase != ENDED and abs(trace.now - rank.beat.time) > SILENT_SECONDS
    }
    if not beats:
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
    for rank, beat in beats.items():
        if seconds := off.get(beat.host):
            step_time, waiting = (None if at is None else at - seconds for at in (beat.step_time, beat.waiting))
            moved = replace(beat, time=beat.time - seconds, since=beat.since - seconds)
            beats[rank] = replace(moved, step_time=step_time, waiting=waiting)
    ranks = tuple(replace(rank, beat=beats.get(rank.rank, rank.beat)) for rank in trace.attempts[-1].ranks)
    attempts = (*trace.attempts[:-1], replace(trace.attempts[-1], ranks=ranks))
    return replace(trace, now=now, attempts=attempts, clocks=off)


def with_accounting(trace: RunTrace, slurm_of: Callable[[Cluster], Slurm]) -> RunTrace:
    """`trace` with the record of an ended job in Slurm's accounting, else in its controller, if either has one."""
    record, job_id = trace.status.record, trace.status.job_id
    if job_id is None or not record.is_ours or not trace.status.state.ended:
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
        return replace(trace, unknown=(*trace.unknown, f"the job's end in Slurm: {error.message}"))


@dataclass
class _Look:
    """Reads the files of a run; `unknown` collects what could not be read."""

    status: Status
    now: float
    most_ranks: int | None
    seen: Seen | None
    unknown: list[str] = field(default_factory=list)

    def at_attempt(self, attempt: Attempt, host: AttemptEvidence) -> AttemptTrace:
        if host.problem:
            self.unknown.append(f"{attempt.number}/host.json: {host.problem}")
        lines = self.lines(attempt.host_log, log_lines(attempt.host_log, head=True), must_exist=True)
        alarm, reported = map(read_alarm, (attempt.hang_json, attempt.hang_report_json))
        record, died = self.status.record, deaths(lines)
        tasks = host.rank_count or record.job.resources.nodes * record.tasks_per_node
        own, logs = attempt.event_files(), attempt.log_files("err")
        named = None
        if self.most_ranks is not None and self.most_ranks < tasks:
            known = dict.fromkeys(sorted({*own, *logs}))
            suspects = [*alarm.suspects, alarm.seen] if alarm else []
            first = dict.fromkeys([*suspects, *(death.rank for death in died), *known])
            named = [rank for rank in first if rank in known][: self.most_ranks]
        events, beats = self._read(attempt, named)
        if named is not None and not events.keys() >= {*named}:  # tasks are not placed in Slurm's default order
            named = None
            events, beats = self._read(attempt, None)
        ranks = sorted({*events, *own, *logs} if named is None else named)
        last = host is self.status.attempt
        over = not last or host.exit_code is not None or self.status.state.ended
        seen = tuple(self._at_rank(attempt, rank, events.get(rank, ()), beats.get(rank), over=over) for rank in ranks)
        one_output = self.status.record.is_script and not seen
        if one_output:
            seen = (self._at_script(attempt, host, died),)
        elif self.status.record.is_script:
            seen = with_sruns_word(seen, died, together=ended_together(lines))
        return AttemptTrace(
            **vars(host),
            one_output=one_output,
            wrote=max(map(modified_at, (attempt.script_out, attempt.script_err))) / 1e9 or None,
            tasks=tasks,
            whole=named is None,
            lines=lines,
            ranks=seen,
            alarm=alarm,
            reported=reported,
            collectives=len(attempt.flight_records()),
            memory=self._memory(attempt, died),
            arriving=over and self._arrives(attempt if last else self.status.record.run.attempt(attempt.number + 1)),
        )

    def _read(self, attempt: Attempt, named: Sequence[int] | None) -> tuple[dict[int, list[Event]], dict[int, Beat]]:
        """The events and heartbeats of all ranks, or of those on the nodes of the `named` ones."""
        if named is None:
            files, beats = event_files(attempt), all_beats(attempt)
        else:
            nodes = sorted({rank // self.status.record.tasks_per_node for rank in named})
            files = [EventFile(attempt.node_events(node)) for node in nodes]
            files += [EventFile(path, rank) for rank, path in attempt.event_files().items() if rank in named]
            beats = {rank: beat for node in nodes for rank, beat in read_beats(attempt.beats(node)).items()}
        events, problems = last_events(attempt, files)
        self.unknown += problems
        if self.seen:
            for rank, of_rank in events.items():
                self.seen(attempt.number, rank, of_rank)
        return events, beats

    def _memory(self, attempt: Attempt, died: Iterable[Death]) -> dict[str, tuple[float, float]]:
        """The memory used and its limit in bytes, by the last sample of the first nodes on which ranks died."""
        if not (nodes := dict.fromkeys(death.node for death in died)):
            return {}
        files = telemetry_files(attempt)
        samples = latest_samples(files, [node for node in nodes if node in files][:_MOST_NODES])
        return {
            node: (one.memory, one.memory_limit) for node, one in samples.items() if one.memory and one.memory_limit
        }

    def _arrives(self, attempt: Attempt) -> bool:
        """Whether files that other nodes wrote before `attempt` started or ended may not be visible here yet.

        Measured by the file server's clock, since node clocks may be off.
        """
        late = lateness(attempt.path)
        return late > 0 and self.now - modified_at(attempt.host_json) / 1e9 < late

    def _at_rank(
        self, attempt: Attempt, number: int, events: Iterable[Event], beat: Beat | None, *, over: bool
    ) -> RankTrace:
        """One rank; its last lines are only read once the attempt is `over`."""
        log = attempt.log(number, "err")
        words = self._last_lines(log) if over else ()
        facts: dict[str, Any] = {"node": beat.host if beat else ""}
        for event in events:
            match event:
                case Began(node=node) if node:
                    facts["node"] = node
                case Entered(state=state):
                    facts["state"] = state.value
                case Raised():
                    facts.setdefault("raised", event)
                case Hung(time=at, stacks=stacks):
                    facts |= {"stacks": stacks, "answered": at}
                case Frozen(stacks=stacks):
                    facts["frozen"] = stacks
                case WriterEnded():
                    facts["writer"] = event
                case TakenOver():
                    facts["superseded"] = True
                case Exited(time=at, code=code) if facts.get("exit_code") is None:
                    facts |= {"exit_code": code, "ended": at}
        quiet = over and facts.get("exit_code") not in (0, EXIT_TERMINATED) and len(words) < _FEW_LINES
        printed = self._last_lines(attempt.log(number, "out")) if quiet else ()
        return RankTrace(number, beat=beat, last_words=words, printed=printed, **facts)

    def _at_script(self, attempt: Attempt, host: AttemptEvidence, died: Sequence[Death]) -> RankTrace:
        """A batch script whose ranks cannot be seen, in the place of the rank that failed: their output is one."""
        code = host.exit_code
        words = () if code is None else self._last_lines(attempt.host_log)
        printed = self._last_lines(attempt.script_out) if code and exists(attempt.script_err) else ()
        first = died[0] if died else None
        return RankTrace(
            first.rank if first else 0,
            first.node if first else "",
            State.TRAINING.value,
            exit_code=first.code if first else code,
            ended=host.end,
            last_words=words,
            printed=printed,
        )

    def _last_lines(self, log: Path) -> tuple[str, ...]:
        try:
            if not status_of(log).st_size:
                return ()  # most ranks write nothing to stderr, and opening a file costs more than stat
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            pass  # opening it reports why
        return tuple(_TIME.sub("", line) for line in self.lines(log, text_lines(log, _TAIL_BYTES)))

    def lines(self, path: Path, text: Text, *, must_exist: bool = False) -> tuple[str, ...]:
        """The lines of the log `path`, with its problem noted; a rank that wrote nothing may have none."""
        if text.problem and (must_exist or text.problem != MISSING):
            self.unknown.append(f"{path.parent.name}/{path.name}: {text.problem}")
        return text.lines


def with_sruns_word(ranks: tuple[RankTrace, ...], died: Sequence[Death], *, together: bool) -> tuple[RankTrace, ...]:
    """The ranks of a batch script, whose exit codes srun alone knows: it reports those that failed, and no others."""
    codes = {death.rank: death.code for death in reversed(died)}
    others = EXIT_TERMINATED if together else 0
    return tuple(
        rank if rank.ended is None else replace(rank, exit_code=codes.get(rank.rank, others)) for rank in ranks
    )

"""Recorded failures: each case of tests/diagnosis/corpus, as the run directory that a real run leaves.

`clusterctl why` reads each one, and its answer is compared with the truth. `make diagnose-corpus` prints the figures.
The README in the corpus describes the keys of a case.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import Signals
from typing import Any

from clusterctl.launcher.diagnosis.diagnose import diagnose
from clusterctl.launcher.diagnosis.finding import CERTAIN, Finding
from clusterctl.launcher.diagnosis.plain_jobs import diagnose_job, diagnose_output
from clusterctl.launcher.observe.logs import read_output
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.jobs import SlurmJob
from clusterctl.launcher.slurm.queue import SEPARATOR, JobState
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.heartbeats import Beat, write_beats
from clusterctl.shared.record.layout import RUN_FORMAT, Attempt, RunDir
from clusterctl.shared.spec import Cluster, CommandTrain, Container, Job, Resources, to_record

CORPUS = Path(__file__).parents[1] / "diagnosis" / "corpus"
START = time.mktime((2026, 1, 2, 3, 5, 0, 0, 0, -1))  # Slurm's lines carry local times
FAILED_AFTER = 60.0  # seconds, unless a case says otherwise
JOB_ID = "4711"
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Rank:
    """How one rank ended: at most one of `program`, `task`, `raised`, `killed`, `absent`.

    None of them: it was terminated with the others.
    """

    number: int
    program: int | str | None = None  # the exit code of its program, or the signal that killed it
    task: int | None = None  # the exit code of the task itself
    raised: dict[str, Any] | None = None  # the exception of one of our own workloads
    killed: bool = False  # the task was killed along with its program, and recorded nothing
    absent: bool = False  # it never started
    after: float | None = None
    fill: int = 0  # lines of progress before `stderr`
    bytes: bool = False  # its text is not UTF-8
    stderr: str = ""
    stdout: str = ""
    events: tuple[dict[str, Any], ...] = ()

    @property
    def exit_code(self) -> int:
        """As srun sees it."""
        if isinstance(self.program, str):
            return 128 + Signals[self.program]
        if self.program is not None:
            return self.program
        if self.task is not None:
            return self.task
        return 1 if self.raised else 137 if self.killed else 143

    @property
    def failed(self) -> bool:
        """Whether it ended on its own, and not well."""
        if self.absent:
            return False
        return self.program is not None or self.task not in (None, 0, 143) or self.raised is not None or self.killed


@dataclass(frozen=True)
class Case:
    """A failure and its truth: the class of its cause, the rank if it is recorded, and whether that can be certain."""

    name: str
    truth: Cause
    may_be_certain: bool
    rank: int | None = None
    look_alike: bool = False
    topic: str = ""
    backend: str = "emulator"
    nodes: int = 2
    tasks_per_node: int = 1
    command: tuple[str, ...] = ("python", "train.py")
    image: str | None = None
    runtime: str | None = None
    minutes: int = 60
    restarts: int = 0  # earlier attempts, each of which Slurm requeued
    lasted: float = 62.0
    exit_code: int | None = None
    signal: str = ""
    host: dict[str, Any] = field(default_factory=dict)
    host_log: str | None = None
    slurm_log: str = ""
    alarm: dict[str, Any] = field(default_factory=dict)  # the watchdog's
    accounting: str = ""  # the job's state according to sacct
    cancelled_by: str = ""
    ranks: dict[int, Rank] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def every(self) -> list[Rank]:
        return [self.ranks.get(number, Rank(number)) for number in range(self.nodes * self.tasks_per_node)]

    def node(self, rank: int) -> str:
        return f"node{rank // self.tasks_per_node + 1}"

    def after(self, rank: Rank) -> float:
        return FAILED_AFTER + (not rank.failed) if rank.after is None else rank.after


def read_cases(folder: Path = CORPUS) -> list[Case]:
    """All cases, in order; raises TypeError or ValueError for a key or a value that does not exist."""
    cases = []
    for path in sorted(folder.glob("*.toml")):
        for record in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            keys = dict(record)
            ranks = {
                int(number): Rank(int(number), **{**values, "events": tuple(values.get("events", ()))})
                for number, values in keys.pop("ranks", {}).items()
            }
            command = tuple(keys.pop("command", "python train.py").split())
            cause = Cause(keys.pop("class"))
            cases.append(Case(truth=cause, topic=path.stem, command=command, ranks=ranks, **keys))
    return cases


def write_run(case: Case, runs: Path) -> RunDir:
    """The run directory that this failure leaves."""
    run = RunDir(runs / "case-20260102-030405-00a1")
    resources = Resources(nodes=case.nodes, tasks_per_node=case.tasks_per_node, time=60 * case.minutes, warning=120)
    container = Container(image=case.image)
    job = Job(
        name="case",
        workload="command",
        argv=case.command,
        resources=resources,
        container=container,
        train=CommandTrain(),
    )
    kind = "slurm" if case.backend == "slurm" else "emulator"
    cluster = Cluster(name="site", kind=kind, runs=str(runs), container_runtime=case.runtime)
    record = {"schema_version": RUN_FORMAT, "id": run.id, "created": START - 30}
    _write(run.run_json, json.dumps({**record, "job": to_record(job), "cluster": to_record(cluster)}))
    _write(run.submission_json, json.dumps({"job_id": JOB_ID, "time": START - 29}))
    sections = ""
    for number in range(case.restarts):
        _write_attempt(_requeued(case), run.attempt(number), START - 600 * (case.restarts - number))
        sections += f"=== {number} ===\n"
    _write_attempt(case, run.attempt(case.restarts), START)
    _write(run.path / "slurm.log", f"{sections}=== {case.restarts} ===\n{case.slurm_log}")
    if case.cancelled_by:
        when = START + case.lasted - 1
        _write(run.cancel_json, json.dumps({"time": when, "by": case.cancelled_by}))
    for name, content in case.files.items():
        _write(run.path / name, content)
    return run


def _requeued(case: Case) -> Case:
    """An earlier attempt: warned, saved, and started again."""
    ranks = {rank.number: Rank(rank.number, task=75, after=FAILED_AFTER) for rank in case.every}
    host = {"requeued": True, "restart_count": 0}
    return replace(case, ranks=ranks, host=host, host_log="", exit_code=75, signal="", lasted=62.0, alarm={})


def _write_attempt(case: Case, attempt: Attempt, start: float) -> None:
    lines: list[list[dict[str, Any]]] = [[] for _ in range(case.nodes)]
    beats: list[dict[int, tuple[int, Beat]]] = [{} for _ in range(case.nodes)]
    marks = {"finished"} if case.truth is Cause.FINISHED else {".finished"}
    if case.restarts > attempt.number:
        marks.add("restart")
    for rank in case.every:
        node, when = rank.number // case.tasks_per_node, start + case.after(rank)
        stderr = "".join(f"step {n}: loss {4 / (n + 1):.4f}\n" for n in range(rank.fill)) + rank.stderr
        _write(attempt.log(rank.number, "err"), stderr, "latin-1" if rank.bytes else "utf-8")
        _write(attempt.log(rank.number), rank.stdout)
        if rank.absent:
            continue
        lines[node] += [{"rank": rank.number, **event} for event in _events(case, rank, start, when)]
        lines[node] += [{"rank": rank.number, **event, "time": start + event["time"]} for event in rank.events]
        local = rank.number % case.tasks_per_node
        beat = Beat(when - 0.5, "training", start + 2, pid=100 + rank.number, host=case.node(rank.number))
        beats[node][local] = rank.number, beat
        marks.add(f"{rank.number:05}{_mark(rank)}")
    for node in range(case.nodes):
        if lines[node]:
            text = "".join(json.dumps(line) + "\n" for line in sorted(lines[node], key=lambda line: line["time"]))
            _write(attempt.node_events(node), text)
            write_beats(attempt.beats(node), beats[node])
    for mark in marks:
        _write(attempt.marks / mark, "")
    _write(attempt.host_log, _host_log(case) if case.host_log is None else case.host_log)
    host: dict[str, Any] = {"attempt": attempt.number, "job_id": JOB_ID, "restart_count": attempt.number}
    host |= {"nodes": f"node[1-{case.nodes}]" if case.nodes > 1 else "node1", "start": int(start)}
    if case.exit_code != -1:  # the batch script was killed before it recorded its end
        highest = max(rank.exit_code for rank in case.every)
        code = highest if case.exit_code is None else case.exit_code
        host |= {"end": int(start + case.lasted), "exit_code": code, "signal": case.signal}
    _write(attempt.host_json, json.dumps(host | case.host))
    if case.alarm:
        _write(attempt.hang_json, json.dumps(case.alarm | {"time": start + case.alarm["time"]}))


def _events(case: Case, rank: Rank, start: float, when: float) -> Iterable[dict[str, Any]]:
    local, node = rank.number % case.tasks_per_node, rank.number // case.tasks_per_node
    place = {"pid": 100 + rank.number, "local_rank": local, "node_rank": node}
    yield {"time": start + 1, "event": "began", "host": case.node(rank.number), "node": case.node(rank.number), **place}
    for seconds, stage in ((1.1, "importing"), (1.5, "rendezvous"), (2.0, "training")):
        yield {"time": start + seconds, "event": "stage", "stage": stage}
    if rank.killed:
        return
    leaving: dict[str, Any] = {"time": when, "event": "exit", "code": rank.exit_code}
    if rank.program not in (None, 0, 75):
        name = " ".join(case.command)
        ended, number = f"exited with {rank.program}", None
        if isinstance(rank.program, str):
            ended, number = f"was killed by {rank.program}", int(Signals[rank.program])
            leaving["signal"] = number
        message = f"{name} {ended}"
        yield {
            "time": when - 0.002,
            "event": "exception",
            "type": "ProgramEnded",
            "message": message,
            "traceback": f"clusterctl.shared.errors.ProgramEnded: {message}\n",
            "cause": "user-error" if number is None else "killed",
            "code": rank.exit_code,
            "signal": number,
        }
    if rank.raised is not None:
        yield {"time": when - 0.002, "event": "exception", "traceback": "", **rank.raised}
    if not rank.failed and rank.task != 0:
        yield {**leaving, "signal": 15}
        leaving |= {"time": when + 0.03, "signal": 15}
    yield leaving


def _mark(rank: Rank) -> str:
    if rank.killed or isinstance(rank.program, str):
        return ".running"
    return {0: ".done", 75: ".asked", 70: ".asked"}.get(rank.exit_code, ".ended")


def _host_log(case: Case) -> str:
    """What srun reports: the tasks that failed, in order, then those that were terminated because of it."""
    lines = []
    failed = sorted((rank for rank in case.every if rank.failed), key=case.after)
    ended = [rank for rank in case.every if not rank.failed and not rank.absent and rank.exit_code]

    def line(rank: Rank) -> str:
        how = "Killed" if rank.killed else f"Exited with exit code {rank.exit_code}"
        return f"srun: error: {case.node(rank.number)}: task {rank.number}: {how}"

    lines += map(line, failed)
    if failed and case.backend == "slurm":
        lines.append(f"srun: launch/slurm: _step_signal: Terminating StepId={JOB_ID}.0")
    elif failed:
        lines.append(f"slurmstepd: error: *** STEP {JOB_ID}.0 ON node1 CANCELLED AT {stamp(FAILED_AFTER + 1)} ***")
    lines += map(line, ended)
    return "".join(f"{text}\n" for text in lines)


def stamp(seconds: float) -> str:
    """A moment of the attempt as Slurm writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(START + seconds))


def is_plain(case: Case) -> bool:
    """Whether a job that clusterctl did not submit can fail like this, and leave the same output."""
    nested = "srun" in " ".join(case.command)  # whose ranks are not those of the run
    own = (
        nested
        or case.alarm
        or case.cancelled_by
        or case.restarts
        or case.host
        or case.files
        or "clusterctl" in str(case)
    )
    return not own and not any(rank.raised or rank.task not in (None, 0, 1) for rank in case.every)


def write_output(case: Case, folder: Path) -> Path:
    """The file that stdout and stderr of a plain job share: what its ranks wrote, by time, then Slurm's lines."""
    text = b""
    slurms = f"{_host_log(case) if case.host_log is None else case.host_log}{case.slurm_log}"
    for rank in sorted(case.every, key=case.after):
        lines = "".join(f"step {n}: loss {4 / (n + 1):.4f}\n" for n in range(rank.fill)) + rank.stdout + rank.stderr
        own = "".join(line for line in lines.splitlines(keepends=True) if line.rstrip() not in slurms.splitlines())
        text += own.encode("latin-1" if rank.bytes else "utf-8")
    path = folder / f"slurm-{JOB_ID}.out"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text + slurms.encode())
    return path


def slurm_job(case: Case, output: Path) -> SlurmJob:
    """Slurm's record of the plain job."""
    code = max(rank.exit_code for rank in case.every) if case.exit_code is None else case.exit_code
    killed = code == -1  # its batch script was killed
    why = re.search(r"\*\*\* JOB .* CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?", case.slurm_log)
    state = case.accounting.partition(" ")[0] or ("FAILED" if code else "COMPLETED")
    if why and not case.accounting:
        ends = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
        state = ends.get((why[1] or "").strip(), "CANCELLED")
    return SlurmJob(
        JOB_ID,
        JobState(state),
        JOB_ID,
        "case",
        nodes=f"node[1-{case.nodes}]" if case.nodes > 1 else "node1",
        node_count=case.nodes,
        tasks=case.nodes * case.tasks_per_node,
        started=START,
        ended=START + case.lasted,
        limit=60 * case.minutes,
        exit_code=0 if killed else code,
        signal=9 if killed else 0,
        stdout=str(output),
        stderr=str(output),
    )


def ask_as_plain_job(case: Case, folder: Path) -> Answer:
    """Diagnose the job of `case` as one that clusterctl did not submit."""
    path, began = write_output(case, folder), time.monotonic()
    job = slurm_job(case, path)
    output = read_output([path], job.started)
    found = diagnose_job(job, output, Cluster(name="site", kind="slurm"), Slurm(lambda command: command), START + 600)
    return Answer(case, found.headline, ranks_share_a_file=True, seconds=time.monotonic() - began)


def ask_about_output(case: Case, folder: Path) -> Answer:
    """Diagnose the output of `case` alone, without Slurm."""
    path = write_output(case, folder)
    found = diagnose_output(path.name, read_output([path]), Cluster(name="site", kind="slurm"), START + 600)
    return Answer(case, found.headline, ranks_share_a_file=True)


def _write(path: Path, text: str, encoding: str = "utf-8") -> None:
    content = text.encode(encoding)
    try:
        path.write_bytes(content)
    except FileNotFoundError:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)


@dataclass(frozen=True)
class Answer:
    """What `why` says about a case."""

    case: Case
    found: Finding
    ranks_share_a_file: bool = False  # then the rank need not be named
    seconds: float = 0.0

    @property
    def class_is_right(self) -> bool:
        return self.found.cause_class is self.case.truth

    @property
    def rank_is_right(self) -> bool:
        unnamed = self.ranks_share_a_file and self.found.rank is None
        return self.case.rank is None or self.found.rank == self.case.rank or unnamed

    @property
    def is_certain(self) -> bool:
        return self.found.certainty == CERTAIN

    @property
    def is_certain_but_wrong(self) -> bool:
        return self.is_certain and not (self.class_is_right and self.rank_is_right and self.case.may_be_certain)

    def __str__(self) -> str:
        truth = f"{self.case.truth}, rank {self.case.rank}, {'' if self.case.may_be_certain else 'not '}certain"
        said = f"{self.found.cause_class}, rank {self.found.rank}, {self.found.certainty}: {self.found.cause}"
        return f"{self.case.topic}: {self.case.name}\n    truth: {truth}\n    found: {said[:300]}"


def ask(case: Case, folder: Path) -> Answer:
    """Write the run of `case` below `folder` and diagnose it, with a Slurm that has forgotten the job."""

    def run(argv: Sequence[str], environment: object) -> subprocess.CompletedProcess[str]:
        state = case.accounting
        if argv[0] == "squeue":
            return subprocess.CompletedProcess(argv, 0, "", "")
        if not state:
            return subprocess.CompletedProcess(argv, 1, "", "Slurm accounting storage is disabled")
        if argv[0] == "sacct":
            line = SEPARATOR.join([JOB_ID, state, "0:15" if "CANCELLED" in state else "1:0", "node[1-2]", "None"])
            return subprocess.CompletedProcess(argv, 0, f"{line}\n", "")
        return subprocess.CompletedProcess(argv, 1, "", "slurm_load_jobs error: Invalid job id specified")

    found = diagnose(write_run(case, folder), lambda _: Slurm(lambda command: command, {}, run)).headline
    return Answer(case, found)


@dataclass(frozen=True)
class Figures:
    """The answers to all cases, counted."""

    answers: tuple[Answer, ...]

    @classmethod
    def of(cls, cases: Iterable[Case], ask: Callable[[Case, Path], Answer] = ask) -> Figures:
        """Ask about all `cases`. Their thousands of small files are in memory where possible."""
        with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
            return cls(tuple(ask(case, Path(folder) / str(number)) for number, case in enumerate(cases)))

    @property
    def class_right(self) -> float:
        return sum(answer.class_is_right for answer in self.answers) / len(self.answers)

    @property
    def rank_right(self) -> float:
        recorded = [answer for answer in self.answers if answer.case.rank is not None]
        return sum(answer.rank_is_right for answer in recorded) / len(recorded)

    @property
    def certain(self) -> list[Answer]:
        """The answers that are certain, of those that can be."""
        return [answer for answer in self.answers if answer.is_certain and answer.case.may_be_certain]

    @property
    def certain_but_wrong(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.is_certain_but_wrong]

    @property
    def wrong(self) -> list[Answer]:
        return [
            answer
            for answer in self.answers
            if not (answer.class_is_right and answer.rank_is_right) or answer.is_certain_but_wrong
        ]

    def __str__(self) -> str:
        cases = [answer.case for answer in self.answers]
        recorded = sum(case.rank is not None for case in cases)
        certain = len(self.certain)
        return "\n".join(
            [
                f"failures: {len(cases)}, {sum(case.look_alike for case in cases)} with look-alikes",
                f"class right: {self.class_right:.1%}",
                f"rank right, of {recorded} that are recorded: {self.rank_right:.1%}",
                f"certain but wrong: {len(self.certain_but_wrong)}",
                f"certain, of {sum(case.may_be_certain for case in cases)} that can be: {certain}",
            ]
        )


def main(folder: str = "") -> None:
    """Print the figures for the corpus, or another `folder` of cases, and what is wrong; then those as plain jobs."""
    cases = read_cases(Path(folder) if folder else CORPUS)
    plain = [case for case in cases if is_plain(case)]
    asked = {"": Figures.of(cases), "as plain jobs": Figures.of(plain, ask_as_plain_job)}
    asked["from their output alone"] = Figures.of(plain, ask_about_output)
    for how, figures in asked.items():
        for answer in figures.wrong:
            print(f"{'certain but wrong' if answer.is_certain_but_wrong else 'wrong'}: {answer}")
        print(f"\n{how}\n{figures}\n" if how else f"{figures}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

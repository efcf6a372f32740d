"""Any job of Slurm, whoever submitted it: one record, from `scontrol show job`, sacct, or squeue for all of a user.

Names and paths are free text, which each parser keeps apart from the fields that decide something. The fields are
those of 22.05 to 25.05; a field that a version lacks keeps its default. How a job ended comes from sacct, for which
many sites have no database, or scontrol, which forgets jobs after minutes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.slurm.queue import SEPARATOR, JobState, columns, count_gpus, is_among, parse_number
from clusterctl.shared.spec.values import GpuCount, parse_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_OF_STEPS = ("JobID", "State", "ExitCode", "NodeList")
SACCT = ("sacct", "-n", "-P", f"--delimiter={SEPARATOR}", "-o", ",".join(_OF_STEPS), "-j")

SHOW_JOB = ("scontrol", "show", "job")
_SHOWN = re.compile(r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|JobState|ExitCode|NodeList)=(\S*)")
_EXIT = re.compile(r"\d{1,3}:\d{1,3}", re.ASCII)  # the exit code, and the signal


@dataclass(frozen=True)
class Accounted:
    """One record of sacct or scontrol about a job or one of its steps ("12.0", "12.batch").

    `state` is the first word of the state, `by` the ID of the user who cancelled it.
    """

    step: str
    state: str
    by: str
    exit_code: int
    signal: int
    nodes: str

    @property
    def job_id(self) -> str:
        return self.step.partition(".")[0]

    @property
    def ended(self) -> JobState | None:
        """How the job ended; None for a step, and for a job that is still running according to the database."""
        state = JobState(self.state)
        return state if self.step == self.job_id and state.ended else None


def parse_accounting(text: str) -> tuple[Accounted, ...]:
    """Parse the answer to `SACCT`; never raises: foreign lines are ignored."""
    found = []
    for line in text.splitlines():
        values = line.split(SEPARATOR)
        if len(values) >= len(_OF_STEPS) and _EXIT.fullmatch(values[2]):
            found.append(_accounted(*values[:4]))
    return tuple(found)


def parse_shown(text: str) -> tuple[Accounted, ...]:
    """Parse the answer to `SHOW_JOB` for one job; never raises: missing fields are empty."""
    fields = dict(_SHOWN.findall(text))
    if not (fields.get("JobId") and _EXIT.fullmatch(fields.get("ExitCode", ""))):
        return ()
    nodes = fields.get("NodeList", "")
    element = "ArrayTaskId" in fields and "ArrayJobId" in fields
    number = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if element else fields["JobId"]
    return (_accounted(number, fields.get("JobState", ""), fields["ExitCode"], "" if nodes == "(null)" else nodes),)


def _accounted(step: str, state: str, exit_code: str, nodes: str) -> Accounted:
    """The record with the words of sacct or scontrol, such as "CANCELLED by 1000" and "1:9"."""
    word, _, by = state.partition(" ")
    code, _, signal = exit_code.partition(":")
    numbers = parse_number(code, 3) or 0, parse_number(signal, 3) or 0
    return Accounted(step, word.rstrip("+"), by.removeprefix("by ").strip(), *numbers, nodes)


_TYPED = re.compile(r"(?P<job>\d{1,10}(?:_\d{1,9})?)(?:\.(?:\d{1,9}|batch|extern|interactive))?", re.ASCII)
# Each of these has a line of its own, or ends its line: it may contain blanks and `=`.
_FREE = ("JobName", "Command", "WorkDir", "StdErr", "StdOut", "Comment", "AdminComment", "SystemComment", "Network")
_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z][\w/:]*)=(\S*)")
_USER = re.compile(r"(?P<name>[^()]*)\((?P<number>\d{1,10})\)", re.ASCII)
_FIRST_NODE = re.compile(r"(?P<prefix>[^\[,\s]+)(?:\[(?P<number>\d+))?")
_NODES = re.compile(r"([^,\[\]]+)\[([\d,-]+)\]|([^,\[\]]+)")
_SIZE = re.compile(r"(?P<number>\d{1,12}(?:\.\d+)?)(?P<unit>[KMGT]?)", re.ASCII)
_MEBIBYTES = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_NOTHING = ("", "(null)", "N/A", "Unknown", "None", "None assigned")

# What `status --all-jobs` shows; the name may contain anything but the separator.
_LISTED = (
    *("JobArrayID", "State", "Reason", "UserName", "Partition", "NumNodes", "NodeList", "SubmitTime", "StartTime"),
    *("EndTime", "TimeLimit", "WorkDir", "Name"),
)
LISTED_JOBS = ("squeue", "--me", "-h", "--states=all", "-O", columns(_LISTED))

_ACCOUNTED = (
    *("JobID", "JobIDRaw", "UID", "User", "State", "ExitCode", "NodeList", "Partition", "AllocNodes", "Submit"),
    *("Start", "End", "Timelimit", "WorkDir", "JobName"),
)
_PATHS = ("StdOut", "StdErr")  # since 24.05


@dataclass(frozen=True)
class SlurmJob:
    """One job. Times are in seconds since the epoch, memory is in MiB; None, 0 and "" where Slurm does not say.

    `job_id` is the name that squeue uses, such as 12 or 12_7, `number` the job's own, which its processes see. `steps`
    are the accounting records of the job and its steps. `stdout` and `stderr` are the files of its batch script.
    """

    job_id: str
    state: JobState = JobState.UNKNOWN
    number: str = ""
    name: str = ""
    user: str = ""
    user_id: int | None = None
    reason: str = ""
    nodes: str = ""
    node_count: int = 1
    tasks: int = 1
    cpus: int | None = None
    memory: int | None = None  # of each node
    gpus_per_node: GpuCount | None = None
    constraint: str = ""
    is_exclusive: bool = False
    partition: str = ""
    limit: int | None = None  # seconds
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    signal: int = 0
    restarts: int = 0
    requeues: bool = True
    work_dir: str = ""
    stdout: str = ""
    stderr: str = ""
    is_batch: bool = True
    steps: tuple[Accounted, ...] = ()

    @property
    def first_node(self) -> str:
        match = _FIRST_NODE.match(self.nodes)
        return f"{match['prefix']}{match['number'] or ''}" if match else ""

    def runs_on(self, node: str) -> bool:
        """Whether `node` is among its nodes."""
        for prefix, indices, single in _NODES.findall(self.nodes):
            number = node.removeprefix(prefix)
            if node == single or (prefix and number != node and number.isdecimal() and is_among(int(number), indices)):
                return True
        return False


def job_typed(text: str) -> str | None:
    """The job in `123`, `123_4`, `123.0` or `123.batch`; None for any other text."""
    match = _TYPED.fullmatch(text)
    return match["job"] if match else None


def is_of(job_id: str, typed: str) -> bool:
    """Whether the job `job_id` is the one typed, or an element of the array typed."""
    return job_id == typed or job_id.startswith(f"{typed}_")


def parse_jobs(text: str) -> list[SlurmJob]:
    """The jobs in the answer of `scontrol show job`, run with SLURM_TIME_FORMAT=%s; never raises."""
    records = re.split(r"\n\s*\n(?=JobId=)", text.strip())
    return [job for record in records if (job := _parse_record(record)) is not None]


def _parse_record(record: str) -> SlurmJob | None:
    fields: dict[str, str] = {}
    owners = set()
    for line in record.splitlines():
        rest = line.strip()
        for key in _FREE:
            before, found, value = rest.partition(f"{key}=")
            if found and (not before or before.endswith(" ")):
                fields.setdefault(key, value)
                rest = before
        for key, value in _FIELD.findall(rest):
            fields.setdefault(key, value)
            owners |= {value} if key == "UserId" else set()
    number = fields.get("JobId", "")
    if not number.isdecimal():
        return None
    user = _USER.fullmatch(next(iter(owners))) if len(owners) == 1 else None  # a name may contain a line like this one
    state = JobState(fields.get("JobState", "").partition(" ")[0])
    code, _, signal = fields.get("ExitCode", "").partition(":")
    started, ended = _moment(fields, "StartTime"), _moment(fields, "EndTime")
    nodes, count = _text(fields, "NodeList"), _count(fields, "NumNodes") or 1
    cpus = _count(fields, "NumCPUs")
    job_id, array, element = number, _text(fields, "ArrayJobId"), _text(fields, "ArrayTaskId")
    if array.isdecimal():  # as squeue calls it; the pending elements of an array go by the array's number
        job_id = f"{array}_{element}" if element.isdecimal() else array
    return SlurmJob(
        job_id=job_id,
        state=state,
        number=number,
        name=fields.get("JobName", ""),
        user=user["name"] if user else "",
        user_id=int(user["number"]) if user else None,
        reason=_text(fields, "Reason"),
        nodes=nodes,
        node_count=count,
        tasks=_count(fields, "NumTasks") or 1,
        cpus=cpus,
        memory=_memory(fields, cpus, count),
        gpus_per_node=_gpus(fields),
        constraint=_text(fields, "Features"),
        is_exclusive=fields.get("OverSubscribe") in ("NO", "EXCLUSIVE"),
        partition=_text(fields, "Partition"),
        limit=parse_limit(fields.get("TimeLimit", "")),
        submitted=_moment(fields, "SubmitTime"),
        started=None if state.waiting else started,
        ended=ended if state.ended else None,
        exit_code=parse_number(code, 3) if state.ended else None,
        signal=parse_number(signal, 3) or 0,
        restarts=_count(fields, "Restarts") or 0,
        requeues=fields.get("Requeue") != "0",
        work_dir=fields.get("WorkDir", ""),
        stdout=_text(fields, "StdOut"),
        stderr=_text(fields, "StdErr") or _text(fields, "StdOut"),
        is_batch=fields.get("BatchFlag") != "0",
    )


def _text(fields: Mapping[str, str], key: str) -> str:
    value = fields.get(key, "")
    return "" if value in _NOTHING else value


def _moment(fields: Mapping[str, str], key: str) -> float | None:
    seconds = parse_number(fields.get(key, ""), 12)
    return None if seconds is None else float(seconds)


def _count(fields: Mapping[str, str], key: str) -> int | None:
    """The number in `4`, or the first one in `2-4`."""
    return parse_number(fields.get(key, "").partition("-")[0], 9)


def _memory(fields: Mapping[str, str], cpus: int | None, nodes: int) -> int | None:
    for key, times in (("MinMemoryNode", 1.0), ("MinMemoryCPU", (cpus or 1) / nodes)):
        if match := _SIZE.fullmatch(_text(fields, key)):
            mebibytes = float(match["number"]) * _MEBIBYTES[match["unit"]]
            return int(mebibytes * times) or None  # 0: all of a node's
    return None


def _gpus(fields: Mapping[str, str]) -> GpuCount | None:
    """From `gres:gpu:2` in 22.05, `gres/gpu:a100:2` later."""
    counts = count_gpus(re.sub(r"\bgres[:/]", "", _text(fields, "TresPerNode")))
    kind, count = next(iter(counts.items()), ("", 0))
    return GpuCount(f"{kind}:{count}" if kind else count) if count else None


def parse_listed(text: str) -> list[SlurmJob]:
    """The jobs in the answer to `LISTED_JOBS`, in squeue's order; foreign lines are skipped."""
    found = []
    for line in text.split("\n"):
        values = line.split(SEPARATOR)
        if len(values) <= len(_LISTED):
            continue
        fields = dict(zip(_LISTED, values, strict=False))
        state = JobState(fields["State"])
        found.append(
            SlurmJob(
                job_id=fields["JobArrayID"],
                state=state,
                name=fields["Name"],
                user=fields["UserName"],
                reason=_text(fields, "Reason"),
                nodes=_text(fields, "NodeList"),
                node_count=_count(fields, "NumNodes") or 1,
                partition=fields["Partition"],
                limit=parse_limit(fields["TimeLimit"]),
                submitted=_moment(fields, "SubmitTime"),
                started=None if state.waiting else _moment(fields, "StartTime"),
                ended=_moment(fields, "EndTime") if state.ended else None,
                work_dir=fields["WorkDir"],
            )
        )
    return found


def sacct_jobs(*, paths: bool) -> tuple[str, ...]:
    """The query for jobs and their steps, whose IDs follow; `paths` asks for the fields of 24.05."""
    fields = (*_ACCOUNTED, *_PATHS * paths)
    return ("sacct", "-n", "-P", f"--delimiter={SEPARATOR}", "-o", ",".join(fields), "-j")


def parse_accounted_jobs(text: str) -> list[SlurmJob]:
    """The jobs in the answer to `sacct_jobs`, each with its steps; foreign lines are skipped.

    A requeued job has a record for each of its starts: the last one counts.
    """
    known = (len(_ACCOUNTED), len(_ACCOUNTED) + len(_PATHS))
    lines = (line.split(SEPARATOR) for line in text.split("\n"))
    rows = [dict(zip((*_ACCOUNTED, *_PATHS), values, strict=False)) for values in lines if len(values) in known]
    found: dict[str, SlurmJob] = {}
    for fields in rows:
        job_id, number = fields["JobID"], fields["JobIDRaw"]
        if job_typed(job_id) != job_id or not number.isdecimal():
            continue  # a step, or pending elements such as 12_[3-9]
        parts = (row for row in rows if row["JobID"].partition(".")[0] == job_id)
        own = tuple(_accounted(*(row[name] for name in _OF_STEPS)) for row in parts)
        record = _accounted(*(fields[name] for name in _OF_STEPS))
        state, user_id = JobState(record.state), parse_number(fields["UID"], 10)
        job = SlurmJob(
            job_id=job_id,
            state=state,
            number=number,
            name=fields["JobName"],
            user=fields["User"],
            user_id=user_id,
            nodes=_text(fields, "NodeList"),
            node_count=_count(fields, "AllocNodes") or 1,
            partition=fields["Partition"],
            limit=parse_limit(fields["Timelimit"]),
            submitted=_moment(fields, "Submit"),
            started=_moment(fields, "Start"),
            ended=_moment(fields, "End") if state.ended else None,
            exit_code=record.exit_code if state.ended else None,
            signal=record.signal,
            work_dir=fields["WorkDir"],
            steps=own,
        )
        if fields.get("StdOut"):  # sacct prints the patterns that were given to sbatch
            stdout = resolved_path(fields["StdOut"], job)
            stderr = resolved_path(fields["StdErr"], job) if fields.get("StdErr") else stdout
            job = replace(job, stdout=stdout, stderr=stderr)
        found[job_id] = job
    return list(found.values())


def resolved_path(pattern: str, job: SlurmJob) -> str:
    """The batch script's file for `pattern`, as Slurm replaces its symbols: sbatch(1), "filename pattern"."""
    from clusterctl.launcher.emulator.output import expand  # not loaded for commands that only submit

    array, _, element = job.job_id.partition("_")
    symbols = dict.fromkeys("jJ", job.number) | dict.fromkeys("nt", "0") | {"A": array, "x": job.name, "u": job.user}
    symbols |= {"N": job.first_node} | ({"a": element} if element else {})
    path = expand(pattern, symbols)
    return path if path.startswith("/") or not job.work_dir else f"{job.work_dir}/{path}"


def usual_path(job: SlurmJob) -> str:
    """Where sbatch puts the output without --output."""
    return resolved_path("slurm-%A_%a.out" if "_" in job.job_id else "slurm-%j.out", job)


def of_array(jobs: Iterable[SlurmJob], job_id: str) -> list[SlurmJob]:
    """The one of `jobs` that is called `job_id`, or the elements of that array."""
    every = [job for job in jobs if is_of(job.job_id, job_id) or job.number == job_id]
    return [job for job in every if job.job_id == job_id and "_" in job_id] or every

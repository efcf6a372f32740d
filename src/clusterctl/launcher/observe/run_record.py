"""run.json, parsed: what was submitted, and which runs it depends on; then the small files of its later life.

Elements of an array of a user's batch script are runs, too, whose directories are made when they start. The array's
directory has what they share (`submission.user_script`), and is the record of an element without a directory.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from clusterctl import __version__
from clusterctl.launcher.observe.run_names import is_run_id
from clusterctl.launcher.slurm.queue import element_id, is_among
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.node.script_start import make_element
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import exists, status_of, write_json
from clusterctl.shared.record.layout import READABLE_FORMATS, RUN_FORMAT, RunDir, SweepDir
from clusterctl.shared.record.ownership import is_trusted, owner_name
from clusterctl.shared.record.plain_text import numbers_in
from clusterctl.shared.record.roles import MOST_RANKS, seating
from clusterctl.shared.spec import SCRIPT, Cluster, Job
from clusterctl.shared.spec.records import from_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from clusterctl.shared.record.fields import Fields
    from clusterctl.shared.record.layout import ArrayDir
    from clusterctl.shared.record.roles import Seating


def array_of(run: RunDir) -> RunDir | None:
    """The directory of the array, if `run` is an element of one and has no directory yet; None for any other run."""
    sweep, _, index = run.id.rpartition(".")
    if not is_run_id(sweep) or not is_run_id(run.id) or exists(run.path):
        return None
    array = RunDir(SweepDir.of(run.path.parent, sweep).array(0).path)
    indices = read_fields(array.run_json).text("array")
    if not indices or not is_among(int(index), indices) or exists(array.begun / index):
        return None
    return array


def make_directory(run: RunDir, job_id: str | None) -> None:
    """Make the directory of an element that has none yet; does nothing for any other run. Raises OSError."""
    if job_id and (array := array_of(run)):
        with suppress(FileExistsError):  # it has just started
            make_element(array.path, run.id.rpartition(".")[2], job_id)


def indices_of(array: ArrayDir) -> Sequence[int]:
    """The indices of the elements of an array, be it of a sweep or of a batch script."""
    if runs := read_fields(array.array_json).texts("runs"):
        return range(len(runs))
    with suppress(ValueError):
        return numbers_in(read_fields(RunDir(array.path).run_json).text("array"))
    return ()


T = TypeVar("T", float, str)
Spec = TypeVar("Spec", Job, Cluster)
_SPECS: dict[str, type[Any]] = {"job": Job, "cluster": Cluster}
_VERSION = re.compile(r"[0-9A-Za-z.+]{1,40}")


@dataclass(frozen=True)
class RunRecord:
    """A run as submitted."""

    run: RunDir
    created: float
    job: Job
    cluster: Cluster
    argv: tuple[str, ...] = ()  # the command line of its submission
    allocation: str | None = None  # the Slurm job of which a warm run is a step
    resumed: float | None = None  # when it was last resubmitted
    past_attempts: int = 0  # those before that
    past_jobs: frozenset[str] = frozenset()
    predecessors: tuple[Predecessor, ...] = ()  # which must finish, end or start first
    stage: str = ""  # of its job file; the runs of the other stages share the end of its id
    is_ours: bool = True
    skipped: tuple[str, ...] = ()  # keys of its job and cluster that this version does not know
    writer: str = ""  # the version of clusterctl that submitted it
    is_plain_job: bool = False  # a Slurm job, or output of one, that clusterctl did not submit: `run` does not exist

    @property
    def submitted(self) -> float:
        """When the current job was submitted."""
        return self.created if self.resumed is None else self.resumed

    @property
    def is_script(self) -> bool:
        """Whether it is a batch script of the user's own: only Slurm knows how it ended."""
        return self.job.workload == SCRIPT

    @property
    def tasks_per_node(self) -> int:
        return self.job.resources.tasks_per_node or 1

    @functools.cached_property
    def seating(self) -> Seating | None:
        """Which ranks are whose; None unless the job has roles."""
        roles, resources = self.job.role, self.job.resources
        ranks = sum(role.nodes * (role.tasks_per_node or 1) for role in roles.values())
        if not roles or not ranks <= resources.nodes * self.tasks_per_node <= MOST_RANKS:
            return None  # or the file of another user does not fit together
        return seating(roles)

    def rank_of(self, role: str | None, number: int) -> int:
        """The rank in the job of rank `number` of `role`, or of the job without one. Raises UsageError."""
        if not role:
            return number
        ranks = self.ranks_of(role)
        if number >= len(ranks):
            raise UsageError(f"role {role} has no rank {number}", f"`rank=`: 0 to {len(ranks) - 1}")
        return ranks[number]

    def ranks_of(self, role: str) -> list[int]:
        """The ranks in the job of `role`, in the order of their ranks in it. Raises UsageError."""
        if self.seating is None:
            raise UsageError(f"{self.run.id} has no roles", f"leave out: {role}")
        if not (ranks := self.seating.ranks_of(role)):
            raise UsageError(f"{self.run.id} has no role {role}", f"one of {', '.join(self.job.role)}")
        return ranks

    def require_ours(self) -> None:
        """Raise ConfigError for another user's run: only its owner may query Slurm about it or change it."""
        if not self.is_ours:
            message = f"{self.run.id} belongs to {owner_name(self.run.path)}: its status comes from its files alone"
            raise ConfigError(message, "only its owner can query Slurm about it, cancel it or resume it")


def newer_records(records: Iterable[RunRecord]) -> tuple[ConfigError, ...]:
    """A notice, for all of `records` together, that a newer version wrote some of them; none if none was."""
    newer = [record for record in records if record.skipped]
    if not newer:
        return ()
    first, *others = newer
    which = f"{first.run.id} and {len(others)} more" if others else first.run.id
    what = ", ".join(first.skipped[:3])
    by = f", clusterctl {first.writer}" if _VERSION.fullmatch(first.writer) else ""
    message = f"{which}: submitted by a newer version{by}; skipped what this one does not know: {what}"
    return (ConfigError(message, "use the clusterctl that submitted it to see everything"),)


def read_record(run: RunDir) -> RunRecord:
    """The record of `run`; raises ConfigError if run.json is missing, damaged, or in another version's format.

    Slurm loads the plugins named in a slurm.conf, so slurm_conf is dropped from another user's record.
    """
    place, fields = run, read_fields(run.run_json)
    if fields.absent and (array := array_of(run)):
        place, fields = array, read_fields(array.run_json)
    if fields.absent or fields.problem:
        raise unreadable(run, run.run_json, fields.problem or "missing")
    if (version := fields.whole("schema_version")) not in READABLE_FORMATS:
        writer = fields.table("versions").text("clusterctl")
        by = f" by clusterctl {writer}" if _VERSION.fullmatch(writer) else ""
        written = f"written{by} in format {'without a version' if version is None else version}"
        reads = f"clusterctl {__version__} reads format {RUN_FORMAT}"
        hint = f"use clusterctl {writer} for this run" if by else "use the clusterctl that submitted this run"
        raise ConfigError(f"cannot read {run.run_json}: {written}; {reads}", hint)
    try:
        record = _parse(run, fields)
        if all(is_trusted(status_of(path).st_uid) for path in (place.path, place.run_json)):
            return record
        return replace(record, cluster=replace(record.cluster, slurm_conf=None), is_ours=False)
    except OSError as error:
        raise unreadable(run, run.run_json, error.strerror or str(error)) from error
    except (ValueError, RecursionError, ConfigError) as error:
        raise unreadable(run, run.run_json, error.message if isinstance(error, ConfigError) else str(error)) from error


def _parse(run: RunDir, fields: Fields) -> RunRecord:
    writer = fields.table("versions").text("clusterctl")
    newer = bool(_VERSION.fullmatch(writer)) and _numbers(writer) > _numbers(__version__)
    job, unknown_job = _read_spec("job", json.dumps(fields.content.get("job")), newer=newer)
    cluster, unknown_cluster = _read_spec("cluster", json.dumps(fields.content.get("cluster")), newer=newer)
    skipped = (*(f"job.{key}" for key in unknown_job), *(f"cluster.{key}" for key in unknown_cluster))
    resumes = fields.tables("resumes")
    return RunRecord(
        run,
        _given("created", fields.moment("created")),
        job,
        cluster,
        allocation=_given("allocation", fields.digits("allocation")) if fields.content.get("allocation") else None,
        argv=fields.texts("argv"),
        resumed=_given("resumes: time", resumes[-1].moment("time")) if resumes else None,
        past_attempts=resumes[-1].whole("attempts") or 0 if resumes else 0,
        past_jobs=frozenset(job_id for one in resumes if (job_id := one.job("job_id"))),
        predecessors=read_predecessors(fields),
        stage=fields.text("stage"),
        skipped=skipped,
        writer=writer,
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The release in a version: (0, 2, 1) for 0.2.1rc1."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))


def _given(name: str, value: T | None) -> T:
    """`value`, unless it is missing; raises ValueError."""
    if value is None or value == "":
        raise ValueError(f"{name}: missing, or of the wrong type")
    return value


def unreadable(run: RunDir, path: Path | str, why: str) -> ConfigError:
    """The error for a run if `path` cannot be read."""
    return ConfigError(f"cannot read {path}: {why}", f"see its files with: ls {shlex.quote(str(run.path))}")


def read_spec(cls: type[Spec], text: str) -> Spec:
    """Parse a job or cluster in JSON."""
    value: Spec = _read_spec(cls.__name__.lower(), text, newer=False)[0]
    return value


@functools.lru_cache(maxsize=1000)
def _read_spec(name: str, text: str, *, newer: bool) -> tuple[Any, tuple[str, ...]]:
    """A job or cluster, and the skipped keys. Cached, since many runs share the same job and cluster."""
    return from_stored(_SPECS[name], json.loads(text), newer=newer)


class Condition(StrEnum):
    """What a predecessor must have done."""

    FINISHED = "finished"
    ENDED = "ended"
    STARTED = "started"

    @property
    def infinitive(self) -> str:
        """For `waiting for another run to ...`."""
        return {"finished": "finish", "ended": "end", "started": "start"}[self]


class Predecessor(NamedTuple):
    """A run or sweep, by its id, that a run in the same folder depends on."""

    run: str
    condition: Condition


def read_predecessors(record: Fields) -> tuple[Predecessor, ...]:
    """The predecessors in run.json; invalid ids are dropped, since an id becomes a folder name."""
    found = ((one.text("run"), one.member("condition", Condition)) for one in record.tables("after"))
    return tuple(Predecessor(run, condition) for run, condition in found if condition and is_run_id(run))


# When a run was submitted, cancelled and finished, each recorded in a small file.


class Submitted(NamedTuple):
    """Slurm's job id, such as 12 or 12_7, and when sbatch returned it; empty and None before that."""

    job_id: str = ""
    time: float | None = None


class Successor(NamedTuple):
    """The job that continues a run after the job `of`; if there is none, `problem` is the reason.

    The job `of` queued it, or the submission, perhaps with `later` ones that continue the run after it.
    """

    of: str
    job_id: str
    problem: str = ""
    later: tuple[str, ...] = ()

    @property
    def jobs(self) -> tuple[str, ...]:
        """The run's jobs in their order."""
        return (self.of, *((self.job_id,) if self.job_id else ()), *self.later)

    def seen_from(self, job: str) -> Successor:
        """The record from the point of view of `job`; from the last job's, that of the one before it."""
        jobs = self.jobs
        if job not in jobs or len(jobs) < 2:
            return self
        of, job_id, *later = jobs[min(jobs.index(job), len(jobs) - 2) :]
        return self._replace(of=of, job_id=job_id, later=tuple(later))


class Cancellation(NamedTuple):
    """When the run was cancelled (0: unknown), and by whom."""

    time: float
    by: str


class Finish(NamedTuple):
    """When the run finished (0: unknown), and in which attempt (None: unknown)."""

    time: float
    attempt: int | None


def read_submission(run: RunDir | ArrayDir) -> Submitted:
    """Of an element that has no directory yet, its array's, which Slurm has."""
    fields = read_fields(run.submission_json)
    if fields.absent and isinstance(run, RunDir) and (array := array_of(run)):
        fields = read_fields(array.submission_json)
        job = fields.digits("job_id")
        index = int(run.id.rpartition(".")[2])
        return Submitted(element_id(job, index) if job else "", fields.moment("time"))
    return Submitted(fields.job("job_id"), fields.moment("time"))


def read_successor(run: RunDir) -> Successor | None:
    """None if no job of the run has ever tried to queue another one."""
    fields = read_fields(run.successor_json)
    first, *later = [job for job in fields.text("jobs").split() if job.isdecimal()][1:] or [fields.job("job_id")]
    found = Successor(fields.job("of"), first, fields.text("problem"), tuple(later))
    return found if found.of else None


def read_cancellation(run: RunDir) -> Cancellation | None:
    """None unless the run was cancelled; a damaged file counts, as it is written before anything else."""
    fields = read_fields(run.cancel_json)
    return None if fields.absent else Cancellation(fields.moment("time") or 0.0, fields.text("by"))


def read_finish(run: RunDir) -> Finish | None:
    """None unless the run finished; a damaged file counts."""
    fields = read_fields(run.finished_json)
    return None if fields.absent else Finish(fields.moment("time") or 0.0, fields.whole("attempt"))


def adopt(run: RunDir | ArrayDir, job_id: str) -> None:
    """Record the job of `run`, either from sbatch's answer or when it is found later. The first record is kept."""
    if not exists(run.submission_json):
        write_json(run.submission_json, {"job_id": job_id, "time": time.time()})

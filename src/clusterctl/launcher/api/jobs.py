"""Any Slurm job, submitted by clusterctl or not: why it waits or failed, its output, its state, its end."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.api.find import find
from clusterctl.launcher.api.remote.cluster import names_files
from clusterctl.launcher.api.remote.operations import operation, suggesting
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.config import chosen_runs_folder, cluster_of_jobs
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.observe.lines import Growing, last_lines_offset
from clusterctl.launcher.observe.logs import JobOutput, read_output
from clusterctl.launcher.observe.run_names import is_run_id
from clusterctl.launcher.observe.run_record import read_submission
from clusterctl.launcher.observe.runs import newest_first
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.jobs import SlurmJob as SlurmJob
from clusterctl.launcher.slurm.jobs import is_of, job_typed, usual_path
from clusterctl.shared.errors import ConfigError, NotFoundError, SlurmError, UsageError
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.ownership import user_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clusterctl.launcher.diagnosis.diagnose import Diagnosis
    from clusterctl.shared.spec import Cluster

_LOOK_SECONDS = 0.5  # between two looks at files that grow
_ASK_SECONDS = 10.0  # between two questions to Slurm whether their job has ended
_MOST_FILES = 2


@suggesting
def why(
    name: str | os.PathLike[str], errors: str | os.PathLike[str] | None = None, cluster: str | None = None
) -> Diagnosis:
    """Why a run or any Slurm job is waiting or has failed, or what the output of a job shows.

    `name` is a run's name, a job ID such as "123" or "123_4", or a file; `errors` is a second file if stderr has one.
    Of another user's job, only what Slurm shows is used. Raises NotFoundError, UsageError, SlurmError, and ConfigError
    for a damaged run. Only names of runs and jobs are looked up on another machine.
    """
    names = [os.fspath(one) for one in (name, errors) if one is not None]
    if names_files(names):
        return why_output([Path(one) for one in names])
    try:
        return why_named(names[0], cluster)
    except NotFoundError as error:
        if "." not in names[0]:
            raise
        raise NotFoundError(f"no run and no file is called: {names[0]}", error.hint) from error


def plain_job(name: str, cluster: str | None = None) -> str | None:
    """The ID of the Slurm job called `name`, unless it belongs to a run, whose names have precedence."""
    job_id = job_typed(name)
    if job_id is None:
        return None
    try:
        find(name, cluster)
    except NotFoundError:
        return job_id
    except UsageError:  # a sweep, or the beginning of several IDs
        pass
    return None


@operation()
def why_named(name: str, cluster: str | None = None) -> Diagnosis:
    """`why`, for the name of a run or the ID of a job."""
    job_id = plain_job(name, cluster)
    if job_id is None:
        return find(name, cluster).why()
    from clusterctl.launcher.diagnosis.diagnose import for_person
    from clusterctl.launcher.diagnosis.plain_jobs import diagnose_job

    chosen = cluster_of_jobs(cluster)
    slurm = Slurm.of(chosen)
    found = _find_jobs(job_id, slurm, chosen)
    job = min(found, key=_urgency)
    # An earlier job of a run that has been resumed works in the run's directory.
    folder = Path(job.work_dir)
    is_run = folder.parent == chosen_runs_folder(cluster) and is_run_id(folder.name)
    if run := (Run(folder) if is_run and _is_mine(job) and exists(Run(folder).directory.run_json) else None):
        return run.why()
    if not _is_mine(job):
        job = replace(job, stdout="", stderr="")
    output, missing, now = JobOutput(), list[str](), time.time()
    if _is_mine(job) and not job.state.waiting and job.nodes:  # it has started
        files, missing = _files_of(job)
        output = read_output(files, job.started)
    diagnosis = for_person(diagnose_job(job, output, chosen, slurm, now, missing))
    if missing:
        diagnosis = replace(diagnosis, commands=diagnosis.commands[1:])  # the first would show its output
    states = Counter(job.state.value.lower() for job in found)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    facts = [f"one of {len(found)} elements: {counts}"] if len(found) > 1 else []
    if not _is_mine(job):
        facts.append(f"it belongs to {job.user or 'another user'}: only what Slurm shows is known, no file was opened")
        diagnosis = replace(diagnosis, commands=())
    first, *others = diagnosis.findings
    return replace(diagnosis, findings=(replace(first, facts=(*first.facts, *facts)), *others))


def why_output(files: Sequence[Path]) -> Diagnosis:
    """What `files` show, without Slurm: one file of output, or stdout and stderr. Raises what `why` raises."""
    from clusterctl.launcher.diagnosis.diagnose import for_person
    from clusterctl.launcher.diagnosis.plain_jobs import diagnose_output
    from clusterctl.shared.spec import Cluster

    if len(files) > _MOST_FILES:
        raise UsageError(
            "more than two files", "name the output of one job: clusterctl why slurm-123.out slurm-123.err"
        )
    output = read_output(files)
    if output.unknown and not exists(files[0]):
        raise NotFoundError(f"no such file: {files[0]}", "name a run, a job ID, or a job's output file")
    if output.unknown:
        raise ConfigError(f"cannot read {output.unknown[0]}", f"see what it is: ls -l {shlex.quote(str(files[0]))}")
    return for_person(diagnose_output(files[0].name, output, Cluster(name="slurm"), time.time()))


class Jobs(Shown, list[SlurmJob]):
    """Slurm jobs, shown as a table."""


@operation()
def jobs(cluster: str | None = None) -> Jobs:
    """This user's jobs that squeue shows and clusterctl did not submit, as old as the cluster's polling floor at most.

    Raises SlurmError.
    """
    runs = chosen_runs_folder(cluster)
    elsewhere = [
        job for job in Slurm.of(cluster_of_jobs(cluster)).jobs() if not Path(job.work_dir).is_relative_to(runs)
    ]
    # A batch script's job is in the script's own folder: only the run's record knows it. Elements of an array that wait
    # are one job.
    known = (read_submission(run).job_id for run in newest_first(runs)) if elsewhere else ()
    of_scripts = {job_id.partition("_")[0] for job_id in known}
    return Jobs(job for job in elsewhere if job.job_id.partition("_")[0] not in of_scripts)


def jobs_named(job_ids: Iterable[str], cluster: str | None = None) -> list[SlurmJob]:
    """The jobs with these IDs, of arrays all elements: with one squeue, and one sacct for those it does not show.

    Raises NotFoundError.
    """
    wanted, chosen = list(dict.fromkeys(job_ids)), cluster_of_jobs(cluster)
    slurm = Slurm.of(chosen)
    found = [job for job in slurm.jobs() if any(is_of(job.job_id, one) for one in wanted)]
    missing = [one for one in wanted if not any(is_of(job.job_id, one) for job in found)]
    if missing and chosen.is_slurm:
        with suppress(SlurmError):  # no accounting
            found += [job for job in slurm.accounted_jobs(missing) if _is_mine(job)]
        missing = [one for one in missing if not any(is_of(job.job_id, one) for job in found)]
    if missing:
        raise _unknown(missing[0], "of yours that Slurm still shows")
    return found


@dataclass(frozen=True)
class CancelledJobs:
    """The IDs of the jobs that were cancelled, and the jobs that had ended before."""

    cancelled: tuple[str, ...]
    ended: tuple[SlurmJob, ...]


@operation(changes=True)
def cancel_jobs(job_ids: Sequence[str], cluster: str | None = None) -> CancelledJobs:
    """Cancel these jobs of this user, with one squeue and one scancel.

    Raises NotFoundError, and SlurmError for another user's job or if Slurm refuses; then nothing is cancelled.
    """
    slurm = Slurm.of(cluster_of_jobs(cluster))
    slurm.forget()
    shown = slurm.jobs()
    known = {one: [job for job in shown if is_of(job.job_id, one)] for one in job_ids}
    for one, its in known.items():
        if not its:
            others = slurm.job(one)
            if others and not _is_mine(others[0]):
                message = f"job {one} belongs to {others[0].user or 'another user'}: only its owner can cancel it"
                raise SlurmError(message, f"see what is known about it: clusterctl why {one}")
            if not others:
                raise _unknown(one, "of yours that Slurm still shows")
            known[one] = others
    alive = [one for one, its in known.items() if any(not job.state.ended for job in its)]
    if alive:
        slurm.cancel(alive)
    return CancelledJobs(tuple(alive), tuple(known[one][0] for one in known if one not in alive))


@dataclass(frozen=True)
class JobLog:
    """The output files of a job: iterate for the lines so far, `follow` for new ones until the job has ended.

    Each line comes with the name of its stream, "out" or "err", which is "out" if both share a file.
    """

    job: SlurmJob
    files: dict[str, Path]
    takes: Callable[[bytes], bool]
    slurm: Slurm
    tail: int | None = None

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        for stream, file in self._opened():
            yield from self._taken(stream, file.added())
            yield from self._taken(stream, file.rest())

    def follow(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[tuple[str, bytes]]:
        """Poll twice a second; Slurm is asked every ten seconds, by one process for all of this user."""
        files, asked = self._opened(), float("-inf")
        over = self.job.state.ended
        while True:
            for stream, file in files:
                yield from self._taken(stream, file.added())
            if over:
                break
            if time.monotonic() - asked > _ASK_SECONDS:
                asked = time.monotonic()
                with suppress(SlurmError):  # it is asked again
                    # All processes share the first answer; only the controller knows an element that waits.
                    job_id = self.job.job_id
                    shown = [job for job in self.slurm.jobs() if job.job_id == job_id] or self.slurm.job(job_id)
                    over = all(job.state.ended for job in shown)
            sleep(_LOOK_SECONDS)
        for stream, file in files:
            yield from self._taken(stream, file.rest())

    def problems(self) -> list[str]:
        """The files that cannot be read, and why."""
        return list(read_output(list(self.files.values())).unknown)

    def _opened(self) -> list[tuple[str, Growing]]:
        def offset(path: Path) -> int:
            return 0 if self.tail is None else last_lines_offset(path, self.tail)

        return [(stream, Growing(path, offset(path))) for stream, path in self.files.items()]

    def _taken(self, stream: str, lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
        return ((stream, line) for line in lines if self.takes(line))


def job_log(
    job_id: str,
    cluster: str | None = None,
    *,
    stream: str | None = None,
    tail: int | None = None,
    grep: str | None = None,
) -> JobLog:
    """The output of the job `job_id`; `stream` is "out" or "err". Raises NotFoundError, SlurmError and UsageError."""
    from clusterctl.launcher.api.logs import expression

    wanted = expression(grep)
    chosen = cluster_of_jobs(cluster)
    slurm = Slurm.of(chosen)
    job = min(_find_jobs(job_id, slurm, chosen), key=_urgency)
    if not _is_mine(job):
        raise UsageError(
            f"job {job_id} belongs to {job.user or 'another user'}: its files are not opened",
            f"clusterctl why {job_id}",
        )
    files, missing = _files_of(job)
    if not files:
        raise NotFoundError(f"job {job_id}: {missing[0]}", f"see the job with: clusterctl why {job_id}")
    streams = dict(zip(("out", "err"), files, strict=False))
    if stream in streams and len(streams) > 1:
        streams = {stream: streams[stream]}
    return JobLog(job, streams, lambda line: wanted is None or bool(wanted.search(line)), slurm, tail)


def _find_jobs(job_id: str, slurm: Slurm, cluster: Cluster) -> list[SlurmJob]:
    """The job, or the elements of the array, from the controller, and from accounting once they have ended.

    Raises NotFoundError if neither knows it.
    """
    found, accounted = slurm.job(job_id), list[SlurmJob]()
    if cluster.is_slurm and all(job.state.ended for job in found):
        with suppress(SlurmError):  # many sites have no accounting
            accounted = slurm.accounted_jobs([job_id])
    if not found and not accounted:
        raise _unknown(job_id, "in Slurm, which forgets ended jobs after minutes unless the site accounts for them")
    steps = {job.job_id: job.steps for job in accounted}
    return [replace(job, steps=steps.get(job.job_id, ())) for job in found] or accounted


def _unknown(job_id: str, where: str) -> NotFoundError:
    hint = f"its output alone may explain it: clusterctl why ./slurm-{job_id}.out"
    return NotFoundError(f"no job {job_id} {where}", hint)


def _urgency(job: SlurmJob) -> int:
    """Of the elements of an array, one that failed is explained rather than one that runs, waits or has completed."""
    state = job.state
    return (3 if state.value == "COMPLETED" else 0) if state.ended else 2 if state.waiting else 1


def _is_mine(job: SlurmJob) -> bool:
    return job.user_id == os.geteuid() or (job.user_id is None and job.user == user_name(os.geteuid()))


def _files_of(job: SlurmJob) -> tuple[list[Path], list[str]]:
    """The job's output files, stdout first, and why they are not known."""
    if not job.is_batch:
        return [], ["its output went to a terminal: it is an interactive job"]
    named = [name for name in dict.fromkeys((job.stdout, job.stderr)) if name and name != os.devnull]
    usual = Path(usual_path(job))
    if not job.stdout and exists(usual):
        return [usual], []
    if not named:
        return [], [
            "where its output is: Slurm does not record it, or it was discarded; if you know, name the file instead"
        ]
    return [Path(name) for name in named], []

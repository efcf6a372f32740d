"""One submission: runs that are checked, written and queued together, or not at all.

`submit`, `rerun`, `resume`, sweeps and stages all end here. A new run gets a directory; a run that is resumed is
renewed in its own. A single run becomes a plain job, the runs of a sweep become elements of as few arrays as possible.

A crash at any point loses no job and submits none twice: everything that a job needs is written before sbatch is
called, run.json is replaced in one rename, and a job can be found by its working directory (see `adopt`).
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.api.submitting.verify import verify
from clusterctl.launcher.checks.job_rules import GOES_ON, restart_rules
from clusterctl.launcher.checks.surroundings import Check, ok, warn
from clusterctl.launcher.checks.verify import explained
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.observe.run_record import adopt
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.slurm.queue import element_id
from clusterctl.launcher.slurm.rules import Rules
from clusterctl.launcher.submission.module_archives import archive_modules, link_archives
from clusterctl.launcher.submission.new_run import (
    CodeOrigin,
    environment_fields,
    link_environment,
    record_of,
    versions,
    write_run,
    write_script,
)
from clusterctl.launcher.submission.sbatch import BatchJob, SlurmRefused, call_sbatch
from clusterctl.launcher.submission.script import arrays_of, write_array
from clusterctl.launcher.submission.snapshot import link_code, take_snapshot
from clusterctl.launcher.submission.warm import start_host_step
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError, reason
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import read_whole, write_json, write_text
from clusterctl.shared.record.once import LeaseTaken, leased_briefly
from clusterctl.shared.record.ownership import make_new, make_private
from clusterctl.shared.spec import to_record
from clusterctl.shared.spec.values import slurm_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.api.submitting.predecessors import Predecessors
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.slurm.queue import Allocation
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.launcher.submission.snapshot import Code
    from clusterctl.shared.record.layout import RunDir, SweepDir
    from clusterctl.shared.record.states import State
    from clusterctl.shared.spec import Job

_LEASE_SECONDS = 300  # sbatch may take a minute; a process that holds a lease for longer has died


class PastJob(NamedTuple):
    """The ended job of a run that is submitted again, and the state it left the run in."""

    id: str | None
    state: State


class PlannedRun(NamedTuple):
    """A run to submit: a new one, whose run.json also gets `fields`, or one that is renewed in its directory.

    `still_ended` is called for the latter while the run is locked against other processes; it returns the ended job, or
    raises an error if the run must not be resumed.
    """

    plan: Plan
    resolved: Resolved
    fields: Mapping[str, Any] = {}
    still_ended: Callable[[], PastJob] | None = None
    code: Code | None = None  # its own, if not the submission's


class SentRun(NamedTuple):
    """A run that was submitted, and the warnings of the checks before."""

    run: RunDir
    warnings: tuple[Check, ...]
    job: Job


class SweepPlan(NamedTuple):
    """The sweep that the runs belong to, and its sweep.json: `record`, and `past` if the sweep exists already.

    With `at_once`, the first array waits for the jobs `before`. `array` are the indices of an array of a batch script.
    """

    place: SweepDir
    record: Mapping[str, Any]
    past: Mapping[str, Any] | None = None
    at_once: int | None = None
    before: Sequence[str] = ()
    array: str = ""


@dataclass
class Submission:
    """`runs` with one copy of the code. `words` are the equivalent command line, for the record."""

    runs: Sequence[PlannedRun]
    code: Code
    slurm: Slurm
    words: Sequence[str] = ()
    origin: CodeOrigin = field(default_factory=CodeOrigin)  # of new runs
    predecessors: Predecessors | None = None
    sweep: SweepPlan | None = None
    allocation: Allocation | None = None  # to run in, instead of a job of its own
    hold: bool = False
    progress: ProgressListener = SILENT
    jobs: list[str] = field(default_factory=list, init=False)  # those queued by `send`
    written: ExitStack = field(default_factory=ExitStack, init=False, repr=False)  # how to undo what `send` wrote

    def check(self) -> tuple[Check, ...]:
        """The warnings. Raises one error for everything that would make a run fail; imports images if needed."""
        plans, jobs = [one.plan for one in self.runs], [one.resolved for one in self.runs]
        found = verify(plans, jobs, self.slurm, self.progress, self.code)
        notes = {note.message: note for plan in plans for note in restart_rules(plan)}
        if self.sweep and any(plan.successors for plan in plans):
            message = "no successors are queued for the runs of a sweep, although `successors` is set"
            notes[message] = warn("restarts", message, "submit runs that must go on in other jobs one by one")
        return (*found, *notes.values())

    def send(self) -> tuple[Check, ...]:
        """Copy the code, write all runs, and queue them; returns what the site has changed.

        After an error everything is as before, except if sbatch does not answer (SlurmError, but not SlurmRefused):
        Slurm may have accepted the job, so the directories by which it can be found are kept.
        """
        links = self._copied()
        # Determined again, since the preparation may have taken long.
        waiting = self.predecessors.options() if self.predecessors else []
        most = self.slurm.most_elements() if self.sweep else 1
        with ExitStack() as leases:
            try:
                self._write(links, leases)
            except BaseException:  # nothing was queued yet
                undo([self])
                raise
            try:
                self._queue(waiting, most)
            except SlurmRefused as refused:
                undo([self])
                raise explained(refused, self.runs[0].resolved, self.slurm) from refused
            except (ConfigError, OSError):
                if not self.allocation:  # where the run may have started
                    undo([self])
                raise
        return tuple(self._changed())

    def _changed(self) -> Iterator[Check]:
        """Whether a plugin of the site has switched requeueing off, which sbatch does not tell."""
        queue, by = self.runs[0].plan.queue, self.runs[0].plan.by
        if not self.jobs or not queue or queue.by == "successor" or not self.slurm.rules().jobs_are_changed:
            return
        try:
            requeues = all(job.requeues for job in self.slurm.job(self.jobs[0]))
        except SlurmError:  # the batch script asks again
            return
        if not requeues and by:
            hint = "remove restart.by, so that the run goes on in a job of its own instead"
            yield warn("restarts", f'this site has switched off requeueing, which `restart.by = "{by}"` needs', hint)
        elif not requeues:
            yield ok("restarts", f"{GOES_ON} in a job of its own, because this site has switched off requeueing")

    def _copied(self) -> list[dict[Path, Path]]:
        """Take the snapshot unless it exists, and make the module archives; the links to these for each run."""
        made: dict[Any, dict[Path, Path]] = {}  # runs with the same modules share archives
        links = []
        try:
            for code in {code.folder: code for code in map(self._code_of, self.runs)}.values():
                take_snapshot(code, self.progress)
            for one in self.runs:
                plan, folder = one.plan, self._code_of(one).folder
                alike = (folder, plan.staging.environments, plan.staging.named) if plan.staging else None
                if alike not in made:
                    made[alike] = archive_modules(plan, folder, self.progress)
                links.append({plan.run.environments / link.name: to for link, to in made[alike].items()})
        except OSError as error:
            raise uncopied(self.runs[0].plan.run.path.parent, error) from error
        return links

    def _code_of(self, one: PlannedRun) -> Code:
        return one.code or self.code

    def _write(self, links: Sequence[Mapping[Path, Path]], leases: ExitStack) -> None:
        if self.sweep and not self.sweep.past:
            folder = self.sweep.place.path
            make_private(folder.parent)
            make_new(folder)
            self.written.callback(shutil.rmtree, folder, ignore_errors=True)
        new = [one.plan for one in self.runs if not one.still_ended]
        common = {**versions(new[0]), **self.origin.record} if new else {}
        common |= {"allocation": self.allocation.job_id} if self.allocation else {}
        common |= {"after": self.predecessors.record} if self.predecessors and self.predecessors.all else {}
        for one, archives in zip(self.runs, links, strict=True):
            plan, resolved, code = one.plan, one.resolved, self._code_of(one).folder
            run = plan.run
            if not one.still_ended:
                record = {**record_of(plan, resolved, self.words), **common, **one.fields}
                write_run(plan, code, archives, record, self.origin.patch)
                self.written.callback(shutil.rmtree, run.path, ignore_errors=True)
                if self.sweep and self.sweep.array:
                    make_new(run.begun)
                continue
            try:
                leases.enter_context(leased_briefly(run.path / ".resume", _LEASE_SECONDS))
            except LeaseTaken:
                hint = f"check its progress: clusterctl status {run.id}"
                raise UsageError(f"{run.id} is already being resumed", hint) from None
            past_job = one.still_ended()
            self.written.callback(_restore, run, _archive(run))
            self.written.callback(link_code(run, code))
            link_archives(run, archives)
            self.written.callback(link_environment(plan))
            write_script(plan)
            write_json(run.run_json, _renewed_record(plan, resolved, past_job, self.words))
            for path in (run.cancel_json, run.submission_json, run.successor_json, run.accounting_json):
                path.unlink(missing_ok=True)
        if self.sweep is None or self.sweep.record == self.sweep.past:
            return
        place = self.sweep.place
        if self.sweep.past:
            self.written.callback(write_json, place.sweep_json, self.sweep.past)
        write_json(place.sweep_json, self.sweep.record)
        if indices := self.sweep.array:  # from now on, its elements are listed
            make_private(place.waiting.parent)
            self.written.callback(place.waiting.unlink, missing_ok=True)
            write_text(place.waiting, indices)

    def _queue(self, waiting: Sequence[str], most: int) -> None:
        """Submit one job, or as few arrays as Slurm allows, with at most `most` elements each; or one job a script.

        With `at_once`, an array starts when the previous one has ended, since Slurm limits only the elements of one
        array (docs/decisions/chains-and-sweeps.md).
        """
        first, sweep = self.runs[0], self.sweep
        if self.allocation:
            adopt(first.plan.run, self.allocation.job_id)
            time_limit = slurm_time(first.resolved.job.resources.time)
            start_host_step(first.plan, time_limit, self.slurm.path_of("srun"), self.slurm.environment)
            return
        if sweep is None:
            self._adopt(first.plan, self._sbatch(BatchJob.of(first.plan), waiting))
            self._queue_successors(first.plan)
            return
        if first.plan.script:  # the script that Slurm starts must be the user's own
            for one in self.runs:
                self._adopt(one.plan, self._sbatch(BatchJob.of(one.plan), waiting))
            return
        previous = sweep.before if sweep.at_once else ()
        arrays = arrays_of((one.plan for one in self.runs), most)
        for number, elements in enumerate(arrays, len(sweep.place.arrays())):
            array = sweep.place.array(number)
            write_array(array, elements)
            self.written.callback(shutil.rmtree, array.path, ignore_errors=True)
            job = self._sbatch(BatchJob.of_array(array, elements, sweep.at_once, sweep.place.id), waiting, previous)
            adopt(array, job)
            for index, plan in enumerate(elements):
                adopt(plan.run, element_id(job, index))
            previous = (job,) if sweep.at_once else ()

    def _queue_successors(self, plan: Plan) -> None:
        """Queue the jobs in which the run goes on, where its own jobs may queue none (successor.sh).

        Each waits for all before it: one that the user cancels must not let the next one start beside the run. If Slurm
        refuses one, the run has fewer.
        """
        jobs, problem = self.jobs[-1:], ""
        command = [self.slurm.path_of("sbatch"), *(["--begin=now"] if "begin" in dict(plan.options) else [])]
        try:
            for _ in range(plan.successors):
                before = {**self.slurm.environment, "cctl_succeeds": " ".join(jobs)}
                waiting = f"--dependency=afterany:{':'.join(jobs)}"
                jobs.append(call_sbatch(BatchJob.of(plan), [*command, waiting], before))
        except SlurmError as error:
            problem = error.message
        self.jobs += jobs[1:]
        if plan.successors:
            following = {"job_id": jobs[1], "jobs": " ".join(jobs)} if jobs[1:] else {"problem": problem}
            # On one line: the batch script reads it.
            write_text(plan.run.successor_json, json.dumps({"of": jobs[0], **following}) + "\n")

    def _adopt(self, plan: Plan, answer: str) -> None:
        """Record the job of a run, or of the array of a batch script, from sbatch's answer."""
        is_array = self.sweep is not None and self.sweep.array
        adopt(plan.run, plan.script.job_id(answer) if plan.script and not is_array else answer)

    def _sbatch(self, batch: BatchJob, waiting: Sequence[str], previous: Sequence[str] = ()) -> str:
        command = [self.slurm.path_of("sbatch"), *(["--hold"] if self.hold else [])]
        try:
            job = call_sbatch(batch, [*command, *_waiting_for(waiting, previous)], self.slurm.environment)
        except SlurmRefused as refused:
            if not self.predecessors:
                raise
            # One of them may have ended in the meantime.
            waiting = self.predecessors.options_instead(waiting, refused)
            job = call_sbatch(batch, [*command, *_waiting_for(waiting, previous)], self.slurm.environment)
        self.jobs.append(job)
        return job


def _waiting_for(options: Sequence[str], previous: Sequence[str]) -> list[str]:
    """`options` for sbatch, and to wait for the jobs `previous`: it takes one option for all that a job waits for."""
    if not previous:
        return [*options]
    prefix = "--dependency="
    lists = [word.removeprefix(prefix) for word in options if word.startswith(prefix)]
    others = [word for word in options if not word.startswith(prefix)]
    return [prefix + ",".join([*lists, ":".join(["afterany", *previous])]), *others]


def rules_of(resolved: Resolved) -> Rules | None:
    """The rules of the site by which the queue starts the run of `resolved` again; None if it does not."""
    if resolved.script or not resolved.job.most_starts:
        return None
    if not resolved.cluster.is_slurm:
        return Rules() if resolved.cluster.successors else None
    return Slurm.of(resolved.cluster).rules()


def undo(sent: Sequence[Submission]) -> None:
    """Cancel what was queued, remove new runs, and restore those that were to be resumed. Raises SlurmError."""
    # If Slurm does not cancel the jobs, their directories must stay: they come first.
    if jobs := [job for one in sent for job in one.jobs]:
        sent[0].slurm.cancel(jobs)
    for one in sent:
        one.written.close()


def uncopied(runs: Path, error: OSError) -> ConfigError:
    message = f"cannot copy the run's code to {runs}: {reason(error)}"
    return ConfigError(message, "is the disk full? add unreadable files to .gitignore")


def _renewed_record(plan: Plan, resolved: Resolved, past_job: PastJob, words: Sequence[str]) -> dict[str, Any]:
    """run.json with the current job, and the earlier submissions."""
    run = plan.run
    record = read_fields(run.run_json)
    attempts = run.attempts()
    note = {
        "time": time.time(),
        "attempts": attempts[-1].number + 1 if attempts else 0,
        "job_id": past_job.id,
        "stage": past_job.state.value,  # of the run before
        "argv": resolved.secrets.hide_typed(words),
    }
    return {
        **record.content,
        "job": to_record(resolved.secrets.hide_in(resolved.job)),
        "cluster": to_record(resolved.secrets.hide_in(resolved.cluster)),
        "origins": resolved.origins,
        **environment_fields(plan),
        "resumes": [*(one.content for one in record.tables("resumes")), note],
    }


def _archived(run: RunDir) -> list[Path]:
    return [run.run_json, run.script, run.submission_json, run.successor_json, run.cancel_json, run.accounting_json]


def _archive(run: RunDir) -> Path:
    """Copy the files that a new submission replaces into their own folder."""
    make_private(run.submissions)
    past = run.submissions / str(sum(1 for _ in run.submissions.iterdir()))
    make_new(past)
    for path in _archived(run):
        try:
            content = read_whole(path)
        except (OSError, ValueError):  # missing, or unusable such as a named pipe or a device
            continue
        (past / path.name).write_bytes(content)
        shutil.copystat(path, past / path.name)
    return past


def _restore(run: RunDir, past: Path) -> None:
    for path in _archived(run):
        if (past / path.name).exists():
            (past / path.name).replace(path)
    shutil.rmtree(past)

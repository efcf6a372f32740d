"""Start runs: of a job, of its stages, of a sweep, of a function of the project; and start them again.

What only stages, sweeps or earlier runs need is imported there: a submission should not wait for it. A function is
named, not pickled: a task imports it from the run's copy of the code, and its result comes back as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.api.remote.operations import operation
from clusterctl.launcher.api.run import Run, Runs
from clusterctl.launcher.api.settings import axes_typed, program_words, settings, typed
from clusterctl.launcher.api.submitting.submission import Submission, SweepPlan, undo
from clusterctl.launcher.api.submitting.submit import (
    HasArray,
    Start,
    code_of,
    find_waited_for,
    load,
    new_suffix,
    submission_of,
)
from clusterctl.launcher.config import current_folder, runs_folder
from clusterctl.launcher.config.roles import stages_of
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.new_run import from_project
from clusterctl.shared.errors import ClusterctlError, ConfigError, UsageError, reason
from clusterctl.shared.record.layout import SWEEP_FORMAT, SweepDir
from clusterctl.shared.record.plain_text import ranges
from clusterctl.shared.spec.values import as_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from clusterctl.launcher.api.settings import Axes, Overrides, Program
    from clusterctl.launcher.api.sweeps import Sweep
    from clusterctl.launcher.checks.surroundings import Check
    from clusterctl.launcher.config.shown import ProgressListener

    Named: TypeAlias = str | Run | Sweep | Iterable[str | Run | Sweep]


def _the_first(given: Mapping[str, Any]) -> str:
    """The one of several clusters that starts the job first."""
    from clusterctl.launcher.api.several_clusters import choose

    return choose(given)


@operation(changes=True, takes_job=True, choose=_the_first)
def submit(
    job: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    *,
    stage: str | None = None,
    program: Program = (),
    overrides: Overrides = (),
    profile: bool = False,
    in_allocation: str | None = None,
    hold: bool = False,
    after: Named = (),
    after_any: Named = (),
    after_start: Named = (),
    large_code: bool = False,
    progress: ProgressListener = SILENT,
) -> Run:
    """Submit `job`, or `program` with the defaults of a job file, and return its run.

    Of several clusters, "a,b", the one that would start it first gets it: `offers` shows what each of them answers, and
    so does `progress`, which is also notified when an image is imported or a large project is copied. `stage` selects a
    stage of a job with stages; `submit_stages` submits all. `in_allocation` starts it immediately on the nodes that one
    of your jobs holds (`clusterctl alloc`); `hold` queues it until `Run.release`; `large_code` copies a project of any
    size.

    It starts when all runs in `after` have finished, those in `after_any` have ended in any way, and those in
    `after_start` have started: a `Run`, a `Sweep` (all its runs), a name, or several. If one in `after` can no longer
    finish, UsageError is raised; Slurm cancels a run that is already waiting for it.

    Raises what `load` raises, LargeCode for a project of more than 20,000 files or 500 MiB, ConfigError with everything
    that would make the run fail, and SlurmError if Slurm refuses; nothing is left behind. If Slurm does not answer, the
    run directory is kept, since Slurm may have accepted the job.
    """
    changes = settings(overrides)
    resolved = load(job, cluster, stage=stage, program=program, overrides=changes, profile=profile)
    if resolved.array:
        message = f"{resolved.array_typed} makes a sweep, not one run"
        raise HasArray(message, "in Python: clusterctl.sweep(...), with the same arguments")
    predecessors = find_waited_for(resolved, after, after_any, after_start, in_allocation)
    words = typed("submit", None if job is None else os.fspath(job), cluster, changes)
    words += ["--stage", stage] if stage else []
    words += ["--profile"] if profile else []
    words += predecessors.words if predecessors else []
    words += ["--", *program_words(program)] if program else []
    start = Start(in_allocation, hold, predecessors)
    slurm = Slurm.of(resolved.cluster)
    one = submission_of(resolved, slurm, words, start, large_code=large_code, progress=progress)
    warnings = one.check()
    warnings += one.send()
    return Run(one.runs[0].plan.run.path, warnings, _job=resolved.job)


@operation(changes=True, takes_job=True, choose=_the_first)
def submit_stages(
    job: str | os.PathLike[str],
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    after: Named = (),
    after_any: Named = (),
    after_start: Named = (),
    large_code: bool = False,
    progress: ProgressListener = SILENT,
) -> Runs:
    """Submit all stages of `job` and return their runs, in the order of the file.

    The arguments are those of `submit`; `after` and the like apply to stages that wait for no other stage. Everything
    is checked before anything is queued, and nothing starts before all are queued. Raises what `submit` raises.
    """
    from clusterctl.launcher.api.submitting.predecessors import Predecessors
    from clusterctl.launcher.observe.run_record import Condition, Predecessor

    conditions = {"after": Condition.FINISHED, "after_any": Condition.ENDED, "after_start": Condition.STARTED}
    changes = settings(overrides)
    stages = stages_of(os.fspath(job), current_folder())
    resolved = [load(job, cluster, stage=stage.name, overrides=changes) for stage in stages]
    slurm, end = Slurm.of(resolved[0].cluster), new_suffix()
    prepared: dict[str, Submission] = {}
    for stage, one in zip(stages, resolved, strict=True):
        before = tuple(
            Predecessor(prepared[name].runs[0].plan.run.id, conditions[condition])
            for condition, names in stage.waits.items()
            for name in names
        )
        prepared[stage.name] = submission = submission_of(
            one,
            slurm,
            [*typed("submit", os.fspath(job), cluster, changes), "--stage", stage.name],
            Start(
                hold=not before,
                predecessors=None if before else find_waited_for(one, after, after_any, after_start, None),
            ),
            large_code=large_code,
            suffix=end,
            progress=progress,
        )
        if before:  # these do not exist yet
            submission.predecessors = Predecessors(before, runs_folder(one.cluster), one.cluster)
            submission.predecessors.check_resources(one.job.resources)
    warnings: list[tuple[Check, ...]] = []
    for submission in prepared.values():
        known = {check.message for found in warnings for check in found}  # of a project that all stages share
        warnings.append(tuple(check for check in submission.check() if check.message not in known))
    sent: list[Submission] = []
    try:
        for number, submission in enumerate(prepared.values()):
            warnings[number] += submission.send()
            sent.append(submission)
    except (ClusterctlError, OSError):
        undo(sent)
        raise
    if not hold:
        slurm.release([job_id for submission in sent if submission.hold for job_id in submission.jobs])
    runs = [submission.runs[0] for submission in sent]
    return Runs(Run(one.plan.run.path, found, _job=one.resolved.job) for one, found in zip(runs, warnings, strict=True))


@operation(changes=True, takes_job=True, choose=_the_first)
def sweep(
    job: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    *,
    program: Program = (),
    axes: Axes = (),
    file: str | os.PathLike[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    at_once: int | None = None,
    overrides: Overrides = (),
    hold: bool = False,
    after: Named = (),
    after_any: Named = (),
    after_start: Named = (),
    large_code: bool = False,
    progress: ProgressListener = SILENT,
) -> Sweep:
    """Submit `job`, or `program`, once for each combination of the values in `axes`, and return all these runs.

    `axes` are the values by key, each a list, or a string: `1e-3,3e-3`, integers as `0..4`, or a range
    to sample from (`log:1e-4..1e-1`, `uniform:0..1`) with `samples`, the number of random runs, and `seed`. Names that
    are not keys of a job refer to braces in the program: `{lr}`. `file` contains the settings of one run per line. At
    most `at_once` runs run at the same time. A batch script with `--array` is such a sweep by itself, without axes: its
    elements are the runs, named by their index. The other arguments are those of `submit`.

    Raises what `submit` raises, before anything is queued; if Slurm refuses, nothing is left behind.
    """
    from clusterctl.launcher.api.submitting.sweep import load_sweep, planned, shown_rows
    from clusterctl.launcher.api.sweeps import Sweep

    axes = axes_typed(axes)
    wanted = load_sweep(
        job, cluster, program=program, axes=axes, file=file, samples=samples, seed=seed, overrides=overrides
    )
    first = wanted.jobs[0]
    if first.script and at_once:
        array = f'`resources.sbatch.array = "{first.array or "0-9"}%{at_once}"`'
        hint = f"for an array: {array}; each run of a sweep is a job of its own"
        raise UsageError("`at_once=` does not apply to a batch script", hint)
    waited_for = find_waited_for(first, after, after_any, after_start, None)
    if waited_for:
        waited_for.check(first.job.resources)
    words = typed("submit", None if job is None else os.fspath(job), cluster, settings(overrides))
    words += [word for axis in axes for word in ("--sweep", axis)]
    words += ["--sweep-file", os.fspath(file)] if file else []
    words += ["--samples", str(samples), "--sample-seed", str(seed)] if samples else []
    words += ["--at-once", str(at_once)] if at_once else []
    words += waited_for.words if waited_for else []
    words += ["--", *program_words(program)] if program else []
    slurm = Slurm.of(first.cluster)
    slurm.path_of("sbatch")  # raises if there is none
    code = code_of(first, large=large_code, progress=progress)
    place = SweepDir.new(runs_folder(first.cluster), f"{first.job.name}-{new_suffix()}")
    record = {
        "schema_version": SWEEP_FORMAT,
        "created": time.time(),
        "argv": first.secrets.hide_typed(words),
        "at_once": at_once,
        "runs": shown_rows(wanted),
        "program": first.secrets.hide_typed(["--", *wanted.program])[1:],
        **({"array": ranges(wanted.array)} if wanted.array else {}),
    }
    together = Submission(
        planned(place, wanted, code),
        code,
        slurm,
        words,
        from_project(first),
        waited_for,
        SweepPlan(place, record, at_once=at_once, array=ranges(wanted.array)),
        hold=hold,
        progress=progress,
    )
    warnings = together.check()
    try:
        warnings += together.send()
    except OSError as error:
        raise ConfigError(f"cannot write the sweep: {reason(error)}", "is the disk full? see: df -h") from error
    return Sweep(place.path, warnings)


_MOST_BYTES = 100_000  # of one word of a command line: the kernel takes 128 KiB
_LONGEST_NAME = 64


def submit_function(
    function: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    cluster: str | None = None,
    overrides: Overrides = (),
    progress: ProgressListener = SILENT,
) -> Run:
    """Submit a run that calls `function(*args, **kwargs)` in each of its tasks; `Run.result` returns that of rank 0.

    The function must be at the top of a module below the current folder, which is copied as the run's code. Arguments
    and result are JSON: numbers, texts, booleans, None, lists, and dicts with texts as keys; a tuple in a result comes
    back as a list. Other users of a node can see the arguments in its list of processes.

    Raises UsageError for a function or an argument that cannot be passed on, and what `submit` raises.
    """
    changes = settings(overrides)
    if any(one.startswith("code=") for one in changes):
        raise UsageError("overrides: code: a function comes from the current folder", "leave it out, or change there")
    name, given = _name_of(function, Path.cwd()), dict(kwargs or {})
    for label, value in [*((f"args[{place}]", one) for place, one in enumerate(args)), *given.items()]:
        try:
            same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            hint = "pass numbers, texts, lists, dicts with texts as keys, or the path of a file"
            raise UsageError(f"{label} cannot be passed as JSON: {type(value).__name__}", hint)
    words = json.dumps({"args": args, "kwargs": given})
    if len(words) > _MOST_BYTES:
        hint = "write the data to a file, and pass its path"
        raise UsageError(f"the arguments of {name} take {len(words):,} bytes as JSON", hint)
    short = as_name(name.rpartition(":")[2])[:_LONGEST_NAME]
    if short and not any(one.startswith("name=") for one in changes):
        changes = [f"name={json.dumps(short)}", *changes]
    program = ["python", "-m", "clusterctl.call", name, words]
    return submit(cluster=cluster, program=program, overrides=changes, progress=progress)


def _name_of(function: Callable[..., Any], root: Path) -> str:
    """`MODULE:NAME`, by which a task finds the function in the project `root`. Raises UsageError if it would not."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name:
        raise UsageError(f"not a function: {function!r}", "pass a function of a file of the project")
    if module == "__main__" or "<" in name:
        hint = "move it to the top of a file of the project, such as functions.py, and: from functions import ..."
        raise UsageError(f"a task cannot import {name}: it is defined in a notebook, a script or a function", hint)
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    place = root.joinpath(*module.split("."))
    places = (Path(f"{place}.py"), place / "__init__.py")
    if file is None or Path(file).resolve() not in (one.resolve() for one in places):
        where = f"{module} is {file}" if file else f"{module} has no file"
        raise UsageError(f"a task cannot import {name} from {root}: {where}", "work in the folder of the project")
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise UsageError(f"{module}.{name} is another object", "pass the function by the name that it has there")
    return f"{module}:{name}"


def advice_on(run: Run) -> str:
    """`advice` for a run that was just submitted; empty for one on another machine, where its files are."""
    from clusterctl.launcher.api.submitting.past_runs import advice

    return advice(run._job, run.path.parent) if run._job and not run.place else ""  # noqa: SLF001 - not of its face


@operation(changes=True, restarts=True)
def resume(
    run: Run | str,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> Run:
    """Start `run`, or the run of that name, again from its last checkpoint: the same run, another attempt.

    It goes to `cluster`, or else to its previous one, with `overrides` applied. Later stages of its job that were
    cancelled with it are submitted again. Raises NotFoundError, UsageError for a run that has not ended or has
    finished, ConfigError with everything that would make it fail, and SlurmError.
    """
    from clusterctl.launcher.api.find import as_run

    return as_run(run, cluster).resume(cluster, overrides=overrides, hold=hold, progress=progress)


@operation(changes=True, restarts=True)
def rerun(
    run: Run | str,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    in_allocation: str | None = None,
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> Run:
    """Submit a new run with the code and configuration of `run`, which may be in any state, and return it.

    It goes to `cluster`, or else to that of `run`, with `overrides` applied, and starts at the first step. Both are in
    the same runs folder. `in_allocation` and `hold` are as for `submit`.

    Raises NotFoundError, UsageError for other code, ConfigError if the snapshot of the code was removed and for
    everything that would make the run fail, and SlurmError.
    """
    from clusterctl.launcher.api.find import as_run

    earlier = as_run(run, cluster)
    return earlier.rerun(cluster, overrides=overrides, in_allocation=in_allocation, hold=hold, progress=progress)

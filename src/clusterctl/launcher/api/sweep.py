"""Submit a sweep: one job with many settings, each an ordinary run and an element of one of a few Slurm arrays.

Everything is checked before anything is queued. The runs share one snapshot of the code; each has its own directory,
checkpoints and attempts.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import clusterctl
from clusterctl.launcher.api.calls import works_elsewhere
from clusterctl.launcher.api.settings import axes_typed, program_words, settings, typed
from clusterctl.launcher.api.submission import PlannedRun, Submission, SweepPlan
from clusterctl.launcher.api.submit import code_of, find_waited_for, new_suffix
from clusterctl.launcher.config import current_folder, load_cluster, resolve, runs_folder
from clusterctl.launcher.config.progress import SILENT
from clusterctl.launcher.config.secrets import Secrets
from clusterctl.launcher.config.source import LARGEST_BYTES, content_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.new_run import from_project
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.shared.errors import ConfigError, UsageError, reason
from clusterctl.shared.record.layout import SWEEP_FORMAT, SweepDir
from clusterctl.shared.spec.sweep import combinations, filled, key_of, names_of_program, parse_axis, parse_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.launcher.api.predecessors import Named
    from clusterctl.launcher.api.settings import Axes, Overrides, Program
    from clusterctl.launcher.api.sweeps import Sweep
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.progress import ProgressListener
    from clusterctl.launcher.submission.snapshot import Code
    from clusterctl.shared.spec.sweep import ListedValues, Settings


class SweepJobs(NamedTuple):
    """The runs of a sweep by index: the settings and the job of each.

    `program` contains names in braces, to be replaced by settings; empty if there are none.
    """

    settings: list[Settings]
    jobs: list[Resolved]
    program: list[str]


def load_sweep(
    job: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    *,
    program: Program = (),
    axes: Axes = (),
    file: str | os.PathLike[str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    overrides: Overrides = (),
) -> SweepJobs:
    """The runs that `sweep` would submit with the same arguments, with all values validated.

    Raises UsageError for invalid axes, ConfigError if one of the runs would be invalid.
    """
    found = [*map(parse_axis, axes_typed(axes)), *([_read_lines(Path(file))] if file else [])]
    rows = combinations(found, samples, seed)
    given = settings(overrides)
    swept = {key_of(setting): "" for row in rows for setting in row}
    if twice := next((key for key in map(key_of, given) if key in swept), None):
        raise UsageError(f"{twice} is both swept and set to one value", "use only one of these options")
    target, name, words = load_cluster(cluster), None if job is None else os.fspath(job), program_words(program)
    names = names_of_program(rows)
    if names and not words:
        words = [*resolve(name, target, given).job.argv]
    jobs: list[Resolved] = []
    wrong: list[tuple[Settings, ConfigError]] = []
    for row in rows:
        try:
            keys = [setting for setting in row if key_of(setting) not in names]
            jobs.append(resolve(name, target, [*given, *keys], program=filled(words, row, names)))
        except ConfigError as error:
            wrong.append((row, error))
    if wrong:
        raise _none_submitted(wrong, len(rows), target.secrets)
    for name, values in (("name", {one.job.name for one in jobs}), ("code", {one.job.code for one in jobs})):
        if len(values) > 1:
            raise UsageError(f"{name} cannot be swept", "all runs of a sweep share their job's name and code")
    return SweepJobs(rows, jobs, words if names else [])


@works_elsewhere(changes=True, takes_job=True)
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

    `axes` are the values by key, each a list, or a string as for --sweep: `1e-3,3e-3`, integers as `0..4`, or a range
    to sample from (`log:1e-4..1e-1`, `uniform:0..1`) with `samples`, the number of random runs, and `seed`. Names that
    are not keys of a job refer to braces in the program: `{lr}`. `file` contains the settings of one run per line. At
    most `at_once` runs run at the same time. The other arguments are those of `submit`.

    Raises what `submit` raises, before anything is queued; if Slurm refuses, nothing is left behind.
    """
    from clusterctl.launcher.api.sweeps import Sweep  # late: not needed for a dry run

    axes = axes_typed(axes)
    wanted = load_sweep(
        job, cluster, program=program, axes=axes, file=file, samples=samples, seed=seed, overrides=overrides
    )
    first = wanted.jobs[0]
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
    }
    together = Submission(
        planned(place, wanted, code),
        code,
        slurm,
        words,
        from_project(first),
        waited_for,
        SweepPlan(place, record, at_once=at_once),
        hold=hold,
        progress=progress,
    )
    warnings = together.check()
    try:
        together.send()
    except OSError as error:
        raise ConfigError(f"cannot write the sweep: {reason(error)}", "is the disk full? see: df -h") from error
    return Sweep(place.path, warnings)


def planned(place: SweepDir, wanted: SweepJobs, code: Code, start: int = 0) -> list[PlannedRun]:
    """The new runs `wanted`, the first of which is run `start` of the sweep."""
    return [
        PlannedRun(
            make_plan(one, place.run(number), code.folder, clusterctl.__version__),
            one,
            {"sweep": {"id": place.id, "settings": row}},
        )
        for number, (one, row) in enumerate(zip(wanted.jobs, shown_rows(wanted), strict=True), start)
    ]


def shown_rows(wanted: SweepJobs) -> list[list[str]]:
    """The settings of all runs, without secrets."""
    return [_shown(row, one.secrets) for row, one in zip(wanted.settings, wanted.jobs, strict=True)]


def _shown(row: Settings, secrets: Secrets) -> list[str]:
    """The settings of a run, without the values of secret variables."""
    return secrets.hide_typed(row) if any(key.removeprefix("env.") in secrets for key in map(key_of, row)) else [*row]


def _none_submitted(wrong: Sequence[tuple[Settings, ConfigError]], runs: int, patterns: Iterable[str]) -> ConfigError:
    """One error for all invalid runs: each cause with the first settings that have it."""
    causes: dict[str, Settings] = {}
    for row, error in wrong:
        causes.setdefault(error.message, row)
    secrets = Secrets(tuple(patterns))
    lines = [f"with {' '.join(_shown(row, secrets))}: {message}" for message, row in causes.items()]
    return ConfigError("\n".join([f"{len(wrong)} of {runs} runs would be invalid", *lines[:5]]), wrong[0][1].hint)


def _read_lines(path: Path) -> ListedValues:
    try:
        content = content_of(current_folder() / path)
        if len(content) > LARGEST_BYTES:
            raise UsageError(f"--sweep-file: {path} is larger than 1 MiB", "write the settings of one run per line")
        return parse_lines(content.decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--sweep-file: cannot read {path}: {why}", "write the settings of one run per line") from None

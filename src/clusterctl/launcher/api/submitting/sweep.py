"""The runs of a sweep: one job with many settings, each an ordinary run and an element of one of a few Slurm arrays.

They share one snapshot of the code; each has its own directory, checkpoints and attempts.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import clusterctl
from clusterctl.launcher.api.settings import axes_typed, program_words, settings
from clusterctl.launcher.api.submitting.past_runs import with_auto
from clusterctl.launcher.api.submitting.submission import PlannedRun, rules_of
from clusterctl.launcher.checks.verify import explained
from clusterctl.launcher.config import current_folder, resolve, resolve_script, runs_folder
from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.clusters import ANY_SLURM, cluster_for
from clusterctl.launcher.config.resolution import check_without_cluster, with_environment
from clusterctl.launcher.config.secrets import Secrets
from clusterctl.launcher.config.source import LARGEST_BYTES, content_of
from clusterctl.launcher.config.user_script import find_script, read_script
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.launcher.submission.sbatch import SlurmRefused, test_only
from clusterctl.shared.errors import ConfigError, UsageError, reason
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.plain_text import numbers_in, ranges
from clusterctl.shared.spec.sweep import combinations, filled, key_of, names_of_program, parse_axis, parse_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.launcher.api.settings import Axes, Overrides, Program
    from clusterctl.launcher.api.submitting.past_runs import Past
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.user_script import UserScript
    from clusterctl.launcher.submission.snapshot import Code
    from clusterctl.shared.record.layout import SweepDir
    from clusterctl.shared.spec.sweep import ListedValues, Settings


class SweepJobs(NamedTuple):
    """The runs of a sweep by index: the settings and the job of each.

    `program` contains names in braces, to be replaced by settings; empty if there are none. An array of a batch script
    has one job for all its elements.
    """

    settings: list[Settings]
    jobs: list[Resolved]
    program: list[str]
    array: Sequence[int] = ()  # its indices


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
    name, words = None if job is None else os.fspath(job), program_words(program)
    names = names_of_program(rows)
    path = find_script(name, current_folder()) if name else None
    script = read_script(path, name) if name and path else None
    sent_from = current_folder() if client_data() else None

    def check() -> None:
        for row in rows:
            keys = [*given, *(setting for setting in row if key_of(setting) not in names)]
            if script:
                resolve_script(script, ANY_SLURM, keys, sent_from=sent_from)
            elif not (written := check_without_cluster(name, keys, words)).role:
                filled(words or written.argv, row, names)

    target = cluster_for(cluster, check)

    def resolved(script: UserScript, arguments: Sequence[str], settings: Sequence[str]) -> Resolved:
        return resolve_script(replace(script, arguments=tuple(arguments)), target, settings, sent_from=sent_from)

    if script and (array := resolved(script, words, given)).array:
        if found:
            raise UsageError(f"cannot combine `axes=` with {array.array_typed}", "leave one of them out")
        return SweepJobs([()], [array], [], _indices(array))
    if names and not words and not script:
        unvaried = resolve(name, target, given).job
        if unvaried.role:
            one, role = min(names), [*unvaried.role][-1]
            hint = f"vary a key of a role, such as role.{role}.nodes, or a variable: role.{role}.env.{one.upper()}"
            raise UsageError(f"`axes=` {one}: not a job key; the placeholders of roles are not for sweeps", hint)
        words = [*unvaried.argv]
    jobs: list[Resolved] = []
    known: dict[object, Past] = {}
    wrong: list[tuple[Settings, ConfigError]] = []
    for row in rows:
        try:
            keys = [setting for setting in row if key_of(setting) not in names]
            program = filled(words, row, names)
            if script:
                jobs.append(resolved(script, program, [*given, *keys]))
            else:
                element = with_auto(resolve(name, target, [*given, *keys], program=program), known)
                jobs.append(with_environment(element))
        except ConfigError as error:
            wrong.append((row, error))
    if wrong:
        raise _none_submitted(wrong, len(rows), target.secrets)
    for name, values in (("name", {one.job.name for one in jobs}), ("code", {one.job.code for one in jobs})):
        if len(values) > 1:
            raise UsageError(f"{name} cannot be swept", "all runs of a sweep share their job's name and code")
    return SweepJobs(rows, jobs, words if names else [])


def _indices(one: Resolved) -> list[int]:
    """The indices of its array. Raises ConfigError."""
    try:
        return numbers_in(one.array)
    except ValueError as error:
        plan = make_plan(one, RunDir(runs_folder(one.cluster) / one.job.name), Path(), clusterctl.__version__)
        slurm = Slurm.of(one.cluster)
        try:
            test_only(plan, slurm.path_of("sbatch"), slurm.environment)
        except SlurmRefused as refused:  # sbatch's own words
            raise explained(refused, one, slurm) from error
        hint = "write it as indices and ranges: 1,3,7-15:2"
        raise ConfigError(f"cannot read {one.array_typed}", hint) from None


def planned(place: SweepDir, wanted: SweepJobs, code: Code, start: int = 0) -> list[PlannedRun]:
    """The new runs `wanted`, the first of which is run `start` of the sweep; for an array, its own directory."""
    if wanted.array:
        fields = {
            "sweep": {"id": place.id, "settings": []},
            "array": ranges(wanted.array),
            "elements": len(wanted.array),
        }
        plan = make_plan(wanted.jobs[0], RunDir(place.array(0).path), code.folder, clusterctl.__version__)
        return [PlannedRun(plan, wanted.jobs[0], fields)]
    rules = rules_of(wanted.jobs[0]) if wanted.jobs else None
    return [
        PlannedRun(
            make_plan(one, place.run(number), code.folder, clusterctl.__version__, rules=rules),
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
            raise UsageError(f"`file=`: {path} is larger than 1 MiB", "write the settings of one run per line")
        return parse_lines(content.decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"`file=`: cannot read {path}: {why}", "write the settings of one run per line") from None

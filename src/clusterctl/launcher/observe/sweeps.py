"""sweep.json, parsed: the runs of a sweep and their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.run_names import NEWEST, is_run_id, job_name, submission
from clusterctl.launcher.observe.runs import newest_first
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.layout import SWEEP_FORMAT, RunDir, SweepDir

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from clusterctl.shared.record.layout import ArrayDir


@dataclass(frozen=True)
class SweepRecord:
    """A sweep as submitted. `settings` are the `KEY=VALUE` of each run, by index."""

    sweep: SweepDir
    created: float
    settings: tuple[tuple[str, ...], ...]
    program: tuple[str, ...] = ()  # with names in braces that are replaced by settings
    at_once: int | None = None

    @property
    def runs(self) -> tuple[RunDir, ...]:
        return tuple(self.sweep.run(place) for place in range(len(self.settings)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The varied keys, in the order given."""
        return tuple(dict.fromkeys(key for settings in self.settings for key in values_of(settings)))


def values_of(settings: Iterable[str]) -> dict[str, str]:
    """The settings of one run by key, as typed."""
    return {key: value for key, _, value in (setting.partition("=") for setting in settings)}


def read_sweep(sweep: SweepDir) -> SweepRecord:
    """The record of `sweep`. Raises ConfigError if sweep.json is missing or damaged."""
    fields = read_fields(sweep.sweep_json)
    runs = fields.content.get("runs")
    created = fields.moment("created")
    rows = runs if isinstance(runs, list) else []
    whole = rows and all(isinstance(one, list) and all(isinstance(text, str) for text in one) for one in rows)
    if fields.whole("schema_version") != SWEEP_FORMAT or not whole or created is None:
        why = fields.problem or ("missing" if fields.absent else "damaged, or written by another version of clusterctl")
        raise ConfigError(f"cannot read {sweep.sweep_json}: {why}", f"its runs can still be named: {sweep.id}.0")
    return SweepRecord(sweep, created, tuple(map(tuple, rows)), fields.texts("program"), fields.whole("at_once"))


def sweep_named(folder: Path, name: str) -> SweepDir | None:
    """The sweep called `name`: its id, or `@last` or a job's name if the newest submission is a sweep."""
    if is_run_id(name) and exists((named := SweepDir.of(folder, name)).sweep_json):
        return named
    newest = next(newest_first(folder, lambda run: name in (NEWEST, job_name(run))), None)
    sweep = submission(newest.id) if newest else ""
    return SweepDir.of(folder, sweep) if newest and sweep != newest.id else None


def runs_of(folder: Path, name: str) -> tuple[RunDir, ...]:
    """The run with the id `name`, or all runs of that sweep. Raises what `read_sweep` raises."""
    sweep = SweepDir.of(folder, name)
    return read_sweep(sweep).runs if exists(sweep.sweep_json) else (RunDir(folder / name),)


def one_run(sweep: SweepDir) -> UsageError:
    """The error for a sweep given instead of a run."""
    return UsageError(
        f"{sweep.id} is a sweep", f"name one of its runs, such as {sweep.id}.0; list them with: clusterctl status"
    )


def place_in_array(run: RunDir) -> tuple[ArrayDir, int] | None:
    """The array in which a sweep's run was last submitted, and its index there; None for other runs."""
    sweep = submission(run.id)
    if sweep == run.id:
        return None
    for array in reversed(SweepDir.of(run.path.parent, sweep).arrays()):
        runs = read_fields(array.array_json).texts("runs")
        if run.id in runs:
            return array, runs.index(run.id)
    return None

"""Comparison of two runs: differences in configuration, code, versions and image, and their results."""

from __future__ import annotations

import math
import os
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.config.secrets import Secrets, secrets_of
from clusterctl.errors import ConfigError, reason
from clusterctl.observe.code_differences import CodeChange, FileChange, FileDifference, code_changes, line_differences
from clusterctl.observe.status import report
from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import exists, is_folder, read_whole
from clusterctl.runs.vocabulary import KNOWN
from clusterctl.spec import to_record
from clusterctl.spec.differences import Difference, differences
from clusterctl.spec.keys import leaves_as_written
from clusterctl.spec.overrides import leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.errors import ClusterctlError
    from clusterctl.observe.run_record import RunRecord
    from clusterctl.observe.stage import Status
    from clusterctl.runs.fields import Fields
    from clusterctl.runs.layout import RunDir
    from clusterctl.spec.overrides import Key

SCHEMA_VERSION = 1
_ASSIGNED = re.compile(r"""^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*["']?(.*?)["']?[ \t]*$""", re.MULTILINE)


class Result(NamedTuple):
    """The last value of a metric in each run; None if it has none."""

    metric: str
    first: float | None
    second: float | None


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs. `code` is None if it cannot be compared; `problems` has the reasons.

    `configuration` has the job's keys, and the cluster's as `cluster.KEY`.
    """

    as_of: float
    statuses: tuple[Status, Status]
    configuration: tuple[Difference, ...]
    code: tuple[CodeChange, ...] | None
    versions: tuple[Difference, ...]
    image: tuple[Difference, ...]
    results: tuple[Result, ...]
    problems: tuple[ClusterctlError, ...] = field(default=(), compare=False)

    def line_differences(self) -> Iterator[FileDifference]:
        """The unified diffs of the code files that differ, without secrets."""
        runs = [status.record.run for status in self.statuses]
        folders = [run.snapshot for run in runs]
        changes = self.code or ()
        hidden = _secrets([status.record for status in self.statuses], folders, changes)
        for change in changes:
            first, second = [run.path for run in runs] if change.name == runs[0].git_patch.name else folders
            yield line_differences(first, second, change, hidden.hide)


def compare(first: RunDir, second: RunDir) -> Comparison:
    """Compare two runs. Raises ConfigError if a record cannot be read."""
    found = report([first, second])
    if len(found.statuses) < 2:
        raise found.problems[0]
    before, after = found.statuses
    records = [(status.record, read_fields(status.record.run.run_json)) for status in found.statuses]
    code: tuple[CodeChange, ...] | None = None
    problems: list[ClusterctlError] = list(found.problems)
    try:
        code = _code_changes(first, second)
    except ConfigError as error:
        problems.append(error)
    return Comparison(
        as_of=found.as_of,
        statuses=(before, after),
        configuration=differences(*(configuration(record) for record, _ in records)),
        code=code,
        versions=differences(*(_versions(fields) for _, fields in records)),
        image=differences(*(_image(record, fields) for record, fields in records)),
        results=tuple(_results(before.metrics, after.metrics)),
        problems=tuple(problems),
    )


def to_json(found: Comparison, lines: Iterable[FileDifference] | None = None) -> dict[str, Any]:
    """The output of `diff -o json`, described in `schemas/diff.json`; with `lines`, each file has its diff."""
    files: Iterable[dict[str, Any]] | None = None
    if lines is not None:
        files = [{"name": one.name, "change": one.change, "diff": _joined(one)} for one in lines]
    elif found.code is not None:
        files = [change._asdict() for change in found.code]
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": [_run(status, found.as_of) for status in found.statuses],
        "configuration": [one._asdict() for one in found.configuration],
        "code": files if found.code is not None else None,
        "versions": [one._asdict() for one in found.versions],
        "image": [one._asdict() for one in found.image],
        "results": [
            {"metric": one.metric, "first": _finite(one.first), "second": _finite(one.second)} for one in found.results
        ],
    }


def _joined(one: FileDifference) -> str | None:
    return None if one.lines is None else "".join(f"{line}\n" for line in one.lines)


def _run(status: Status, now: float) -> dict[str, Any]:
    run = status.record.run
    return {
        "id": run.id,
        "stage": status.stage.value,
        "sure": status.sure,
        "attempts": len(status.attempts),
        "seconds": status.ran(now),
        "directory": str(run.path),
    }


def configuration(record: RunRecord) -> Iterator[tuple[Key, Any]]:
    """The values that a run was submitted with, as in `Comparison.configuration`."""
    yield from leaves_as_written(to_record(record.job))
    for key, value in leaves(to_record(record.cluster)):
        yield ("cluster", *key), value


def _versions(fields: Fields) -> list[tuple[Key, Any]]:
    """The versions recorded at submission, and the code's git commit."""
    git = fields.table("git")
    found: dict[str, Any] = fields.table("versions").named_texts()
    if commit := git.text("commit"):
        found |= {"git commit": commit, "git changes": git.flag("dirty")}
    return [((name,), value) for name, value in found.items()]


def _image(record: RunRecord, fields: Fields) -> list[tuple[Key, Any]]:
    digest = fields.table("image").text("digest") or None
    return [(("image",), record.job.container.image), (("digest",), digest)]


def _results(first: Mapping[str, float], second: Mapping[str, float]) -> Iterator[Result]:
    """Every metric that either run has: known ones in the vocabulary's order, then a program's own."""
    own = (first.keys() | second.keys()) - KNOWN.keys()
    names = [*(name for name in KNOWN if name in first or name in second), *sorted(own)]
    for name in names:
        yield Result(name, first.get(name), second.get(name))


def _finite(value: float | None) -> float | None:
    """JSON has no NaN."""
    return value if value is not None and math.isfinite(value) else None


def _code_changes(first: RunDir, second: RunDir) -> tuple[CodeChange, ...]:
    for run in (first, second):
        if not is_folder(run.snapshot):
            message = f"cannot compare the code: the copy of {run.id} no longer exists: {run.snapshot}"
            raise ConfigError(message, "everything else is compared")
    try:
        return (*_patch_change(first, second), *code_changes(first.snapshot, second.snapshot))
    except (OSError, ValueError) as error:  # ValueError: a patch too large to read
        raise ConfigError(f"cannot compare the code: {reason(error)}", "everything else is compared") from error


def _patch_change(first: RunDir, second: RunDir) -> Iterator[CodeChange]:
    """The change in uncommitted code, for runs without a project copy, which would include it."""
    if any(exists(run.project) and any(run.project.iterdir()) for run in (first, second)):
        return
    before, after = (read_whole(run.git_patch) if exists(run.git_patch) else b"" for run in (first, second))
    if before != after:
        change = FileChange.ADDED if not before else FileChange.CHANGED if after else FileChange.REMOVED
        yield CodeChange(first.git_patch.name, change)


def _secrets(records: Sequence[RunRecord], folders: Sequence[Path], changes: Iterable[CodeChange]) -> Secrets:
    """The secrets that may appear in the code: from this environment, its job files and `.env` files."""
    patterns = tuple(
        dict.fromkeys(pattern for record in records for pattern in secrets_of(record.job, record.cluster, {}).patterns)
    )
    tables: list[object] = [dict(os.environ)]
    for change in changes:
        if change.name.endswith((".toml", "/.env")):
            tables += [variables_in(folder / change.name) for folder in folders]
    return Secrets(patterns).having(*tables)


def variables_in(path: Path) -> object:
    """The variables set by a job file or a `.env` file; None if it cannot be parsed."""
    try:
        text = read_whole(path).decode()
        return tomllib.loads(text).get("env") if path.suffix == ".toml" else dict(_ASSIGNED.findall(text))
    except (OSError, ValueError, RecursionError):
        return None

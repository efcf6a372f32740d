"""Settings: every key, with its value and origin, and a Python program's changes to them as `KEY=VALUE`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.config import chosen_runs_folder, names, state_path
from clusterctl.launcher.config.clusters import site_file
from clusterctl.launcher.config.program import with_interpreter
from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec import WORKLOADS, Cluster, Job, to_record
from clusterctl.shared.spec.cluster import UserConfiguration
from clusterctl.shared.spec.job import Role
from clusterctl.shared.spec.keys import FileKey, as_toml, keys_of, leaves_as_written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.launcher.config import Resolved

Overrides = Mapping[str, object] | Iterable[str]
"""Values by key (`{"train.epochs": 5}`), or `KEY=VALUE` each (`["train.epochs=5"]`)."""

Axes = Mapping[str, str | Iterable[object]] | Iterable[str]
"""Values of a sweep by key (`{"train.lr": [1e-3, 1e-2], "train.seed": "0..4"}`), or `KEY=VALUES` each."""

Program = Sequence[str | os.PathLike[str]]
"""A program and its arguments, one string each."""


def settings(overrides: Overrides) -> list[str]:
    """`overrides` as `KEY=VALUE`, with every value written so that it is read back unchanged. Raises UsageError."""
    if isinstance(overrides, str):
        raise UsageError(f"overrides: a string: {overrides!r}", 'write {"train.epochs": 5}, or ["train.epochs=5"]')
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{key}={_as_toml(key, value)}" for key, value in overrides.items()]


def axes_typed(axes: Axes) -> list[str]:
    """`axes` as `KEY=VALUES`, the arguments of --sweep. Raises UsageError."""
    if isinstance(axes, str):
        raise UsageError(f"axes: a string: {axes!r}", 'write {"train.lr": [1e-3, 1e-2]}, or ["train.lr=1e-3,1e-2"]')
    if not isinstance(axes, Mapping):
        return list(axes)
    return [
        f"{key}={values}" if isinstance(values, str) else f"{key}={','.join(_as_toml(key, value) for value in values)}"
        for key, values in axes.items()
    ]


def program_words(program: Program) -> list[str]:
    """The words of `program`. Raises UsageError for a single string, since no shell would split it."""
    if isinstance(program, str):
        raise UsageError(f"program: a string: {program!r}", 'write its words: ["python", "train.py", "--lr", "1"]')
    return [os.fspath(word) if isinstance(word, os.PathLike) else word for word in program]


def typed(command: str, name: str | None, cluster: str | None, changes: Iterable[str]) -> list[str]:
    """The equivalent command line, stored in a run's record."""
    words = [command, *([] if name is None else [name]), *(["--cluster", cluster] if cluster else [])]
    return [*words, *(word for change in changes for word in ("--set", change))]


def typed_with_program(words: Sequence[str], program: Sequence[str]) -> str:
    """The command to type that runs `program` with the command and options in `words`."""
    return shlex.join(["clusterctl", *words, "--", *with_interpreter(program)])


def _as_toml(key: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        return _quoted(os.fspath(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quoted(str(name))} = {_as_toml(key, item)}" for name, item in value.items()) + "}"
    if isinstance(value, Iterable):
        return "[" + ", ".join(_as_toml(key, item) for item in value) + "]"
    hint = "omit the key" if value is None else "use strings, numbers, booleans, or lists and dicts of them"
    raise UsageError(f"overrides: {key} cannot be {value!r}", hint)


def _quoted(text: str) -> str:
    """A TOML string: JSON's, except for one control character that JSON does not escape."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def values(resolved: Resolved) -> Iterator[tuple[str, str, str]]:
    """Every key set in the job, its value as TOML, and its origin."""
    for path, value in leaves_as_written(to_record(resolved.secrets.hide_in(resolved.job))):
        key, text = ".".join(path), as_toml(value)
        origin = resolved.origins.get(key, "default")
        if text or origin != "default":
            yield key, text, origin


def key_tables() -> Iterator[tuple[str, list[FileKey]]]:
    """Every key of job files, of cluster files and of the user's configuration, by title."""
    yield from job_key_tables()
    yield "Cluster files", list(keys_of(Cluster))
    yield "config.toml in your configuration folder", list(keys_of(UserConfiguration))


def job_key_tables() -> Iterator[tuple[str, list[FileKey]]]:
    """Every key of job files, by title."""
    yield "Job files", list(keys_of(Job))
    yield "Job files, each [[role]]", list(keys_of(Role, "role."))
    for name, entry in WORKLOADS.items():
        yield f"Job files, workload {name}", list(keys_of(entry.train, "train."))


def places() -> Iterator[tuple[str, str, Path]]:
    """The jobs and clusters available in the current folder (kind, name, file), and the folders in use."""
    for kind in ("jobs", "cluster"):
        for name, path in sorted(names(kind, Path.cwd()).items()):
            yield kind.removesuffix("s"), name, path
    if site := site_file():
        yield "site", "", site
    yield "runs", "", chosen_runs_folder(None)
    yield "state", "", state_path()

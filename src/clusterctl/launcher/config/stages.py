"""The stages of a job file: each `[[stage]]` is the job with some changed values, and runs after the previous stage.

workload = "command"
[resources]
nodes = 1
[[stage]]
name = "prepare"
argv = ["python", "prepare.py"]
[[stage]]
name = "train"
argv = ["python", "train.py"]
resources.nodes = 4
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.config.places import find_file
from clusterctl.launcher.config.source import Values, read_toml, shown_path
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec.keys import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TABLE = "stage"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
CONDITIONS = ("after", "after_any", "after_start")


class HasStages(ConfigError):
    """A single run was requested of a job with stages."""


@dataclass(frozen=True)
class StageOfJob:
    """One stage: its values, and the stages it waits for, by condition."""

    name: str
    values: Values
    waits: dict[str, tuple[str, ...]]


def parted(file: Values, path: Path) -> list[StageOfJob]:
    """Extract the stages from the values of the job file at `path`. Raises ConfigError."""
    tables = file.get((_TABLE,))
    place = file.origin((_TABLE,))
    file.drop((_TABLE,))
    if tables is None:
        return []
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{place}: stages must be tables", "write [[stage]] above the values of each")
    stages: list[StageOfJob] = []
    for table in map(dict, tables):
        name, known = table.pop("name", None), [stage.name for stage in stages]
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{place}: a stage needs a name", 'such as name = "train", of letters, digits, . _ and -')
        if name in known:
            raise ConfigError(f"{place}: duplicate stage name: {name}", "give each stage its own name")
        waits = {condition: table.pop(condition) for condition in CONDITIONS if condition in table}
        for condition, others in waits.items():
            if not isinstance(others, list) or not set(map(str, others)) <= set(known):
                hint = f"list only earlier stages: {', '.join(known) or 'there are none'}"
                raise ConfigError(f"{place}: stage {name}: {condition} = {others!r}", hint)
        values = Values()
        for key, value in leaves(table):
            values.put(key, value, f"{shown_path(path)}: stage {name}")
        waits = waits or {"after": known[-1:]}
        stages.append(StageOfJob(name, values, {condition: tuple(others) for condition, others in waits.items()}))
    return stages


def stages_of(job: str, cwd: Path) -> list[StageOfJob]:
    """The stages of the job called `job`; most jobs have none. Raises what `find_file` and `read_toml` raise."""
    path = find_file("jobs", job, cwd)
    return parted(read_toml(path), path)


def chosen(stages: list[StageOfJob], name: str | None, path: Path) -> StageOfJob | None:
    """The stage called `name`; None if the job has no stages. Raises ConfigError for an unknown stage."""
    if name is None and not stages:
        return None
    names = ", ".join(stage.name for stage in stages)
    if name is None:
        raise HasStages(f"{shown_path(path)} has stages: {names}", "all: clusterctl submit JOB; one: `stage=NAME`")
    found: Iterator[StageOfJob] = (stage for stage in stages if stage.name == name)
    if stage := next(found, None):
        return stage
    has = f"its stages: {names}" if names else "it has no stages"
    raise ConfigError(f"{shown_path(path)} has no stage called {name}", has)

"""Reads a TOML file into raw values, each with its location ("jobs/cora.toml:7")."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.launcher.config.client_data import client_data
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import read_beginning
from clusterctl.shared.spec.keys import Key, leaves, put
from clusterctl.shared.spec.records import InvalidRecord, from_record

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.shared.spec.records import Problem

T = TypeVar("T")

LARGEST_BYTES = 2**20
_HINT = "`clusterctl config keys` lists every key"


@dataclass
class Values:
    """Nested raw values, and the origin of every leaf by its path. Later layers override earlier ones."""

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)
    lines: dict[Key, int] = field(default_factory=dict)  # of a file, also within the tables of a list, by their number

    def put(self, key: Key, value: Any, origin: str) -> None:
        """Set one value, creating parent tables. A table is set key by key."""
        self.origins |= dict.fromkeys(put(self.tree, key, value), origin)

    def drop(self, key: Key) -> None:
        """Remove the value at `key`, if there is one."""
        table = self.get(key[:-1])
        if isinstance(table, dict):
            table.pop(key[-1], None)
        self.origins.pop(key, None)

    def get(self, key: Key) -> Any:
        value: Any = self.tree
        for name in key:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def origin(self, key: Key) -> str:
        """The origin of the value at `key`: its own, or that of the table or list that contains it."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.origins:
                return self.origins[key[:length]]
        inside = (origin for path, origin in self.origins.items() if path[: len(key)] == key)
        return next(inside, "")

    def place(self, key: Key) -> str:
        """The origin of the value at `key` as messages name it."""
        origin = self.origin(key)
        return "`overrides=`" if origin == "--set" else origin

    def layer(self, other: Values) -> None:
        for key, origin in other.origins.items():
            self.put(key, other.get(key), origin)


def read_toml(path: Path) -> Values:
    """The values of the file at `path`. Raises ConfigError if it cannot be read or is not TOML."""
    shown = shown_path(path)
    try:
        content = content_of(path)
        if len(content) > LARGEST_BYTES:
            raise ConfigError(
                f"{shown}: larger than 1 MiB", "is it a job file or cluster file? those are short TOML files"
            )
        text = content.decode()
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {shown}: {error.strerror}", f"see: ls -l {shown}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: not UTF-8 text", "save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # also of numbers and nesting that Python itself refuses
        hint = "strings need quotes; tables are written [name]"
        raise ConfigError(f"{shown}: not valid TOML: {error}", hint) from error
    lines = _lines(text)
    values = Values(lines=lines)
    for key, value in leaves(tree):
        # A key in an inline table or a dotted key has no line of its own: use that of its parent.
        line = next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), None)
        values.put(key, value, f"{shown}:{line}" if line else shown)
    return values


def content_of(path: Path) -> bytes:
    """The file's content, from here or from the user's machine, up to one byte more than the size limit."""
    if (client := client_data()) and (sent := client.text(path)) is not None:
        return sent.encode(errors="surrogateescape")
    return read_beginning(path, LARGEST_BYTES + 1)


def read_values(cls: type[T], values: Values, path: Path, hint: str = _HINT) -> T:
    """Build `cls` from `values`. Raises ConfigError with all problems and their locations, or `path` without one."""
    try:
        return from_record(cls, values.tree, parse=True)
    except InvalidRecord as error:
        raise explained(error.problems, values, path, hint) from error


def explained(problems: list[Problem], values: Values, path: Path, hint: str = _HINT) -> ConfigError:
    """One error for all problems with their locations, in the order of the file."""
    file = shown_path(path)
    hints = [problem.hint or _meant(problem, values) for problem in problems]
    hint = next(filter(None, hints), hint)
    lines = [f"{values.place(problem.path) or file}: {problem}" for problem in problems]
    if len(lines) == 1:
        return ConfigError(lines[0], hint)
    listed = "\n  ".join(lines)
    return ConfigError(f"{len(lines)} problems in {file}\n  {listed}", hint)


def _meant(problem: Problem, values: Values) -> str:
    """The setting that was meant by one with an unknown key; only a number is repeated, as a text may be a secret."""
    value, meant = values.get(problem.path), problem.nearest
    if values.origin(problem.path) != "--set" or not meant or " or " in meant or type(value) not in (int, float):
        return ""
    return f"did you mean `{'.'.join([*problem.path[:-1], meant] if '.' not in meant else [meant])} = {value}`?"


def shown_path(path: Path) -> str:
    """`path` as one would type it in the current folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("../..") else relative


def _lines(text: str) -> dict[Key, int]:
    """Key -> line number, found heuristically since tomllib does not report it. Good enough for messages."""
    table: Key = ()
    found: dict[Key, int] = {}
    places: dict[Key, int] = {}
    element: Key = ()  # of a list of tables
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[(\[?)([^\[\]]+)\]", line):
            table = _dotted(header[2])
            found.setdefault(table, number)
            if header[1]:
                place = places[table] = places.get(table, -1) + 1
                element = (*table, str(place))
            elif element and table[: len(element) - 1] == element[:-1]:  # [role.env], of the last one
                element = (*element[: len(element)], *table[len(element) - 1 :])
            else:
                element = ()
            if element:
                found[element] = number
        elif assignment := re.match(r"""\s*([\w.'" -]+?)\s*=""", line):
            key = _dotted(assignment[1])
            found.setdefault((*table, *key), number)
            if element:
                found.setdefault((*element, *key), number)
    return found


def _dotted(text: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in text.split("."))

"""Reads a TOML file into raw values, each with the place that it came from ("jobs/cora.toml:7")."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from clusterctl.config.delivery import delivered
from clusterctl.errors import ConfigError
from clusterctl.spec.overrides import Key, leaves, put
from clusterctl.spec.records import InvalidRecord, from_record

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.spec.records import Problem

T = TypeVar("T")

_LARGEST_BYTES = 2**20
_HINT = "`clusterctl config keys` lists every key"


@dataclass
class Values:
    """Nested raw values, and the origin of every leaf by its path. Later layers replace what earlier ones said."""

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)

    def put(self, key: Key, value: Any, origin: str) -> None:
        """Set one value; tables on the way are made. A table put whole is put key by key."""
        self.origins |= dict.fromkeys(put(self.tree, key, value), origin)

    def drop(self, key: Key) -> None:
        """Forget the value at `key`, if there is one."""
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
        """Where the value at `key` came from: its own origin, or that of the table or list that holds it."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.origins:
                return self.origins[key[:length]]
        inside = (origin for path, origin in self.origins.items() if path[: len(key)] == key)
        return next(inside, "")

    def layer(self, other: Values) -> None:
        for key, origin in other.origins.items():
            self.put(key, other.get(key), origin)


def read_toml(path: Path) -> Values:
    """The values of the file at `path`. Raises ConfigError for a file that cannot be read or is no TOML."""
    shown = shown_path(path)
    try:
        content = content_of(path)
        if len(content) > _LARGEST_BYTES:
            raise ConfigError(f"{shown}: larger than 1 MiB", "is it a job file or cluster file? they are short TOML")
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
    values = Values()
    for key, value in leaves(tree):
        # A key inside an inline table or a dotted key has no line of its own: take that of what holds it.
        line = next((lines[key[:n]] for n in range(len(key), 0, -1) if key[:n] in lines), None)
        values.put(key, value, f"{shown}:{line}" if line else shown)
    return values


def content_of(path: Path) -> bytes:
    """What is in the file, here or where the command was typed, up to a byte more than a configuration may have."""
    if (came := delivered()) and (sent := came.text(path)) is not None:
        return sent.encode(errors="surrogateescape")
    with path.open("rb") as file:
        return file.read(_LARGEST_BYTES + 1)


def read_values(cls: type[T], values: Values, path: Path, hint: str = _HINT) -> T:
    """The `cls` that `values` describe. Raises ConfigError with every problem and its place; `path` has the rest."""
    try:
        return from_record(cls, values.tree, parse=True)
    except InvalidRecord as error:
        raise explained(error.problems, values, path, hint) from error


def explained(problems: list[Problem], values: Values, path: Path, hint: str = _HINT) -> ConfigError:
    """One error that names every problem with its place, the first one first in the file."""
    file = shown_path(path)
    hint = next((problem.hint for problem in problems if problem.hint), hint)
    lines = [f"{values.origin(problem.path) or file}: {problem}" for problem in problems]
    if len(lines) == 1:
        return ConfigError(lines[0], hint)
    listed = "\n  ".join(lines)
    return ConfigError(f"{len(lines)} problems in {file}\n  {listed}", hint)


def shown_path(path: Path) -> str:
    """`path` as a person would type it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("../..") else relative


def _lines(text: str) -> dict[Key, int]:
    """Key -> line number, by the look of the lines: tomllib does not tell. Good enough for messages."""
    table: Key = ()
    found: dict[Key, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\[?([^\[\]]+)\]", line):
            table = _dotted(header[1])
            found.setdefault(table, number)
        elif assignment := re.match(r"""\s*([\w.'" -]+?)\s*=""", line):
            found.setdefault((*table, *_dotted(assignment[1])), number)
    return found


def _dotted(text: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in text.split("."))

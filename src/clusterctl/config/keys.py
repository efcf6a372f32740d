"""Every key of job and cluster files, read off the dataclasses: for `config keys` and the generated reference."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.spec import to_record
from clusterctl.spec.record import fields_of
from clusterctl.spec.values import Duration, OneOf

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS = {int: "integer", float: "number", str: "string", bool: "true or false", tuple: "list", dict: "table"}


class Key(NamedTuple):
    path: str
    kind: str
    default: str  # as TOML; nothing where there is none


def keys_of(cls: type, prefix: str = "") -> Iterator[Key]:
    """The keys of `cls` in the order of definition; tables in place."""
    hints = fields_of(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from keys_of(hint, f"{prefix}{field.name}.")
        else:
            yield Key(f"{prefix}{field.name}", _kind(hint), _default(field))


def as_toml(value: Any) -> str:
    """A plain value as it would stand in a file; nothing for one that is not set."""
    return "" if value is None or value in ([], {}) else json.dumps(value, ensure_ascii=False)


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is dataclasses.MISSING else as_toml(to_record(field.default))


def _kind(hint: Any) -> str:
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Duration):
            return "minutes" if mark.unit == 60 else "seconds"
        if isinstance(mark, OneOf):
            return " | ".join(mark.choices)
    if typing.get_origin(hint) in (typing.Annotated, typing.Union, types.UnionType):
        return _kind(typing.get_args(hint)[0])
    return _KINDS[typing.get_origin(hint) or hint]

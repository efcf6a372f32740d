"""`train.lr=3e-3`: one value of a job, given to `clusterctl submit --set` or to a workload under torchrun."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clusterctl.errors import UsageError
from clusterctl.spec.job import Job
from clusterctl.spec.records import fields_of, unwrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Key = tuple[str, ...]


def parse_override(text: str, workload: object) -> tuple[Key, Any]:
    """The key and the value of KEY=VALUE, for a job of `workload`. Raises UsageError for text without a key or "="."""
    name, equals, value = text.partition("=")
    key = tuple(part.strip() for part in name.split("."))
    if not equals or not all(key):
        shown = re.match(r"[\w.-]*", text)  # only the key: the rest may be a secret
        raise UsageError(f"expected KEY=VALUE, not: {shown and shown[0]}", "for example train.lr=3e-3")
    return key, _value(key, value.strip(), workload)


def put(tree: dict[str, Any], key: Key, value: Any) -> list[Key]:
    """Set one value in nested tables, creating missing ones; returns the keys that were set.

    A table is merged key by key, so an empty one removes nothing.
    """
    if isinstance(value, dict) and value:
        return [leaf for name, item in value.items() for leaf in put(tree, (*key, name), item)]
    for name in key[:-1]:
        if not isinstance(tree.get(name), dict):
            tree[name] = {}
        tree = tree[name]
    if value == {} and isinstance(tree.get(key[-1]), dict):
        return []
    tree[key[-1]] = value
    return [key]


def leaves(tree: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """The values of nested tables by key, including empty tables; the inverse of `put`."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def _value(key: Key, text: str, workload: object) -> Any:
    """`text` as a TOML value, or unchanged for a key of type string."""
    if _takes_text(key, workload) and text[:1] not in ("'", '"'):
        return text
    try:
        value = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also for numbers and nesting beyond Python's limits
        with suppress(ValueError):
            return float(text)
        return text
    # "01:30:00" would be a time of day, and a newline could smuggle in a second key.
    plain = set(value) == {"value"} and isinstance(value["value"], bool | int | float | str | list | dict)
    return value["value"] if plain else text


def _takes_text(key: Key, workload: object) -> bool:
    hint: Any = Job
    for name in key:
        if dataclasses.is_dataclass(hint):
            hints = fields_of(typing.cast("type", hint), workload if isinstance(workload, str) else "")
            hint = unwrapped(hints.get(name))[0]
        elif typing.get_origin(hint) is dict:
            hint = unwrapped(typing.get_args(hint)[1])[0]
        else:
            return False
    return hint is str

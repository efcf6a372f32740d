"""`--set train.lr=3e-3`: one value of a job, typed on the command line."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types
import typing
from typing import TYPE_CHECKING, Any

from clusterctl.config.source import Key, Values
from clusterctl.errors import UsageError
from clusterctl.spec import WORKLOADS, Job
from clusterctl.spec.records import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def read_overrides(settings: Iterable[str], workload: object) -> Values:
    """The values of `settings`, each `KEY=VALUE`. Raises UsageError for one without a key or "="."""
    values = Values()
    for setting in settings:
        name, equals, text = setting.partition("=")
        key = tuple(part.strip() for part in name.split("."))
        if not equals or not all(key):
            shown = re.match(r"[\w.-]*", setting)  # no more: what follows may be a secret
            raise UsageError(f"--set takes KEY=VALUE, not: {shown and shown[0]}", "for example --set train.lr=3e-3")
        values.put(key, _value(key, text.strip(), workload), "--set")
    return values


def _value(key: Key, text: str, workload: object) -> Any:
    """`text` as a TOML value; a key that takes a string takes the text as it stands."""
    if _takes_text(key, workload) and text[:1] not in ("'", '"'):
        return text
    try:
        value = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also of numbers and nesting that Python itself refuses
        return _number(text)
    # "01:30:00" would be a time of day, and a newline could smuggle in a second key.
    plain = set(value) == {"value"} and isinstance(value["value"], bool | int | float | str | list | dict)
    return value["value"] if plain else text


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _takes_text(key: Key, workload: object) -> bool:
    hint: Any = Job
    for name in key:
        if dataclasses.is_dataclass(hint):
            hints = fields_of(typing.cast("type", hint))
            if "train" in hints and isinstance(workload, str) and workload in WORKLOADS:
                hints["train"] = WORKLOADS[workload].train
            hint = _plain(hints.get(name))
        elif typing.get_origin(hint) is dict:
            hint = _plain(typing.get_args(hint)[1])
        else:
            return False
    return hint is str


def _plain(hint: Any) -> Any:
    """`hint` without its marks and without None."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            hint = next(a for a in typing.get_args(hint) if a is not types.NoneType)
        else:
            return hint

"""Converts values of the Python API to JSON and back, preserving types across machines.

Nothing is executed, and only our own classes are looked up: the other machine is not trusted.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import math
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ClusterctlError, HostError
from clusterctl.spec.values import GpuCount

if TYPE_CHECKING:
    from collections.abc import Callable

_OURS = "clusterctl."


def encoded(value: Any) -> Any:
    """`value` as JSON types. Raises TypeError for an unsupported type."""
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, Enum):
        return {"enum": _name(type(value)), "name": value.name}
    if isinstance(value, float):
        return {"float": repr(float(value))}
    if isinstance(value, GpuCount):
        return {"gpus": value.written}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if isinstance(value, BaseException):
        kept = {name: item for name, item in vars(value).items() if name != "diagnosis"}
        return {"error": _name(type(value)), "text": str(value), "fields": encoded(kept)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = {item.name: getattr(value, item.name) for item in dataclasses.fields(value) if item.init}
        return {"of": _name(type(value)), "fields": encoded(kept)}
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        return {"of": _name(type(value)), "fields": encoded(dict(zip(names, value, strict=True)))}
    if isinstance(value, tuple | list | set | frozenset):
        items = [encoded(item) for item in value]
        kind = type(value)
        return {kind.__name__: items} if kind.__module__ == "builtins" else {"of": _name(kind), "items": items}
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
    raise TypeError(f"{type(value).__qualname__} stays on its machine")


def decoded(value: Any, adopt: Callable[[Any], Any] = lambda value: value) -> Any:
    """The inverse of `encoded`; each of our objects is passed through `adopt`. Raises HostError."""
    try:
        return _decoded(value, adopt)
    except (KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise HostError(f"invalid data from the other clusterctl: {error}", "run the command again") from error


def _decoded(value: Any, adopt: Callable[[Any], Any]) -> Any:
    if not isinstance(value, dict):
        return value
    if "of" in value:
        cls = _class(value["of"])
        if "items" in value:
            return cls(_decoded(item, adopt) for item in value["items"])
        return adopt(cls(**_decoded(value["fields"], adopt)))
    if "error" in value:
        return _error(value, adopt)
    if "enum" in value:
        return _class(value["enum"])[value["name"]]
    for name, kind in (("tuple", tuple), ("list", list), ("set", set), ("frozenset", frozenset)):
        if name in value:
            return kind(_decoded(item, adopt) for item in value[name])
    if "dict" in value:
        return {_decoded(key, adopt): _decoded(item, adopt) for key, item in value["dict"]}
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    simple: dict[str, Callable[[Any], Any]] = {"float": float, "gpus": GpuCount, "path": Path}
    ((name, item),) = value.items()
    return simple[name](item)


def _error(value: dict[str, Any], adopt: Callable[[Any], Any]) -> BaseException:
    """An error as raised there, created without running its constructor."""
    cls = _class(value["error"])
    error: ClusterctlError = cls.__new__(cls, value["text"])
    vars(error).update(_decoded(value["fields"], adopt))
    return error


def _name(cls: type) -> str:
    if not cls.__module__.startswith(_OURS):
        raise TypeError(f"{cls.__qualname__} stays on its machine")
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> Any:
    """One of our value or error classes. Raises TypeError for anything else."""
    module, _, path = name.partition(":")
    if not module.startswith(_OURS):
        raise TypeError(f"not a class of clusterctl: {name}")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not (
        dataclasses.is_dataclass(found)
        or issubclass(found, Enum | ClusterctlError)
        or issubclass(found, list | tuple)
    ):  # fmt: skip
        raise TypeError(f"not a value class: {name}")
    return found

"""Converts values of the Python API to JSON and back, preserving types across machines.

The other machine is not trusted. A value is read as the type that the operation's annotations name here: nothing is
unpickled, no name from an answer is imported, and no class is created but that type or a subclass known here.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import functools
import importlib
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from clusterctl.shared.errors import ClusterctlError, HostError
from clusterctl.shared.spec.values import GpuCount

if TYPE_CHECKING:
    from collections.abc import Callable

# Errors besides those in `shared.errors`; others are sent as the class that they are a case of.
_ERRORS = {
    "clusterctl.launcher.api.run": ("RunFailed",),
    "clusterctl.launcher.api.sweeps": ("SweepFailed",),
    "clusterctl.launcher.config.roles": ("HasStages",),
    "clusterctl.launcher.submission.code_files": ("LargeCode",),
    "clusterctl.launcher.submission.sbatch": ("SlurmRefused",),
}
_ROOT = ClusterctlError.__module__
# A `place` is set here, never by an answer.
_STAYING: dict[str, Any] = {"RemoteCluster": types.NoneType}
_DEEPEST = 100
_LONGEST_NUMBER = 40  # characters
_LONGEST_INTEGER = 64  # bits
_INVALID = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_SIMPLE: tuple[Any, ...] = (bool, bytes, float, int, str, types.NoneType, Path, GpuCount)
_HOLDERS: dict[Any, tuple[str, ...]] = {
    list: ("list",), tuple: ("tuple",), set: ("set",), frozenset: ("frozenset",),
    **dict.fromkeys((Collection, Iterable, Sequence), ("list", "tuple")),
}  # fmt: skip


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
    if isinstance(value, ClusterctlError):
        cls = next(cls for cls in type(value).__mro__ if _is_known_error(cls.__module__, cls.__qualname__))
        kept = {name: item for name, item in vars(value).items() if name in _fields(cls)}
        return {"error": _name(cls), "text": str(value), "fields": encoded(kept)}
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


def parsed(text: bytes | str) -> Any:
    """JSON from the other machine. Raises HostError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(error) from error


def decoded(value: Any, hint: Any, adopt: Callable[[Any], Any] = lambda value: value) -> Any:
    """The inverse of `encoded`, for a value of the type `hint`; `Any` is a value without code of ours.

    Each of our objects is passed through `adopt`. Raises HostError for anything else.
    """
    try:
        return _read(value, hint, adopt, 0)
    except _INVALID as error:
        raise _invalid(error) from error


def resolved(annotation: Any, module: str) -> Any:
    """The type that `annotation` means in `module`, whose names may be imported for type checking only."""
    if isinstance(annotation, typing.ForwardRef):  # of a named tuple
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        annotation = eval(annotation, dict(vars(importlib.import_module(module))), _Names(module))  # our source
    return types.NoneType if annotation is None else annotation


class _Names(dict[str, Any]):
    """The names that `module` imports or defines for type checking, imported when needed."""

    def __init__(self, module: str) -> None:
        super().__init__(_STAYING)
        self._module = module

    def __missing__(self, name: str) -> Any:
        found = vars(sys.modules[self._module])
        if name in found or name not in (meant := _names_for_types(self._module)):
            raise KeyError(name)
        module, expression = meant[name]
        return resolved(expression, module)


@functools.cache
def _names_for_types(module: str) -> Mapping[str, tuple[str, str]]:
    """Name in the `if TYPE_CHECKING:` of `module` -> the module that it comes from, and what it means there."""
    blocks = (one for one in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(one, ast.If))
    found: dict[str, tuple[str, str]] = {}
    for block in blocks:
        if "TYPE_CHECKING" in ast.unparse(block.test):
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    found |= {name.asname or name.name: (line.module, name.name) for name in line.names}
                elif isinstance(line, ast.AnnAssign) and line.value:  # an alias
                    found[ast.unparse(line.target)] = module, ast.unparse(line.value)
    return found


@functools.cache
def _fields(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass, a named tuple or an error of ours, and their types."""
    found: dict[str, tuple[Any, str]] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("clusterctl."):
            found |= {name: (one, base.__module__) for name, one in inspect.get_annotations(base).items()}
    if dataclasses.is_dataclass(cls):
        names: Iterable[str] = [item.name for item in dataclasses.fields(cls) if item.init]
    else:
        names = [name for name, (one, _) in found.items() if not str(one).startswith("ClassVar")]
    return {name: resolved(*found[name]) for name in names}


def _read(value: Any, hint: Any, adopt: Callable[[Any], Any], depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("too deeply nested")
    read = functools.partial(_read, adopt=adopt, depth=depth + 1)
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Annotated:
        return read(value, arguments[0])
    if origin in (typing.Union, types.UnionType):
        for hint in arguments:
            try:
                return read(value, hint)
            except _INVALID as error:
                problem = error
        raise problem
    if hint in (Any, object):
        return _read_any(value, read)
    if origin in _SIMPLE:
        return _read_simple(value, origin)
    if origin in _HOLDERS:
        kind, items = _only(value)
        if kind not in _HOLDERS[origin]:
            raise TypeError(f"expected {origin.__name__}")
        return _held(kind, items, arguments, read)
    if origin in (dict, Mapping):
        key, item = arguments or (Any, Any)
        return {read(name, key): read(one, item) for name, one in _pairs(value)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        if type(value) is not dict or value.get("enum") != _name(hint) or type(value["name"]) is not str:
            raise TypeError(f"expected {hint.__name__}")
        return hint[value["name"]]
    if isinstance(hint, type):
        return _read_object(value, hint, read, adopt)
    raise TypeError(f"no value of the type {hint} is sent")


def _read_any(value: Any, read: Callable[[Any, Any], Any]) -> Any:
    """A value of any type without code of ours."""
    if not isinstance(value, dict):
        return _read_simple(value, type(value))
    kind, item = _only(value)
    if kind == "dict":
        return {read(name, Any): read(one, Any) for name, one in _pairs(value)}
    if kind in ("tuple", "list", "set", "frozenset"):
        return _held(kind, item, (Any, ...), read)
    simple = {"float": float, "gpus": GpuCount, "path": Path, "bytes": bytes}
    return _read_simple(value, simple[kind])


def _read_simple(value: Any, kind: Any) -> Any:
    """A value without inner values; numbers may be written as text where JSON has no notation for them."""
    if kind in (bool, int, str, types.NoneType) or (kind is float and type(value) in (int, float)):
        if type(value) is not kind and kind is not float:
            raise TypeError(f"expected {kind.__name__}")
        if type(value) is int and value.bit_length() > _LONGEST_INTEGER:
            raise ValueError("a number beyond 64 bits")
        return value
    name, item = _only(value)
    if name != {float: "float", GpuCount: "gpus", Path: "path", bytes: "bytes"}[kind]:
        raise TypeError(f"expected {kind.__name__}")
    if kind is GpuCount and type(item) is int:
        return GpuCount(item)
    if type(item) is not str or (kind in (float, GpuCount) and len(item) > _LONGEST_NUMBER):
        raise TypeError(f"expected {kind.__name__}")
    return base64.b64decode(item, validate=True) if kind is bytes else kind(item)


def _read_object(value: Any, hint: type, read: Callable[[Any, Any], Any], adopt: Callable[[Any], Any]) -> Any:
    """An object of the class `hint`, or of a subclass that is known here."""
    if type(value) is not dict:
        raise TypeError(f"expected {hint.__name__}")
    cls = _meant(hint, value.get("of", value.get("error")))
    if "items" in value:
        if not issubclass(cls, list):
            raise TypeError(f"{cls.__name__} has no items")
        bases = types.get_original_bases(cls) if sys.version_info >= (3, 12) else cls.__orig_bases__  # type: ignore[attr-defined]
        (hint_of_items,) = next(found for base in bases if (found := typing.get_args(base)))
        hint_of_items = resolved(hint_of_items, cls.__module__)
        return cls([read(item, hint_of_items) for item in _list(value["items"])])
    hints = _fields(cls)
    fields = {name: read(item, hints[name]) for name, item in _pairs(value["fields"])}
    if not issubclass(cls, ClusterctlError):
        return adopt(cls(**fields))
    if missing := [name for name in hints if name not in fields and not hasattr(cls, name)]:
        raise TypeError(f"{cls.__name__} without {missing[0]}")
    error: ClusterctlError = cls.__new__(cls, _read_simple(value["text"], str))  # without running its constructor
    vars(error).update(fields)
    error.note_hint()
    return error


def _held(kind: str, items: Any, hints: tuple[Any, ...], read: Callable[[Any, Any], Any]) -> Any:
    items = _list(items)
    if not hints:
        hints = (Any, ...)
    if kind == "tuple" and (len(hints) != 2 or hints[1] is not ...):
        return tuple(read(item, hint) for item, hint in zip(items, hints, strict=True))
    makers: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return makers[kind]([read(item, hints[0]) for item in items])


def _only(value: Any) -> tuple[str, Any]:
    """The one key and value of an object in JSON."""
    if type(value) is not dict or len(value) != 1:
        raise TypeError("expected one key and its value")
    ((name, item),) = value.items()
    return name, item


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    name, pairs = _only(value)
    if name != "dict" or not all(type(pair) is list and len(pair) == 2 for pair in _list(pairs)):
        raise TypeError("expected a dict")
    return [(first, second) for first, second in pairs]


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError("expected a list")
    return value


def _name(cls: type) -> str:
    if not cls.__module__.startswith("clusterctl."):
        raise TypeError(f"{cls.__qualname__} stays on its machine")
    return f"{cls.__module__}:{cls.__qualname__}"


def _meant(hint: type, named: Any) -> type:
    """The class called `named`: `hint` or one of its subclasses. Raises TypeError for anything else."""
    if type(named) is not str or not hint.__module__.startswith("clusterctl."):
        raise TypeError(f"expected {hint.__name__}")
    module, _, name = named.partition(":")
    if issubclass(hint, ClusterctlError) and _is_known_error(module, name):
        importlib.import_module(module)
    waiting = [hint]
    while waiting:
        cls = waiting.pop()
        if named == f"{cls.__module__}:{cls.__qualname__}":
            return cls
        waiting += cls.__subclasses__()
    raise TypeError(f"expected {hint.__name__}")


def _is_known_error(module: str, name: str) -> bool:
    return name in _ERRORS.get(module, ()) or module == _ROOT


def _invalid(error: Exception) -> HostError:
    what = "too deeply nested" if isinstance(error, RecursionError) else str(error)[:200]
    return HostError(f"invalid data from the other clusterctl: {what}", "run the command again")

"""Converts values of the Python API to JSON and back, preserving types across machines.

The other machine is not trusted. A value is read as the type that is expected here: nothing is unpickled, no name from
an answer is imported, and no class is created but those listed in `TYPES`.
"""

from __future__ import annotations

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from clusterctl.shared.errors import ClusterctlError, HostError
from clusterctl.shared.spec.values import GpuCount

# Every type of ours that an answer may contain.
TYPES: dict[str, tuple[str, ...]] = {
    "clusterctl.launcher.api.run": ("MetricRecords", "Run", "RunFailed"),
    "clusterctl.launcher.api.sweeps": ("Sweep", "SweepFailed"),
    "clusterctl.launcher.checks.check": ("Check", "Verdict"),
    "clusterctl.launcher.diagnosis.diagnose": ("Diagnosis",),
    "clusterctl.launcher.diagnosis.finding": ("Consequence", "Finding"),
    "clusterctl.shared.errors": (
        "Cause", "ClusterctlError", "ConfigError", "HostError", "ImageError", "NotFoundError", "ProgramEnded",
        "SlurmError", "TaskError", "UsageError", "WaitTimedOut",
    ),
    "clusterctl.launcher.observe.attempt": ("AttemptEvidence", "Course", "Mean", "SetupFlaw"),
    "clusterctl.launcher.observe.rank_events": ("Death",),
    "clusterctl.launcher.observe.logs": ("Line", "Source"),
    "clusterctl.launcher.observe.measurements": ("Pace",),
    "clusterctl.launcher.observe.ranking": ("Ranked", "SweepSummary"),
    "clusterctl.launcher.observe.run_record": ("Condition", "Predecessor", "RunRecord"),
    "clusterctl.launcher.observe.slurm_log": ("EndedBy",),
    "clusterctl.launcher.observe.stage": ("Status",),
    "clusterctl.launcher.observe.status": ("Report",),
    "clusterctl.launcher.observe.sweeps": ("SweepRecord",),
    "clusterctl.shared.record.layout": ("RunDir", "SweepDir"),
    "clusterctl.shared.record.marks": ("Refusal",),
    "clusterctl.shared.record.stages": ("Stage",),
    "clusterctl.shared.record.vocabulary": ("Better", "Metric", "Number", "Role"),
    "clusterctl.launcher.slurm.queue": ("JobState", "QueuedJob", "Snapshot"),
    "clusterctl.shared.spec.cluster": ("Cluster", "Emulator"),
    "clusterctl.shared.spec.job": (
        "Checkpoint", "Container", "Job", "NodeCheck", "Resources", "Restart", "Watchdog",
    ),
    "clusterctl.shared.spec.notify": ("Notify", "Track"),
    "clusterctl.shared.spec.batches": ("Batches", "TrainingSet"),
    "clusterctl.shared.spec.train": (
        "CommandTrain", "Data", "DeepSageTrain", "GraphClassificationTrain", "LinkPredictionTrain", "LoopTrain",
        "NodeClassificationTrain", "NodeTrain", "RedditTrain", "SyntheticTrain", "TaobaoTrain", "Train",
    ),
}  # fmt: skip
_MODULES = {name: module for module, names in TYPES.items() for name in names}
# What annotations name besides those. A `place` is set here, never by an answer.
_OTHERS: dict[str, Any] = {
    "Callable": Callable, "Collection": Collection, "Elsewhere": types.NoneType, "Iterable": Iterable,
    "Mapping": Mapping, "Path": Path, "Sequence": Sequence,
}  # fmt: skip
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
        cls = next(cls for cls in type(value).__mro__ if _is_listed(cls))  # private ones as what they are a case of
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


def decoded(value: Any, hint: Any = None, adopt: Callable[[Any], Any] = lambda value: value) -> Any:
    """The inverse of `encoded`, for a value of the type `hint`, or else of any type in `TYPES`.

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
        annotation = eval(annotation, vars(sys.modules[module]), _Names(module))  # from our own source
    return types.NoneType if annotation is None else annotation


class _Names(Mapping[str, Any]):
    """The names of `TYPES`, imported when needed, unless the module itself has that name."""

    def __init__(self, module: str) -> None:
        self._own = vars(sys.modules[module])

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            raise KeyError(name)
        return _OTHERS[name] if name in _OTHERS else getattr(importlib.import_module(_MODULES[name]), name)

    def __iter__(self) -> typing.Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


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
        return _one_of(value, arguments, read)
    if hint is None or hint in (Any, object):
        return _read_any(value, read, ours=hint is None)
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


def _one_of(value: Any, hints: tuple[Any, ...], read: Callable[[Any, Any], Any]) -> Any:
    for hint in hints:
        try:
            return read(value, hint)
        except _INVALID as error:
            problem = error
    raise problem


def _read_any(value: Any, read: Callable[[Any, Any], Any], *, ours: bool) -> Any:
    """A value of any type without code of ours, or with `ours` of any type in `TYPES`."""
    if not isinstance(value, dict):
        return _read_simple(value, type(value))
    inner = None if ours else Any
    if ours and (named := value.get("of", value.get("error", value.get("enum")))) is not None:
        return read(value, _listed(named))
    kind, item = _only(value)
    if kind == "dict":
        return {read(name, inner): read(one, inner) for name, one in _pairs(value)}
    if kind in ("tuple", "list", "set", "frozenset"):
        return _held(kind, item, (inner, ...), read)
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
    """An object of the class `hint`, or of one of its listed subclasses."""
    if type(value) is not dict:
        raise TypeError(f"expected {hint.__name__}")
    cls = _listed(value.get("of", value.get("error")))
    if not issubclass(cls, hint):
        raise TypeError(f"expected {hint.__name__}")
    if "items" in value:
        if not issubclass(cls, list):
            raise TypeError(f"{cls.__name__} has no items")
        (base,) = types.get_original_bases(cls) if sys.version_info >= (3, 12) else cls.__orig_bases__  # type: ignore[attr-defined]
        (hint_of_items,) = typing.get_args(base)
        return cls([read(item, hint_of_items) for item in _list(value["items"])])
    hints = _fields(cls)
    fields = {name: read(item, hints[name]) for name, item in _pairs(value["fields"])}
    if not issubclass(cls, ClusterctlError):
        return adopt(cls(**fields))
    if missing := [name for name in hints if name not in fields and not hasattr(cls, name)]:
        raise TypeError(f"{cls.__name__} without {missing[0]}")
    error: ClusterctlError = cls.__new__(cls, _read_simple(value["text"], str))  # without running its constructor
    vars(error).update(fields)
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


def _is_listed(cls: type) -> bool:
    return cls.__qualname__ in TYPES.get(cls.__module__, ())


def _name(cls: type) -> str:
    if not _is_listed(cls):
        raise TypeError(f"{cls.__qualname__} stays on its machine")
    return f"{cls.__module__}:{cls.__qualname__}"


def _listed(named: Any) -> Any:
    """The class in `TYPES` called `named`. Raises TypeError for anything else."""
    module, _, name = named.partition(":") if type(named) is str else ("", "", "")
    if name not in TYPES.get(module, ()):
        raise TypeError("a type that is not sent between machines")
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, type):
        raise TypeError("not a class")
    return found


def _invalid(error: Exception) -> HostError:
    what = "too deeply nested" if isinstance(error, RecursionError) else str(error)[:200]
    return HostError(f"invalid data from the other clusterctl: {what}", "run the command again")

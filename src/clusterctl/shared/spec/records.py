"""Convert dataclasses to plain records (JSON, TOML) and back, reporting all problems of a record at once.

Both the command line and the tasks read records, hence standard library only, and one set of rules
(docs/decisions/configuration-and-checks.md).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import types
import typing
from typing import Any, NamedTuple, TypeVar

from clusterctl.shared.errors import ConfigError
from clusterctl.shared.spec.train import SCRIPT, WORKLOADS, Train
from clusterctl.shared.spec.values import TYPED_GPUS, GpuCount, InsteadOf, Mark, Or, Unshown

if typing.TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
UNKNOWN_KEY = "unknown key"
_CLOSE_ELSEWHERE = 0.75  # similarity of spellings: among the keys of all tables, one is always somewhat like another
# Keys that had another name: an error names the new one, and in records of runs they are read as it.
RENAMED: dict[tuple[str, ...], tuple[str, str]] = {("resources", "stage_code"): ("resources", "local_code")}


class Problem(NamedTuple):
    """One problem in a record: the key's path, a message, and the nearest valid name or a hint, if any."""

    path: tuple[str, ...]
    message: str
    nearest: str = ""
    hint: str = ""

    def __str__(self) -> str:
        place = f"{'.'.join(self.path)}: " if self.path else ""
        return f"{place}{self.message}" + (f" (did you mean {self.nearest}?)" if self.nearest else "")


class InvalidRecord(ConfigError):
    """A record with problems; `problems` lists all of them."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


def to_record(value: Any) -> Any:
    """`value` as JSON types: dataclasses and named tuples become dicts, other tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_record(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_record(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: to_record(item) for name, item in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return [to_record(item) for item in value]
    return value.written if isinstance(value, GpuCount) else value


def from_record(cls: type[T], record: dict[str, Any], *, parse: bool = False) -> T:
    """The dataclass `cls` that `record` describes; the record's `workload` determines the class of `train`.

    With `parse`, values may be written as in a file ("4h" for a duration). Types are strict: true is not a number, 1.5
    is not an integer. Raises InvalidRecord with all unknown keys, missing keys, wrong types and values out of bounds.
    """
    problems: list[Problem] = []
    value = _read(cls, record, parse, (), problems)
    if any(one.message == UNKNOWN_KEY for one in problems):
        paths = list(key_paths(cls, str(record.get("workload", ""))))
        problems = [_placed(one, paths) if one.message == UNKNOWN_KEY else one for one in problems]
    if problems:
        raise InvalidRecord(problems)
    return value  # type: ignore[no-any-return]


def from_stored(cls: type[T], record: dict[str, Any], *, newer: bool) -> tuple[T, tuple[str, ...]]:
    """Like `from_record`, for a record on disk that another version may have written; also returns what was skipped.

    Unknown keys are skipped. If the writer was `newer`, so are values that this version does not know, such as the name
    of a workload: their defaults take their place, or `command` that of the workload.
    """
    skipped: list[str] = []
    record = with_new_names(record) if isinstance(record, dict) else record
    while True:
        try:
            return from_record(cls, record), tuple(skipped)
        except InvalidRecord as invalid:
            known = record
            for problem in invalid.problems:
                if problem.message == UNKNOWN_KEY or newer:
                    known = _without(known, problem.path)
            if newer and record.get("workload", "command") not in (*WORKLOADS, SCRIPT):
                known = {**known, "workload": "command", "train": {}}
            if known == record:
                raise
            skipped += [".".join(problem.path) for problem in invalid.problems]
            record = known


def with_new_names(record: dict[str, Any]) -> dict[str, Any]:
    """`record` of a job, in which an earlier version may have written keys that have another name now."""
    for (table, old), (_, new) in RENAMED.items():
        if isinstance(inner := record.get(table), dict) and old in inner:
            record = {**record, table: {new if key == old else key: value for key, value in inner.items()}}
    return record


def _without(record: Any, path: tuple[str, ...]) -> Any:
    """`record` without the key at `path`, if it has it."""
    if not path or not isinstance(record, dict) or path[0] not in record:
        return record
    key, *rest = path
    if not rest:
        return {name: value for name, value in record.items() if name != key}
    return {**record, key: _without(record[key], tuple(rest))}


def nearest(word: str, names: typing.Iterable[str]) -> str:
    """The name that `word` most likely means, or an empty string."""
    return next(iter(difflib.get_close_matches(word, list(names), n=1)), "")


def key_paths(cls: type, workload: str = "") -> typing.Iterator[tuple[str, ...]]:
    """Every key of `cls` and of its tables."""
    for name, hint in fields_of(cls, workload).items():
        inner = unwrapped(hint)[0]
        paths = key_paths(inner) if dataclasses.is_dataclass(inner) and isinstance(inner, type) else ((),)
        yield from ((name, *path) for path in paths)


def _with_word(key: str, names: typing.Iterable[str]) -> str:
    """The first name that has `key` as a word, such as gpus_per_node for gpus; empty without one."""
    return next((name for name in names if f"_{key}_" in f"_{name}_"), "")


def _placed(problem: Problem, paths: list[tuple[str, ...]]) -> Problem:
    """`problem` of an unknown key, with the keys of other tables that it may mean, by their last components."""
    key = problem.path[-1]
    if problem.path in RENAMED:
        return problem
    last = [path[-1] for path in paths]
    close = key if key in last else ""
    if not close and (not problem.nearest or len(problem.path) == 1):
        close = _with_word(key, last)
    if not close:  # of equally close ones, the key of the same table
        elsewhere = next(iter(difflib.get_close_matches(key, last, n=1, cutoff=_CLOSE_ELSEWHERE)), "")
        close = max((problem.nearest, elsewhere), key=lambda name: difflib.SequenceMatcher(None, name, key).ratio())
    found = [path for path in paths if path[-1] == close != problem.nearest]
    return problem._replace(nearest=" or ".join(".".join(path) for path in found[:3])) if found else problem


@functools.cache  # one `status` may read a thousand records, and types never change
def fields_of(cls: type, workload: str = "") -> Mapping[str, Any]:
    """Field name -> type with its marks, in order of definition; `train` has the class of `workload`, if known."""
    hints = typing.get_type_hints(cls, include_extras=True)
    if hints.get("train") is Train and workload in WORKLOADS:
        hints["train"] = WORKLOADS[workload].train
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@functools.cache
def unwrapped(hint: Any) -> tuple[Any, tuple[Mark, ...]]:
    """The type in `hint` without marks and None, and the marks."""
    marks: tuple[Mark, ...] = ()
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint, *extras = typing.get_args(hint)
            marks += tuple(mark for mark in extras if isinstance(mark, Mark))
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
        else:
            return hint, marks


def _read_table(cls: Any, record: dict[str, Any], parse: bool, path: tuple[str, ...], problems: list[Problem]) -> Any:
    hints, workload = fields_of(cls), record.get("workload")
    if hints.get("train") is Train and isinstance(workload, str):
        if workload in WORKLOADS or workload == SCRIPT:
            hints = fields_of(cls, workload)
            record = {"train": {}, **record}
        else:
            choices = f"must be one of {', '.join(WORKLOADS)}"
            problems.append(Problem((*path, "workload"), choices, nearest(workload, WORKLOADS)))
            record = {key: value for key, value in record.items() if key != "train"}  # its keys cannot be checked
    before = len(problems)
    required = {f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING}
    problems += [Problem((*path, name), "missing") for name in sorted(required - set(record))]
    for name, other in alternatives(hints).items():
        if record.get(name) is not None:
            if record.get(other) is not None:
                hint = f"remove {other} or {name}; values of the job file count in addition to `overrides=`"
                problems.append(Problem((*path, name), f"cannot be set together with {other}", hint=hint))
            record = {**record, other: None}  # also instead of its default
        elif other in record and record[other] is None:
            problems.append(Problem((*path, other), "missing"))
    values = {}
    for key, raw in record.items():
        if key in hints:
            values[key] = _read(hints[key], raw, parse, (*path, key), problems)
        else:
            new = RENAMED.get((*path, key), ("", ""))[1] or nearest(key, hints) or _with_word(key, hints)
            problems.append(Problem((*path, key), UNKNOWN_KEY, new))
    return cls(**values) if len(problems) == before else None


def alternatives(hints: Mapping[str, Any]) -> dict[str, str]:
    """Field name -> the field that it replaces."""
    marks = ((name, mark) for name, hint in hints.items() for mark in unwrapped(hint)[1])
    return {name: mark.other for name, mark in marks if isinstance(mark, InsteadOf)}


def _read(hint: Any, raw: Any, parse: bool, path: tuple[str, ...], problems: list[Problem]) -> Any:
    if raw is None and types.NoneType in typing.get_args(hint):
        return None
    hint, marks = unwrapped(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    before = len(problems)
    try:
        for mark in marks if parse else ():
            raw = mark.parse(raw)
        value: Any
        if any(isinstance(mark, Or) and raw == mark.text for mark in marks):
            value = raw
        elif dataclasses.is_dataclass(hint) and isinstance(raw, dict):
            value = _read_table(hint, raw, parse, path, problems)
        elif origin is tuple and isinstance(raw, list | tuple):
            value = tuple(_read(arguments[0], item, parse, path, problems) for item in raw)
        elif origin is dict and isinstance(raw, dict):
            value = {}
            for key, item in raw.items():
                name = _read(arguments[0], key, False, (*path, key), problems)
                value[name] = _read(arguments[1], item, parse, (*path, key), problems)
        elif hint is float and type(raw) is int:
            value = float(raw)
        elif hint is GpuCount and (
            type(raw) in (int, GpuCount) or (isinstance(raw, str) and re.fullmatch(TYPED_GPUS, raw))
        ):
            value = GpuCount(raw)
        elif isinstance(hint, type) and (
            type(raw) is hint or (hint is object and type(raw) in (bool, int, float, str))
        ):
            if isinstance(raw, str):
                _require_writable(raw)
            value = raw
        else:
            raise ValueError(_expected(hint, marks, raw))
        for mark in marks if len(problems) == before else ():
            mark.check(value)
    except (ValueError, OverflowError) as error:
        problems.append(Problem(path, str(error)))
        return None
    return value


def _require_writable(text: str) -> None:
    """Reject unpaired surrogates, which JSON allows but no script can contain, except those that encode a byte."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise ValueError("expected text without unpaired surrogates") from error


def _expected(hint: Any, marks: Sequence[Mark], raw: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    names |= {GpuCount: 'a whole number or "TYPE:NUMBER"', object: "a number, a string, true or false"}
    wanted = names.get(hint) or ("a list" if typing.get_origin(hint) is tuple else "a table")
    wanted += "".join(f' or "{mark.text}"' for mark in marks if isinstance(mark, Or))
    if any(isinstance(mark, Unshown) for mark in marks):
        return f"expected {wanted}"
    if isinstance(raw, dict | list):
        return f"expected {wanted}, not {'a table' if isinstance(raw, dict) else 'a list'}"
    text = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return f"expected {wanted}, not {text if len(text) <= 60 else text[:57] + '...'}"

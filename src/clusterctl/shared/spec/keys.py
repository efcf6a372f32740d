"""Every key of job and cluster files, derived from the dataclasses: type, default, description, and JSON schemas.

Also overrides such as `train.lr=3e-3`, and the differences between the values of two jobs or clusters.

The description is the string below the field, where editors find it, too. Python discards such strings, so they are
parsed from the source, but only when needed. `make docs` writes the schemas
(docs/decisions/configuration-and-checks.md).
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import re
import sys
import tomllib
import typing
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec import values
from clusterctl.shared.spec.cluster import Cluster
from clusterctl.shared.spec.job import Job
from clusterctl.shared.spec.records import alternatives, fields_of, to_record, unwrapped
from clusterctl.shared.spec.train import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


Schema = dict[str, Any]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_TYPES: dict[type, str | list[str]] = {int: "integer", float: "number", str: "string", bool: "boolean"}
_TYPES[object] = ["boolean", "number", "string"]
_KINDS: dict[Any, Any] = {
    **_TYPES,
    values.GpuCount: 'integer or "TYPE:NUMBER"',
    bool: "true or false",
    tuple: "list",
    dict: "table",
}


@dataclass(frozen=True)
class FileKey:
    """One key that a file can set."""

    path: str
    owner: type
    field: dataclasses.Field[Any]
    hint: Any

    @property
    def duration(self) -> values.Duration | None:
        return next((mark for mark in unwrapped(self.hint)[1] if isinstance(mark, values.Duration)), None)

    @property
    def kind(self) -> str:
        """Its type in words; for a duration, the default unit."""
        plain, marks = unwrapped(self.hint)
        auto = " | auto" * any(isinstance(mark, values.OrAuto) for mark in marks)
        if self.duration:
            return f"duration ({'minutes' if self.duration.unit == 60 else 'seconds'}){auto}"
        choices = next((mark.choices for mark in marks if isinstance(mark, values.OneOf)), ())
        if text := next((mark.text for mark in marks if isinstance(mark, values.Or)), ""):
            choices = ("true", "false", text) if plain is bool else (_KINDS[get_origin(plain)], text)
        return " | ".join(choices) or _KINDS[get_origin(plain) or plain] + auto

    @property
    def default(self) -> Any:
        """Its default as written in a file; None if there is none."""
        if self.field.default is dataclasses.MISSING:
            return None
        return self.written(to_record(self.field.default))

    @property
    def description(self) -> str:
        return described(self.owner, self.field.name)

    def written(self, value: Any) -> Any:
        """`value`, from a record, as written in a file: durations have a unit."""
        return self.duration.write(value) if self.duration and type(value) is int else value


def keys_of(cls: type, prefix: str = "") -> Iterator[FileKey]:
    """The keys of `cls` in the order of definition; tables in place."""
    for key in _own_keys(cls, prefix):
        if isinstance(key.hint, type) and dataclasses.is_dataclass(key.hint):
            yield from keys_of(key.hint, f"{key.path}.")
        else:
            yield key


def _own_keys(cls: type, prefix: str = "") -> Iterator[FileKey]:
    hints = fields_of(cls)
    for field in dataclasses.fields(cls):
        yield FileKey(f"{prefix}{field.name}", cls, field, hints[field.name])


def described(cls: type, name: str) -> str:
    """The description of the field `name` of `cls`: its own, or the inherited one."""
    classes = (owner for owner in cls.__mro__ if dataclasses.is_dataclass(owner))
    texts = (_descriptions(owner.__module__).get((owner.__name__, name)) for owner in classes)
    return next(filter(None, texts), "")


def leaves_as_written(job: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """The values of a job's record by key, as written in a file."""
    keys = {tuple(key.path.split(".")): key for key in keys_of(Job)}
    return [(path, keys[path].written(value) if path in keys else value) for path, value in leaves(job)]


def as_toml(value: Any) -> str:
    """A plain value as written in a file; empty if it is not set."""
    return "" if value is None or value in ([], {}) else json.dumps(value, ensure_ascii=False)


@functools.cache
def _descriptions(module: str) -> dict[tuple[str, str], str]:
    """(class, field) -> the string below the field, for all classes of `module`."""
    found = {}
    classes = ast.parse(inspect.getsource(sys.modules[module])).body
    for cls in (statement for statement in classes if isinstance(statement, ast.ClassDef)):
        for pair in itertools.pairwise(cls.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(field)), ast.Expr(ast.Constant(str(text))):
                    found[cls.name, field] = " ".join(text.split())
    return found


def cluster_schema() -> Schema:
    """The schema of a cluster file."""
    return {"$schema": _DRAFT, "title": "clusterctl cluster file", **_table(Cluster)}


def job_schema() -> Schema:
    """The schema of a job file, whose [train] table depends on its workload."""
    job = _table(Job)
    job["properties"]["workload"]["enum"] = list(WORKLOADS)
    role = job["properties"]["role"]  # in a file, a list of tables with names
    item = role.pop("additionalProperties")
    of_name = {"description": "Name of the role.", **role.pop("propertyNames")}
    item |= {"properties": {"name": of_name, **item["properties"]}, "required": ["name", "program"]}
    role |= {"type": "array", "items": item}
    tables = {name: _table(workload.train) for name, workload in WORKLOADS.items()}
    # Editors complete only from `properties`, so it has the keys of all workloads; `then` has the allowed ones.
    job["properties"]["train"] |= {"properties": _any_of(list(tables.values())), "additionalProperties": True}
    chain: Schema = {}
    for name, table in reversed(tables.items()):
        chain = {
            "if": {"properties": {"workload": {"const": name}}, "required": ["workload"]},
            "then": {"properties": {"train": table}},
            **({"else": chain} if chain else {}),
        }
    return {
        "$schema": _DRAFT,
        "title": "clusterctl job file",
        **job,
        "anyOf": [{"required": [one]} for one in ("workload", "role")],
        **chain,
    }


def _any_of(tables: list[Schema]) -> Schema:
    """The keys of all `tables`, each with the descriptions and choices that it has in any of them."""
    schemas: dict[str, list[Schema]] = {}
    for key, schema in (item for table in tables for item in table["properties"].items()):
        schemas.setdefault(key, []).append(schema)
    found: Schema = {}
    for key, alike in schemas.items():
        words = alike[0]["description"]
        for schema in alike[1:]:
            if schema["description"] not in words:
                words += f" Or: {schema['description']}"
        found[key] = {"description": words}
        if choices := list(dict.fromkeys(choice for schema in alike for choice in choices_of(schema))):
            closed = all("enum" in schema for schema in alike)
            found[key] |= {"enum": choices} if closed else {"anyOf": [{"enum": choices}, {}]}
    return found


def choices_of(schema: Schema) -> list[str]:
    """The possible values of a key, if they can be listed."""
    return next((one["enum"] for one in (schema, *schema.get("anyOf", ())) if "enum" in one), [])


def _table(cls: type) -> Schema:
    """The schema of a table that `cls` describes."""
    properties = {}
    for key in _own_keys(cls):
        schema = {"description": key.description, **_value(key.hint)}
        properties[key.path] = schema | ({} if key.default is None else {"default": key.default})
    table = {"type": "object", "properties": properties, "additionalProperties": False}
    both = [{"required": [other, name]} for name, other in alternatives(fields_of(cls)).items()]
    return table | ({"not": {"anyOf": both}} if both else {})


def _value(hint: Any) -> Schema:
    """The schema of a value of type `hint`. TOML has no null: unset keys are omitted."""
    plain, marks = unwrapped(hint)
    if dataclasses.is_dataclass(plain):
        return _table(plain)  # type: ignore[arg-type]
    schema: Schema = {}
    if get_origin(plain) is tuple:
        schema = {"type": "array", "items": _value(get_args(plain)[0])}
    elif get_origin(plain) is dict:
        names, items = map(_value, get_args(plain))
        schema = {"type": "object", "propertyNames": names, "additionalProperties": items}
    else:
        gpus: Schema = {"type": ["integer", "string"], "pattern": f"^{values.TYPED_GPUS}$"}
        schema = gpus if plain is values.GpuCount else {"type": _TYPES[plain]}
    for mark in marks:
        _apply(mark, schema)
    return schema


def _apply(mark: values.Mark, schema: Schema) -> None:
    match mark:
        case values.AtLeast(minimum, maximum):
            schema |= {"minimum": minimum, "maximum": maximum}
        case values.Above(bound):
            schema |= {"exclusiveMinimum": bound}
        case values.Fraction():
            schema |= {"minimum": 0, "exclusiveMaximum": 1}
        case values.OneOf(choices, "", _):
            schema |= {"enum": list(choices)}
        case values.OneOf(choices, pattern, _):
            schema |= {"anyOf": [{"enum": list(choices)}, {"pattern": f"^{pattern}$"}]}
        case values.Matches(pattern):
            schema |= {"pattern": f"^{pattern}$"}
        case values.Duration():
            schema |= {"type": ["integer", "string"], "pattern": f"^{values.DURATION}$"}
        case values.NotEmpty():
            schema |= {"minItems": 1}
        case values.Length(count):
            schema |= {"minItems": count, "maxItems": count}
        case values.Window():
            schema |= {"items": {"type": "integer", "minimum": 1, "maximum": values.LARGEST}, "maxItems": 2}
        case values.Or(text) if schema["type"] == "boolean":
            schema |= {"type": ["boolean", "string"], "enum": [True, False, text]}
        case values.OrAuto():
            whole = dict(schema)
            schema.clear()
            schema["anyOf"] = [{"enum": ["auto"]}, whole]
        case values.Or(text):
            whole = dict(schema)
            schema.clear()
            schema["anyOf"] = [{"enum": [text]}, whole]
        case values.Unshown() | values.InsteadOf():
            pass
        case _:
            raise TypeError(f"no schema for {mark}")


SCHEMAS: dict[str, Callable[[], Schema]] = {"job": job_schema, "cluster": cluster_schema}


# `train.lr=3e-3`: one value of a job, given to `clusterctl submit --set` or to a workload under torchrun.


Key = tuple[str, ...]


def parse_override(text: str, workload: object) -> tuple[Key, Any]:
    """The key of KEY=VALUE and its TOML value, for a job of `workload`; keys of type string take any text.

    Raises UsageError for text without a key or "=".
    """
    name, equals, rest = text.partition("=")
    key, written = tuple(part.strip() for part in name.split(".")), rest.strip()
    if not equals or not all(key):
        shown = re.match(r"[\w.-]*", text)  # only the key: the rest may be a secret
        raise UsageError(f"expected KEY=VALUE, not: {shown and shown[0]}", "for example train.lr=3e-3")
    if _takes_text(key, workload) and written[:1] not in ("'", '"'):
        return key, written
    try:
        value = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):  # also for numbers and nesting beyond Python's limits
        with suppress(ValueError):
            return key, float(written)
        return key, written
    # "01:30:00" would be a time of day, and a newline could smuggle in a second key.
    plain = set(value) == {"value"} and isinstance(value["value"], bool | int | float | str | list | dict)
    return key, value["value"] if plain else written


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


class Difference(NamedTuple):
    """A key with different values in two records; None if it is not set."""

    key: str
    first: Any
    second: Any


def differences(first: Iterable[tuple[Key, Any]], second: Iterable[tuple[Key, Any]]) -> tuple[Difference, ...]:
    """The differences between two sets of values, in the order of the keys."""
    return tuple(Difference(key, *values) for key, values in varying(first, second).items())


def varying(*records: Iterable[tuple[Key, Any]]) -> dict[str, tuple[Any, ...]]:
    """The keys that differ between the records, with all their values; None if not set.

    An empty table counts as not set.
    """
    tables = [{".".join(key): value for key, value in values if value != {}} for values in records]
    found = {key: tuple(table.get(key) for table in tables) for table in tables for key in table}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}

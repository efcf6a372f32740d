"""JSON schemas of job and cluster files, by which editors complete, explain and check them.

They are written from the dataclasses by `make docs` (docs/decisions/0031-descriptions-and-schemas.md).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_args, get_origin

from clusterctl.spec import values
from clusterctl.spec.cluster import Cluster
from clusterctl.spec.job import Job
from clusterctl.spec.keys import FileKey, described
from clusterctl.spec.records import fields_of, unwrapped
from clusterctl.spec.train import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, Any]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def cluster_schema() -> Schema:
    """Of a cluster file."""
    return {"$schema": _DRAFT, "title": "clusterctl cluster file", **_table(Cluster)}


def job_schema() -> Schema:
    """Of a job file, whose [train] table depends on its workload."""
    job = _table(Job)
    job["properties"]["workload"]["enum"] = list(WORKLOADS)
    tables = {name: _table(workload.train) for name, workload in WORKLOADS.items()}
    # Editors complete from `properties` alone, hence every workload's keys there; what is allowed is in `then`.
    job["properties"]["train"] |= {"properties": _any_of(list(tables.values())), "additionalProperties": True}
    chain: Schema = {}
    for name, table in reversed(tables.items()):
        chain = {
            "if": {"properties": {"workload": {"const": name}}, "required": ["workload"]},
            "then": {"properties": {"train": table}},
            **({"else": chain} if chain else {}),
        }
    return {"$schema": _DRAFT, "title": "clusterctl job file", **job, "required": ["workload"], **chain}


def _any_of(tables: list[Schema]) -> Schema:
    """The keys of all `tables` with their descriptions and choices."""
    found: Schema = {}
    for key, schema in (item for table in tables for item in table["properties"].items()):
        known = found.setdefault(key, {"description": schema["description"]})
        if schema["description"] not in known["description"]:
            known["description"] += f" Or: {schema['description']}"
        if "enum" in schema:
            known["enum"] = list(dict.fromkeys([*known.get("enum", ()), *schema["enum"]]))
    return found


def _table(cls: type) -> Schema:
    """Of a table that `cls` describes."""
    hints = fields_of(cls)
    properties = {}
    for field in dataclasses.fields(cls):
        schema = {"description": described(cls, field.name), **_value(hints[field.name])}
        default = FileKey(field.name, cls, field, hints[field.name]).default
        properties[field.name] = schema | ({} if default is None else {"default": default})
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value(hint: Any) -> Schema:
    """Of a value of type `hint`. TOML has no null: what is not set is left out."""
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
        schema = {"type": _TYPES[plain]}
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
        case values.OneOf(choices):
            schema |= {"enum": list(choices)}
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
        case values.Unshown():
            pass
        case _:
            raise TypeError(f"no schema for {mark}")


SCHEMAS: dict[str, Callable[[], Schema]] = {"job": job_schema, "cluster": cluster_schema}

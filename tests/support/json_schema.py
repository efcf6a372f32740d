"""A small validator for the part of JSON Schema that clusterctl's schemas use, to save a dependency."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusterctl

SCHEMAS = Path(clusterctl.__file__).parent / "schemas"

_TYPES = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}
_KNOWN = {"$schema", "$defs", "$ref", "title", "description", "default", "type", "const", "enum", "required",
          "properties", "additionalProperties", "propertyNames", "items", "minItems", "maxItems", "pattern", "minimum",
          "maximum", "exclusiveMinimum", "exclusiveMaximum", "if", "then", "else", "not", "anyOf"}  # fmt: skip
_BOUNDS = {"minimum": operator.ge, "maximum": operator.le, "exclusiveMinimum": operator.gt,
           "exclusiveMaximum": operator.lt, "minItems": operator.ge, "maxItems": operator.le}  # fmt: skip


def schema(name: str) -> dict[str, Any]:
    """The schema of an output (`status`, `nodes-for` ...) or of a file (`job`, `cluster`)."""
    return dict(json.loads((SCHEMAS / f"{name}.json").read_text()))


def violations(value: Any, schema: dict[str, Any]) -> list[str]:
    """The parts of `value` that violate `schema`."""
    return list(_violations(value, schema, schema, "$"))


def _violations(value: Any, schema: dict[str, Any], whole: dict[str, Any], path: str) -> Iterator[str]:
    assert set(schema) <= _KNOWN, f"this check does not know {set(schema) - _KNOWN}"
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    types = schema.get("type", [])
    if types and not any(_TYPES[name](value) for name in ([types] if isinstance(types, str) else types)):
        yield f"{path}: {value!r} is not of type {types}"
    if "const" in schema and value != schema["const"]:
        yield f"{path}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    size = value if type(value) in (int, float) else len(value) if isinstance(value, list) else None
    for bound in schema.keys() & _BOUNDS if size is not None else ():
        if not _BOUNDS[bound](size, schema[bound]):
            yield f"{path}: {value!r} breaks {bound} {schema[bound]}"
    if "if" in schema:
        holds = not list(_violations(value, schema["if"], whole, path))
        yield from _violations(value, schema.get("then" if holds else "else", {}), whole, path)
    if "not" in schema and not list(_violations(value, schema["not"], whole, path)):
        yield f"{path}: {value!r} is {schema['not']}"
    if "anyOf" in schema and all(list(_violations(value, one, whole, path)) for one in schema["anyOf"]):
        yield f"{path}: {value!r} is none of {schema['anyOf']}"
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _violations(item, schema.get("items", {}), whole, f"{path}[{place}]")
    if isinstance(value, dict):
        yield from (f"{path}: no {name}" for name in schema.get("required", ()) if name not in value)
        for name, item in value.items():
            yield from _violations(name, schema.get("propertyNames", {}), whole, f"{path}.{name}")
            known = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
            if known is False:
                yield f"{path}: unknown {name}"
            elif isinstance(known, dict):
                yield from _violations(item, known, whole, f"{path}.{name}")

"""A tool for agents: a function whose signature is its schema and whose docstring is its description."""

from __future__ import annotations

import inspect
import json
import types
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.plain_text import plain
from clusterctl.shared.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST_TEXT = 2000  # characters of one argument
MOST_ARGUMENTS = 20_000  # characters of all arguments as JSON

Settings = dict[str, Any]
_SCHEMAS: dict[Any, dict[str, Any]] = {
    str: {"type": "string", "maxLength": LONGEST_TEXT},
    int: {"type": "integer", "minimum": 0, "maximum": 1_000_000},
    bool: {"type": "boolean"},
    list[str]: {"type": "array", "items": {"type": "string", "maxLength": LONGEST_TEXT}, "maxItems": 200},
    Settings: {"type": "object"},
}
_NAMES = {str: "a string", int: "a whole number", bool: "true or false", list[str]: "a list of strings"}
_NAMES |= {Settings: "an object"}


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool; `kind` is a key of the schemas above."""

    name: str
    kind: Any
    description: str
    required: bool
    default: Any = None

    @property
    def schema(self) -> dict[str, Any]:
        default = {} if self.required or self.default in (None, "", ()) else {"default": self.default}
        return {**_SCHEMAS[self.kind], "description": self.description, **default}

    def check(self, value: Any) -> None:
        """Raise UsageError unless `value` is of its kind, and no larger than the schema allows."""
        if self.kind == list[str]:
            fits = isinstance(value, list) and all(isinstance(one, str) for one in value) and len(value) <= 200
        elif self.kind == Settings:
            fits = isinstance(value, dict)
        else:
            fits = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        if not fits:
            raise UsageError(f"{self.name}: not {_NAMES[self.kind]}", self.description)
        if self.kind is int and not 0 <= value <= _SCHEMAS[int]["maximum"]:
            raise UsageError(f"{self.name}: out of range", f"0 to {_SCHEMAS[int]['maximum']:,}")
        texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        if any(len(text) > LONGEST_TEXT for text in texts):
            raise UsageError(f"{self.name}: longer than {LONGEST_TEXT:,} characters", "shorten it")


@dataclass(frozen=True)
class Tool:
    """`function`, called with the arguments of an agent; `needs` is what the server must have been allowed."""

    function: Callable[..., Any]
    needs: str = ""
    changes: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def description(self) -> str:
        return inspect.cleandoc(self.function.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first sentence of the description."""
        return self.description.partition("\n")[0]

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        hints = typing.get_type_hints(self.function, include_extras=True)
        found = {}
        for name, parameter in inspect.signature(self.function).parameters.items():
            kind, description = hints[name], ""
            if typing.get_origin(kind) is Annotated:
                kind, description = typing.get_args(kind)
            if isinstance(kind, types.UnionType):  # an optional one: leave it out, or give null
                (kind,) = (one for one in typing.get_args(kind) if one is not type(None))
            required = parameter.default is inspect.Parameter.empty
            found[name] = Parameter(name, kind, description, required, None if required else parameter.default)
        return found

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": {name: one.schema for name, one in self.parameters.items()},
            "required": [name for name, one in self.parameters.items() if one.required],
            "additionalProperties": False,
        }

    def checked(self, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """`arguments` without those that are null. Raises UsageError for others than the schema allows."""
        given = {name: value for name, value in (arguments or {}).items() if value is not None}
        if len(json.dumps(given)) > MOST_ARGUMENTS:
            raise UsageError(f"{self.name}: more than {MOST_ARGUMENTS:,} characters of arguments", "shorten them")
        for name, value in given.items():
            if name not in self.parameters:
                shown = plain(name[:40])
                close = nearest(name[:40], self.parameters)
                hint = f"did you mean {close}?" if close else f"it takes: {', '.join(self.parameters) or 'none'}"
                raise UsageError(f"{self.name} has no argument {shown}", hint)
            self.parameters[name].check(value)
        for name, one in self.parameters.items():
            if one.required and name not in given:
                raise UsageError(f"{self.name}: {name} is missing", one.description)
        return given

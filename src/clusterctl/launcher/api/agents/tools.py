"""A tool for agents: a function whose signature is its schema and whose docstring is its description.

Answers come in pages of at most 6,000 characters, without escape sequences; a cursor leads to the next page.
"""

from __future__ import annotations

import inspect
import json
import os
import types
import typing
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.plain_text import plain
from clusterctl.shared.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


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


LIMIT = 6000  # characters of a page as JSON
OUTPUT = "program_output"  # the field for text that programs wrote, separate from our own
_OURS = ("next_cursor", "pages_left")
_RESERVED = 200  # of a page: braces, the cursor
_LARGEST_PIECE = 3000  # a value that cannot be split; longer ones are shortened
_LONGEST_TEXT = 400  # in such a value
_MOST_ANSWERS = 32  # that have further pages


def as_json(page: Mapping[str, Any]) -> str:
    """The page as an agent gets it."""
    return json.dumps(page, ensure_ascii=False)


def pages(answer: Mapping[str, Any], limit: int = LIMIT) -> list[dict[str, Any]]:
    """`answer` in pages: lists are continued item by item, and program output line by line, which comes last."""
    found: list[dict[str, Any]] = [{}]
    left = limit - _RESERVED
    for key, value, holder in _pieces(answer):
        cost = len(as_json({key: value})) + (2 if holder is list else 0)
        if cost > left and found[-1]:
            found.append({})
            left = limit - _RESERVED
        left -= cost
        page = found[-1]
        if holder is None:
            page[key] = value
        else:
            page[key] = page.get(key, holder()) + (value if holder is str else [value])
    return found


def _pieces(answer: Mapping[str, Any]) -> Iterator[tuple[str, Any, type | None]]:
    """The parts of an answer that stay together: key, value, and what they are joined to (None: a whole value)."""
    for key, value in answer.items():
        if key in (OUTPUT, *_OURS):  # the last, or not from here
            continue
        if isinstance(value, list | tuple):
            if not value:
                yield key, [], None
            yield from ((key, _short(_clean(item)), list) for item in value)
        else:
            yield key, _short(_clean(value)), None
    for line in (answer.get(OUTPUT) or "").splitlines(keepends=True):
        text = plain(line.rstrip("\n")) + "\n" * line.endswith("\n")
        while text:
            size = _LARGEST_PIECE
            while len(json.dumps(text[:size], ensure_ascii=False)) > _LARGEST_PIECE:  # characters that JSON escapes
                size //= 2
            yield OUTPUT, text[:size], str
            text = text[size:]


def _clean(value: Any) -> Any:
    """`value` with every text in it made plain."""
    if isinstance(value, str):
        return "\n".join(map(plain, value.split("\n")))
    if isinstance(value, dict):
        return {plain(str(key)): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list | tuple) else value


def _short(value: Any) -> Any:
    """`value` with its texts shortened until it fits on a page; a page says where something is missing."""
    most = _LONGEST_TEXT
    while len(json.dumps(value, ensure_ascii=False)) > _LARGEST_PIECE:
        if most < 16:  # too many items, not too long ones
            return json.dumps(value, ensure_ascii=False)[: _LARGEST_PIECE // 4] + " ... (shortened)"
        value, most = _cut(value, most), most // 2
    return value


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}... ({len(value) - most} more characters)"
    if isinstance(value, dict):
        return {key[:most]: _cut(item, most) for key, item in value.items()}
    return [_cut(item, most) for item in value] if isinstance(value, list) else value


class Cursors:
    """The pages of the newest answers, by cursor. They do not change while a run goes on."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Sequence[dict[str, Any]]] = OrderedDict()

    def first(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The first page of an answer."""
        found = pages(answer)
        name = os.urandom(6).hex()
        if len(found) > 1:
            self._kept[name] = found
            while len(self._kept) > _MOST_ANSWERS:
                self._kept.popitem(last=False)
        return self._page(name, found, 0)

    def more(self, cursor: str) -> dict[str, Any]:
        """The page that `cursor` leads to. Raises UsageError for a cursor of no kept answer."""
        name, _, number = cursor.partition("-")
        found = self._kept.get(name, ())
        if not (number.isascii() and number.isdigit() and len(number) < 7 and 0 < int(number) < len(found)):
            raise UsageError("no such cursor, or its answer is no longer kept", "call the tool again")
        return self._page(name, found, int(number))

    @staticmethod
    def _page(name: str, found: Sequence[dict[str, Any]], number: int) -> dict[str, Any]:
        if number + 1 == len(found):
            return found[number]
        return {"next_cursor": f"{name}-{number + 1}", "pages_left": len(found) - number - 1, **found[number]}

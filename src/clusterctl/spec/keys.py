"""Every key of job and cluster files, read off the dataclasses: its type, default and description.

The description is the string below the field, where editors look for it too. Python discards such strings, so they are
parsed from the source, and only when somebody asks for them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_origin

from clusterctl.spec.job import Job
from clusterctl.spec.overrides import leaves
from clusterctl.spec.records import fields_of, to_record, unwrapped
from clusterctl.spec.values import Duration, OneOf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KINDS = {int: "integer", float: "number", str: "string", bool: "true or false", tuple: "list", dict: "table"}


@dataclass(frozen=True)
class FileKey:
    """One key that a file can set."""

    path: str
    owner: type
    field: dataclasses.Field[Any]
    hint: Any

    @property
    def duration(self) -> Duration | None:
        return next((mark for mark in unwrapped(self.hint)[1] if isinstance(mark, Duration)), None)

    @property
    def kind(self) -> str:
        """Its type in words; of a duration, the unit of a number without one."""
        plain, marks = unwrapped(self.hint)
        if self.duration:
            return f"duration ({'minutes' if self.duration.unit == 60 else 'seconds'})"
        choices = next((mark.choices for mark in marks if isinstance(mark, OneOf)), ())
        return " | ".join(choices) or _KINDS[get_origin(plain) or plain]

    @property
    def default(self) -> Any:
        """Its default as a file would have it; None where there is none."""
        if self.field.default is dataclasses.MISSING:
            return None
        return self.written(to_record(self.field.default))

    @property
    def description(self) -> str:
        return described(self.owner, self.field.name)

    def written(self, value: Any) -> Any:
        """`value`, from a record, as a file would have it: a duration with its unit."""
        return self.duration.write(value) if self.duration and type(value) is int else value


def keys_of(cls: type, prefix: str = "") -> Iterator[FileKey]:
    """The keys of `cls` in the order of definition; tables in place."""
    hints = fields_of(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from keys_of(hint, f"{prefix}{field.name}.")
        else:
            yield FileKey(f"{prefix}{field.name}", cls, field, hint)


def described(cls: type, name: str) -> str:
    """The description of the field `name` of `cls`: its own, or that of the class it inherits the field from."""
    classes = (owner for owner in cls.__mro__ if dataclasses.is_dataclass(owner))
    texts = (_descriptions(owner.__module__).get((owner.__name__, name)) for owner in classes)
    return next(filter(None, texts), "")


def leaves_as_written(job: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """The values of a job's record by key, as a file would have them."""
    keys = {tuple(key.path.split(".")): key for key in keys_of(Job)}
    return [(path, keys[path].written(value) if path in keys else value) for path, value in leaves(job)]


def as_toml(value: Any) -> str:
    """A plain value as it would stand in a file; nothing for one that is not set."""
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

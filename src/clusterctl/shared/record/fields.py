"""Typed access to a JSON object of the run directory: a value of the wrong type counts as missing.

Nothing here raises, whatever the file contains: NaN, numbers with hundreds of digits, objects in place of strings.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from clusterctl.shared.record.files import loaded, read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.shared.record.metrics import Number

Member = TypeVar("Member", bound=StrEnum)
_LAST_MOMENT = 2.0**37  # the year 6325; later times break calendar functions
_JOB = re.compile(r"[0-9]{1,20}(?:_[0-9]{1,9})?")
_LARGEST_WHOLE = 2**63 - 1


@dataclass(frozen=True)
class Fields:
    """The object of a file or line; `content` is empty if there is none. `problem` is the reason."""

    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    absent: bool = False

    def text(self, name: str) -> str:
        """A string; empty for any other type."""
        value = self.content.get(name)
        return value if isinstance(value, str) else ""

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty unless every item is one."""
        value = self.content.get(name)
        return tuple(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else ()

    def named_texts(self) -> dict[str, str]:
        """All strings by name."""
        return {name: value for name, value in self.content.items() if isinstance(value, str)}

    def digits(self, name: str) -> str:
        """A number written as a string, such as a job ID, which becomes an argument of a command."""
        text = self.text(name)
        return text if text.isascii() and text.isdigit() else ""

    def job(self, name: str) -> str:
        """The ID of a job or of an array's element: `12`, `12_7`."""
        text = self.text(name)
        return text if _JOB.fullmatch(text) else ""

    def member(self, name: str, of: type[Member]) -> Member | None:
        """A member of the enum `of`, by its value."""
        try:
            return of(text) if (text := self.text(name)) else None
        except ValueError:
            return None

    def flag(self, name: str) -> bool:
        return self.content.get(name) is True

    def whole(self, name: str) -> int | None:
        """An integer of at most 64 bits."""
        value = self.content.get(name)
        return value if type(value) is int and abs(value) <= _LARGEST_WHOLE else None

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.content.get(name)
        return value if is_number(value) and math.isfinite(value) else None

    def moment(self, name: str) -> float | None:
        """A time in seconds since the epoch that calendar functions can handle."""
        value = self.number(name)
        return value if value is not None and 0 <= value <= _LAST_MOMENT else None

    def numbers(self) -> dict[str, Number]:
        """All numbers by name, including NaN and infinities."""
        return {name: value for name, value in self.content.items() if is_number(value)}

    def table(self, name: str) -> Fields:
        value = self.content.get(name)
        return Fields(value) if isinstance(value, dict) else Fields(absent=True)

    def tables(self, name: str) -> tuple[Fields, ...]:
        """The objects in a list; other items are dropped."""
        value = self.content.get(name)
        return tuple(Fields(item) for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def read_fields(path: Path) -> Fields:
    """The JSON object in `path`."""
    try:
        content = loaded(read_whole(path))
    except (FileNotFoundError, NotADirectoryError):
        return Fields(absent=True)
    except OSError as error:
        return Fields(problem=error.strerror or str(error))
    except (ValueError, RecursionError):
        return Fields(problem="not JSON")
    return Fields(content) if isinstance(content, dict) else Fields(problem="not a JSON object")


def is_number(value: object) -> TypeGuard[Number]:
    """Whether `value` is a number that a float can hold."""
    return type(value) is float or (type(value) is int and value.bit_length() < 1024)

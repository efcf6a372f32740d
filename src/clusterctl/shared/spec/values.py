"""Marks that refine plain types, as in `Annotated[int, AtLeast(1)]`: each parses and checks one value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

LARGEST = 2**31 - 1


class Mark:
    """A refinement of a type: `parse` gets the raw value, then `check` the typed one; both raise ValueError."""

    def parse(self, raw: Any) -> Any:
        return raw

    def check(self, value: Any) -> None:  # noqa: ARG002 - subclasses use it
        return None


class Unshown(Mark):
    """The value may be a secret: messages must not repeat it."""


@dataclass(frozen=True)
class InsteadOf(Mark):
    """An alternative to the field `other` of the same table: only one of the two may be set."""

    other: str


@dataclass(frozen=True)
class Or(Mark):
    """Besides true and false, or a list, the value may be this text."""

    text: str


class OrAuto(Mark):
    """A job may also say "auto": the request is then determined before the value is read (`config.resolution`)."""


@dataclass(frozen=True)
class AtLeast(Mark):
    """Also has an upper bound: neither Slurm nor torch accepts more than 32 bits everywhere."""

    minimum: float
    maximum: float = LARGEST

    def check(self, value: Any) -> None:
        if not value >= self.minimum:
            raise ValueError(f"must be at least {self.minimum}")
        if value > self.maximum:
            raise ValueError(f"must be at most {self.maximum}")


@dataclass(frozen=True)
class Above(Mark):
    bound: float

    def check(self, value: Any) -> None:
        if not self.bound < value < float("inf"):
            raise ValueError(f"must be a finite number above {self.bound}")


class Fraction(Mark):
    """0 <= value < 1."""

    def check(self, value: Any) -> None:
        if not 0 <= value < 1:
            raise ValueError("must be at least 0 and less than 1")


@dataclass(frozen=True)
class OneOf(Mark):
    """One of `choices` or, if `pattern` is set, a value that matches it; `meaning` describes the pattern."""

    choices: tuple[str, ...]
    pattern: str = ""
    meaning: str = ""

    def check(self, value: Any) -> None:
        if value not in self.choices and not (self.pattern and re.fullmatch(self.pattern, value)):
            or_else = f", or {self.meaning}" if self.pattern else ""
            lower = {choice.lower(): choice for choice in self.choices}
            near = get_close_matches(str(value).lower(), lower, n=1)
            meant = f" (did you mean {lower[near[0]]}?)" if near else ""
            raise ValueError(f"must be one of {', '.join(self.choices)}{or_else}{meant}")


@dataclass(frozen=True)
class Matches(Mark):
    """The whole value must match `pattern`; `meaning` describes it in words."""

    pattern: str
    meaning: str

    def check(self, value: Any) -> None:
        if re.fullmatch(self.pattern, value) is None:
            raise ValueError(f"must be {self.meaning}")


@dataclass(frozen=True)
class Duration(Mark):
    """Seconds, written as a number of `unit`s, as "90s", "20m", "4h", "2d", or in Slurm's format D-HH:MM:SS."""

    unit: int

    def parse(self, raw: Any) -> Any:
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            return raw
        return raw * self.unit if isinstance(raw, int) else parse_seconds(raw, self.unit)

    def write(self, seconds: int) -> str:
        """`seconds` as a person would write them: "90s", "20m", "4h"; `parse` takes it back."""
        suffix = next(suffix for suffix in "dhms" if seconds % _SUFFIXES[suffix] == 0)
        return f"{seconds // _SUFFIXES[suffix]}{suffix}" if seconds else "0s"


class NotEmpty(Mark):
    def check(self, value: Any) -> None:
        if not value:
            raise ValueError("must not be empty")


@dataclass(frozen=True)
class Length(Mark):
    count: int

    def check(self, value: Any) -> None:
        if len(value) != self.count:
            raise ValueError(f"must have {self.count} elements")


class Window(Mark):
    """[first, last], counted from 1; [] for none."""

    def check(self, value: Any) -> None:
        if value and not (len(value) == 2 and 1 <= value[0] <= value[1] <= LARGEST):
            raise ValueError("must be [first, last] with 1 <= first <= last, or [] for none")


class GpuCount(int):
    """GPUs of a node: 4, or "a100:4" to require a type. Behaves like the number."""

    type: str

    def __new__(cls, written: int | str) -> GpuCount:
        kind, _, number = str(written).rpartition(":")
        count = super().__new__(cls, number)
        count.type = kind
        return count

    def __str__(self) -> str:
        return f"{self.type}:{int(self)}" if self.type else str(int(self))

    @property
    def written(self) -> int | str:
        """As written in a file."""
        return str(self) if self.type else int(self)

    @property
    def in_words(self) -> str:
        """4 a100 GPUs."""
        return plural(self, f"{self.type} GPU".strip())

    def of_same_type(self, count: int) -> GpuCount:
        return GpuCount(f"{self.type}:{count}") if count else NO_GPUS


NO_GPUS = GpuCount(0)
_SUFFIXES = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AMOUNT = r"([0-9]{1,18})\s*([smhd]?)"
_CLOCK = r"(?:([0-9]{1,18})-)?([0-9]{1,18})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?"
DURATION = rf"\s*({_AMOUNT}|{_CLOCK})\s*"


def parse_seconds(text: str, unit: int = 60) -> int:
    """The seconds in `text`; a bare number counts `unit`s. Raises ValueError with the accepted formats.

    The formats with colons are those of sbatch(1) --time: MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
    """
    stripped = text.strip()
    if match := re.fullmatch(_AMOUNT, stripped):
        return int(match[1]) * (_SUFFIXES[match[2]] if match[2] else unit)
    if match := re.fullmatch(_CLOCK, stripped):
        days, *clock = match.groups()
        numbers = [int(part) for part in clock if part is not None]
        weights = [3600, 60, 1] if days is not None or len(numbers) == 3 else [60, 1]
        return int(days or 0) * 86400 + sum(n * w for n, w in zip(numbers, weights, strict=False))
    raise ValueError('not a duration: write 90, "90s", "20m", "4h", "2d" or "1-00:00:00"')


def parse_limit(text: str) -> int | None:
    """The seconds of a time limit as Slurm prints it, such as 1-02:03:04; None for UNLIMITED and anything else."""
    return parse_seconds(text) if ":" in text and re.fullmatch(_CLOCK, text) else None


def slurm_time(seconds: int) -> str:
    """`seconds` in the format of sbatch(1) --time. Slurm rounds up to the next minute."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def plural(count: int, noun: str) -> str:
    """1 node, 4,096 nodes."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def as_name(text: str) -> str:
    """`text` with characters that a name may not contain replaced by hyphens; empty if nothing is left."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")


def mebibytes(text: str) -> int:
    """The MiB in a `Memory` such as "64G"; a bare number counts MiB, as in sbatch."""
    return size_in_bytes(text) >> 20


def size_in_bytes(text: str) -> int:
    """The bytes in a `Memory`; a bare number counts MiB."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]?)B?", text).groups()  # type: ignore[union-attr]
    return int(number) << _SHIFTS[unit]


_SHIFTS = {"K": 10, "M": 20, "": 20, "G": 30, "T": 40}
Count = Annotated[int, AtLeast(1)]
TYPED_GPUS = r"[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]{1,9}"
Gpus = Annotated[GpuCount, AtLeast(0)]
Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[float, Above(0)]
Factor = Annotated[float, Above(1)]
NonNegative = Annotated[float, AtLeast(0)]
Share = Annotated[float, Fraction()]
Minutes = Annotated[int, Duration(60), AtLeast(1)]
"""Seconds; a bare number in a file counts minutes, as `sbatch --time` does."""
Seconds = Annotated[int, Duration(1), AtLeast(0)]
"""Seconds; a bare number in a file counts seconds."""
Name = Annotated[
    str,
    Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "1 to 64 letters, digits, '.', '_' and '-', first a letter or digit"),
]
_CONTROL = r"\x00-\x1f\x7f-\x9f"
Text = Annotated[str, Matches(r"[^\x00]*", "text without NUL characters")]
Line = Annotated[str, Matches(rf"[^{_CONTROL}]+", "one line without control characters, not empty")]
OptionText = Annotated[str, Matches(rf"[^{_CONTROL}\\]*", "one line without control characters and backslashes")]
"""What a `#SBATCH` line can contain: sbatch treats a backslash as an escape, even in single quotes."""
Option = Annotated[str, Matches(rf"[^{_CONTROL}\\]+", "one line without control characters and backslashes, not empty")]
Word = Annotated[str, Matches(rf"[^\s{_CONTROL}]+", "one word without spaces")]
Memory = Annotated[str, Matches(r"[0-9]{1,18}[KMGT]?B?", 'a size such as "64G"')]
OBJECT = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
"""MODULE:NAME, something in the user's code."""
EnvName = Annotated[str, Matches(r"[A-Za-z_][A-Za-z0-9_]*", "a shell variable's name (letters, digits and '_')")]

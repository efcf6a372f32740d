"""What a sweep varies: `train.lr=1e-3,3e-3 train.seed=0..4` as settings, one tuple of KEY=VALUE per run."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from clusterctl.shared.errors import UsageError
from clusterctl.shared.spec.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Settings = tuple[str, ...]
"""The `KEY=VALUE` settings that distinguish one run from the others."""

MOST_RUNS = 10_000
_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?", re.ASCII)
_SPAN = re.compile(r"(log|uniform):(.+?)\.\.(.+)")
_OPENING = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True)
class NumberRange:
    """A range to draw numbers from, uniformly or log-uniformly; integers if both ends are."""

    key: str
    low: float
    high: float
    logarithmic: bool
    whole: bool

    def draw(self, chance: random.Random) -> Settings:
        low, high = (math.log(self.low), math.log(self.high)) if self.logarithmic else (self.low, self.high)
        value = chance.uniform(low, high)
        value = math.exp(value) if self.logarithmic else value
        return (f"{self.key}={round(value) if self.whole else f'{value:.6g}'}",)


@dataclass(frozen=True)
class ListedValues:
    """Settings to choose from: the values of one key, or the lines of a file."""

    choices: tuple[Settings, ...]

    def draw(self, chance: random.Random) -> Settings:
        return chance.choice(self.choices)


Axis = NumberRange | ListedValues


def parse_axis(text: str) -> Axis:
    """`KEY=VALUES`: comma-separated values, integers as `0..4` or `0..20..5`, `log:1e-4..1e-1`, `uniform:0..1`.

    Raises UsageError.
    """
    key, equals, values = text.partition("=")
    key, values = key.strip(), values.strip()
    if not equals or not key or not values:
        shown = re.match(r"[\w.-]*", text)  # only the key: the rest may be a secret
        raise UsageError(f"`axes=`: expected KEY=VALUES, not: {shown and shown[0]}", "for example train.lr=1e-3,3e-3")
    if span := _SPAN.fullmatch(values):
        kind, first, last = span.groups()
        try:
            low, high = float(first), float(last)
        except ValueError:
            hint = f"for example {key}=log:1e-4..1e-1"
            raise UsageError(f"`axes=` {key}: not numbers: {first}..{last}", hint) from None
        logarithmic = kind == "log"
        if not (math.isfinite(low) and math.isfinite(high) and low < high) or (logarithmic and low <= 0):
            above = ", both above 0" if logarithmic else ""
            raise UsageError(f"`axes=` {key}: {first}..{last}", f"write the smaller number first{above}")
        whole = all(re.fullmatch(r"-?[0-9]+", end, re.ASCII) for end in (first, last))
        return NumberRange(key, low, high, logarithmic, whole)
    found = [value for part in _split_at_commas(values) for value in _values(key, part)]
    duplicate = next((value for value, same in itertools.groupby(sorted(found)) if len(list(same)) > 1), None)
    if duplicate is not None:
        raise UsageError(f"`axes=` {key}: {duplicate} appears twice", "list each value once")
    return ListedValues(tuple((f"{key}={value}",) for value in found))


def key_of(setting: str) -> str:
    """The key of `KEY=VALUE`."""
    return setting.partition("=")[0].strip()


def names_of_program(rows: Sequence[Settings]) -> set[str]:
    """The varied names that are not job keys: placeholders in the program, such as `{lr}`."""
    keys = {key_of(setting) for row in rows for setting in row}
    return {key for key in keys if "." not in key} - {field.name for field in fields(Job)}


def filled(program: Sequence[str], row: Settings, names: Iterable[str]) -> list[str]:
    """`program` with the values of `row` for the placeholders `names`. Raises UsageError for one that it lacks."""
    values = {key: value for key, _, value in (setting.partition("=") for setting in row) if key in names}
    if missing := [name for name in values if not any(f"{{{name}}}" in word for word in program)]:
        hint = f"vary a key such as train.{missing[0]}, or write {{{missing[0]}}} into the program: -- PROGRAM"
        raise UsageError(f"`axes=` {missing[0]}: neither a job key nor in the program", hint)
    for name, value in values.items():
        program = [word.replace(f"{{{name}}}", value) for word in program]
    return [*program]


def parse_lines(text: str, name: str) -> ListedValues:
    """The runs in a file: one per line, with settings as for --set; `#` starts a comment. Raises UsageError."""
    import shlex

    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = tuple(shlex.split(line, comments=True))
        except ValueError as error:
            raise UsageError(f"{name}, line {number}: {error}", "quote values as for a shell") from None
        if any("=" not in word for word in words):
            raise UsageError(f"{name}, line {number}: expected KEY=VALUE", "for example: train.lr=3e-3 train.seed=1")
        lines += [words] if words else []
    if not lines:
        raise UsageError(f"{name} names no runs", "write the settings of one run per line")
    return ListedValues(tuple(lines))


def combinations(axes: Sequence[Axis], samples: int | None, seed: int) -> list[Settings]:
    """The settings of each run: all combinations, the last axis changing fastest, or `samples` of them at random.

    The same `seed` draws the same ones, without duplicates. Raises UsageError.
    """
    rows = ((f"{axis.key}=",) if isinstance(axis, NumberRange) else _joined(axis.choices) for axis in axes)
    keys = [set(map(key_of, row)) for row in rows]
    if duplicates := [key for one, other in itertools.combinations(keys, 2) for key in one & other]:
        raise UsageError(f"{duplicates[0]} is swept twice", "write all its values after one `axes=`")
    finite = [axis for axis in axes if isinstance(axis, ListedValues)]
    grid = math.prod(len(axis.choices) for axis in finite)
    if samples is None and len(finite) < len(axes):
        raise UsageError("log: and uniform: are sampled at random", "set the number of runs: `samples=20`")
    count = grid if samples is None else samples
    if samples is not None and samples < 1:
        raise UsageError(f"`samples={samples}`: no runs", "set the number of runs: `samples=20`")
    if count > MOST_RUNS:
        raise UsageError(f"a sweep of {count:,} runs", f"at most {MOST_RUNS:,}; draw a sample: `samples=100`")
    if samples is None:
        return [_joined(parts) for parts in itertools.product(*(axis.choices for axis in finite))]
    if len(finite) == len(axes) and samples > grid:
        raise UsageError(f"`samples={samples}`: there are only {grid} combinations", "leave `samples=` out")
    chance, drawn = random.Random(seed), dict[Settings, None]()  # in the order of the draws, without duplicates
    for _ in range(100 * MOST_RUNS):
        if len(drawn) >= samples:
            break
        drawn[_joined(axis.draw(chance) for axis in axes)] = None
    if len(drawn) < samples:
        what = f"`samples=`: only {len(drawn)} different runs were found"
        raise UsageError(what, "request fewer, or widen the ranges")
    return [*drawn]


def _joined(parts: Iterable[Settings]) -> Settings:
    return tuple(itertools.chain.from_iterable(parts))


def _values(key: str, text: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if not match:
        return [text]
    first, last = int(match[1]), int(match[2])
    step = int(match[3]) if match[3] else 1
    count = (last - first) // step + 1 if step > 0 else 0
    if not 0 < count <= MOST_RUNS:
        raise UsageError(f"`axes=` {key}: not a range of whole numbers: {text}", f"for example {key}=0..4")
    return [str(number) for number in range(first, last + 1, step)]


def _split_at_commas(text: str) -> list[str]:
    """Split `text` at its commas, except those in brackets and quotes."""
    parts, closing, quote = [""], "", ""
    for letter in text:
        if letter == "," and not closing and not quote:
            parts.append("")
            continue
        parts[-1] += letter
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPENING:
            closing += _OPENING[letter]
        elif closing and letter == closing[-1]:
            closing = closing[:-1]
    return [part.strip() for part in parts]

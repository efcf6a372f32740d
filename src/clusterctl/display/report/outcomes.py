"""The score of each of several runs and its shade, from the best sixth to the worst."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.display.report.markup import Markup, join, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.runs.vocabulary import Metric, Number

SHADES = 6


class ScoredSettings(NamedTuple):
    """A run in a chart of settings."""

    name: str
    settings: Mapping[str, str]
    value: Number

    def text(self, metric: Metric) -> str:
        """The run, its value and settings on one line."""
        return f"{self.name}: {metric.label} {metric.text(self.value)}, {settings_text(self.settings)}"


def settings_text(settings: Mapping[str, str]) -> str:
    """Such as `lr=0.01 seed=2`: keys without their tables, unless that is ambiguous."""
    short = [key.rpartition(".")[2] for key in settings]
    names = short if len(set(short)) == len(short) else settings
    return " ".join(f"{name}={value}" for name, value in zip(names, settings.values(), strict=True))


def shade(place: int, count: int) -> str:
    """The CSS class of the run at `place` among `count` ranked runs."""
    return f"shade-{place * SHADES // count}"


def shades_legend(outcomes: Sequence[ScoredSettings], metric: Metric) -> Markup:
    """The range of values of each shade; `outcomes` are ordered from the best."""
    shades = itertools.groupby(enumerate(outcomes), key=lambda pair: shade(pair[0], len(outcomes)))
    entries = []
    for name, group in shades:
        ends = [metric.text(outcome.value) for _, outcome in group]
        entries.append(tag("span", tag("i", class_=name), " to ".join(dict.fromkeys((ends[0], ends[-1])))))
    return tag("div", f"{metric.label}:", join(entries), class_="legend")

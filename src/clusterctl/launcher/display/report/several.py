"""The report on several runs: the best run, the effect of the settings, overlaid curves, a table.

The effect of two settings that form a grid is drawn as a heat map, that of others as parallel coordinates.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.display.curves import drawn_curves, robust
from clusterctl.launcher.display.plain import duration
from clusterctl.launcher.display.report.charts import WIDTH, RunLine, several_lines, svg, tick_text, ticks
from clusterctl.launcher.display.report.markup import Markup, document, join, table, tag
from clusterctl.launcher.display.report.sections import moment, section, state_class
from clusterctl.launcher.display.runs_table import state_text
from clusterctl.launcher.observe.comparison import MOST_CURVES
from clusterctl.launcher.observe.comparison import examine_runs as examine_runs
from clusterctl.launcher.observe.comparison import examine_sweep as examine_sweep
from clusterctl.launcher.observe.history import thinned
from clusterctl.shared.record.states import State
from clusterctl.shared.record.vocabulary import KNOWN, Better, Role, metric_of
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.launcher.observe.comparison import Several
    from clusterctl.shared.record.vocabulary import Metric, Number


_MOST_POINTS = 120  # per line
_MOST_CHARTS = 16
_MOST_KEYS = 24  # of settings, as columns of the table
_MOST_METRICS = 8  # of metrics, as columns
_MOST_LINES = 1000  # through parallel axes
_MOST_PROBLEMS = 20
_FEW = 3  # with fewer runs, a chart of settings is pointless
_COLOURS = 8  # before the dash pattern changes


def page(several: Several) -> str:
    """The whole HTML file."""
    problems = [tag("li", problem.message) for problem in several.problems[:_MOST_PROBLEMS]]
    left = len(several.problems) - len(problems)
    more = tag("p", f"{left} more are not shown.", class_="faint") if left else Markup()
    unread = section("Problems", *([tag("ul", join(problems)), more] if problems else []))
    return document(
        several.title,
        tag("header", tag("h1", several.title)),
        tag("main", _summary(several), unread, _settings(several), _curves(several), _table(several)),
        script="sort.js",
    )


def _summary(several: Several) -> Markup:
    """The number of runs in each state, and the best run with its settings."""
    counts = Counter(member.status.state for member in several.members)
    facts = [("runs", f"{len(several.members):,}")]
    facts += [(stage.value, f"{counts[stage]:,}") for stage in State if counts[stage]]
    facts += [("time left", duration(several.seconds_left))] if several.seconds_left is not None else []
    since = min(member.status.record.created for member in several.members)
    shown = [tag("p", f"submitted {moment(since)}, as of {moment(several.as_of)}", class_="faint"), _facts(facts)]
    if several.metric is None:
        note = "The runs are not ranked: none has a validation score, test score or loss yet."
        return join([*shown, tag("p", note, class_="faint")])
    best, metric = several.members[0], several.metric
    word = "lowest" if metric.better is Better.LOWER else "highest"
    compared = sum(member.score is not None for member in several.members)
    settings = [(key, best.settings.get(key) or "not set") for key in several.keys[:_MOST_KEYS]]
    score = (f"{word} {metric.label}", metric.text(best.score))
    note = f"Ranked by the latest value of {plural(compared, 'run')}. For more on this run: "
    more = tag("p", note, tag("code", f"clusterctl report {best.status.record.run.id}"), class_="faint")
    return join([*shown, section(f"Best run: {best.name}", _facts([score, *settings]), more)])


def _facts(facts: Sequence[tuple[str, str]]) -> Markup:
    cells = [tag("div", tag("dt", name), tag("dd", text)) for name, text in facts]
    return tag("dl", join(cells), class_="facts")


def _settings(several: Several) -> Markup:
    """The effect of the settings on the metric."""
    metric = several.metric
    ranked = [member for member in several.members if member.score is not None]
    outcomes = [ScoredSettings(one.name, one.settings, one.score) for one in ranked if one.score is not None]
    keys = [key for key in several.keys if len({one.settings.get(key) for one in outcomes}) > 1]
    if metric is None or len(outcomes) < _FEW or not keys:
        return Markup()
    if is_grid([member.settings for member in several.members], keys):
        drawn, notes = outcomes, list[str]()
        chart = heat_map(drawn, keys, metric)
    else:
        drawn, notes = outcomes[:_MOST_LINES], ["One line per run; hover over a line for details."]
        chart = parallel_coordinates(drawn, keys[:MOST_AXES], metric)
        notes += [f"Showing the best {len(drawn):,} of {len(outcomes):,} runs."] if len(drawn) < len(outcomes) else []
        notes += [f"Showing the first {MOST_AXES} of {len(keys)} settings."] if len(keys) > MOST_AXES else []
    figure = tag("figure", tag("div", chart, class_="scroll wide"), shades_legend(drawn, metric))
    return section("Settings", figure, *(tag("p", note, class_="faint") for note in notes))


def _curves(several: Several) -> Markup:
    """A chart per metric with a line per run, in the same colour everywhere; only the best runs."""
    lines: dict[str, list[RunLine]] = {}
    entries = []
    for place, member in enumerate(several.members[:MOST_CURVES]):
        style = f"run-{place % _COLOURS} dash-{place // _COLOURS}"
        curves = drawn_curves(member.history) if member.history else []
        drawn = {one.title: points for one in curves if not one.over_time and (points := one.curve.points())}
        settings = f" ({settings_text(member.settings)})" if several.is_sweep else ""
        score = f" {several.metric.text(member.score)}" if several.metric and member.score is not None else ""
        name = f"{member.name}{settings}{score}"
        for title, points in drawn.items():
            lines.setdefault(title, []).append(RunLine(name, style, thinned(points, _MOST_POINTS)))
        if drawn:
            sample = tag("line", x1=0, x2=26, y1=5, y2=5, class_=f"line {style}")
            entries.append(tag("span", tag("svg", sample, class_="key", viewBox="0 0 26 10"), name))
    figures = []
    for title, drawn_in in list(lines.items())[:_MOST_CHARTS]:
        bounds = robust([point for line in drawn_in for point in line.points])
        chart = several_lines(drawn_in, title, bounds=bounds)
        figures.append(tag("figure", tag("figcaption", title), chart))
    if not figures:
        return Markup()
    notes = [
        f"Showing the best {len(entries)} of {len(several.members):,} runs."
        if len(several.members) > MOST_CURVES
        else ""
    ]
    clipped = any(' clipped"' in figure for figure in figures)
    notes += ["Values beyond an axis are drawn at its edge." if clipped else ""]
    notes += [f"Showing {_MOST_CHARTS} of {len(lines)} metrics." if len(lines) > _MOST_CHARTS else ""]
    return section(
        "Curves",
        tag("div", join(figures), class_="charts"),
        tag("div", join(entries), class_="legend runs"),
        *(tag("p", note, class_="faint") for note in notes if note),
    )


def _table(several: Several) -> Markup:
    """One row per run, the best first; a script makes the table sortable.

    Columns of metrics: the ranking one, then other results in the vocabulary's order, then the programs' own.
    """
    keys = several.keys[:_MOST_KEYS]
    logged = {name for member in several.members for name in member.status.metrics}
    names = [*(name for name in KNOWN if name in logged), *sorted(logged - KNOWN.keys())]
    ranking = [several.metric] if several.metric else []
    shown = [one for one in map(metric_of, names) if one.role in (Role.CURVE, Role.RESULT, Role.RATE)]
    metrics = [*ranking, *(one for one in shown if one not in ranking)][:_MOST_METRICS]
    sort = None
    if several.metric:
        sort = "ascending" if several.metric.better is Better.LOWER else "descending"
    titles = [tag("th", "run", scope="col"), tag("th", "state", scope="col")]
    titles += [tag("th", key, scope="col") for key in keys]
    for metric in metrics:
        first = several.metric is not None and metric.name == several.metric.name
        titles.append(tag("th", metric.label, scope="col", class_="number", aria_sort=sort if first else None))
    titles.append(tag("th", "ran", scope="col", class_="number"))
    rows = []
    for member in several.members:
        status, ran = member.status, member.status.ran(several.as_of)
        cells = [tag("td", member.name, class_="narrow")]
        cells.append(tag("td", state_text(status), class_=state_class(status.state)))
        cells += [tag("td", member.settings.get(key, ""), class_="value") for key in keys]
        values = [(metric, status.metrics.get(metric.name)) for metric in metrics]
        cells += [_number(metric.text(value), value) for metric, value in values]
        cells.append(_number("" if ran is None else duration(ran), ran))
        rows.append(tag("tr", join(cells)))
    notes = [f"Run 0 is {several.title}.0, etc." if several.is_sweep else ""]
    if (more := len(several.keys) - len(keys)) > 0:
        notes.append(f"The runs differ in {plural(more, 'more key')}; compare two runs with clusterctl diff.")
    sortable = table(rows, *titles, class_="sortable")
    return section("Runs", sortable, *(tag("p", note, class_="faint") for note in notes if note))


def _number(text: str, value: Number | None) -> Markup:
    """A cell that is sorted by its exact value, or last without one."""
    exact = f"{value:.12g}" if value is not None and math.isfinite(value) else ""
    return tag("td", text, class_="number", data_value=exact)


# A heat map: the best value of a metric for each pair of values of two settings.


_MOST_VALUES = 24
_MAP_LEFT, _MAP_TOP, _MAP_BOTTOM, _ROW = 150, 24, 26, 30
_WIDEST, _NARROWEST = 110, 46  # cell widths; narrower cells have no text


def is_grid(settings: Iterable[Mapping[str, str]], keys: Sequence[str]) -> bool:
    """Whether exactly two keys vary, with a run for every pair of values."""
    if len(keys) != 2:
        return False
    pairs = {(one.get(keys[0], ""), one.get(keys[1], "")) for one in settings}
    first, second = ({pair[side] for pair in pairs} for side in (0, 1))
    return len(pairs) == len(first) * len(second) and max(len(first), len(second)) <= _MOST_VALUES


def heat_map(outcomes: Sequence[ScoredSettings], keys: Sequence[str], metric: Metric) -> Markup:
    """`outcomes` are ordered from the best. The key with more values is horizontal."""
    down, right = sorted(keys, key=lambda key: len({outcome.settings.get(key, "") for outcome in outcomes}))
    rows, columns = (ordered(outcome.settings.get(key, "") for outcome in outcomes) for key in (down, right))
    width = min(_WIDEST, (2 * WIDTH - _MAP_LEFT) / len(columns))
    drawn = [tag("text", tag("title", down), shortened(down, _MAP_LEFT - 10), x=0, y=14, class_="name")]
    best: dict[tuple[str, str], tuple[int, ScoredSettings]] = {}
    for rank, outcome in enumerate(outcomes):
        best.setdefault((outcome.settings.get(down, ""), outcome.settings.get(right, "")), (rank, outcome))
    for (row, column), (rank, outcome) in best.items():
        x, y = _MAP_LEFT + columns.index(column) * width, _MAP_TOP + rows.index(row) * _ROW
        style = f"cell {shade(rank, len(outcomes))}{' best' * (rank == 0)}"
        shape = tag("rect", x=x + 1, y=y + 1, width=width - 2, height=_ROW - 2, class_=style)
        text = [tag("text", metric.text(outcome.value), x=x + width / 2, y=y + 19, class_="middle")]
        drawn.append(tag("g", tag("title", outcome.text(metric)), shape, *(text if width >= _NARROWEST else [])))
    for index, value in enumerate(rows):
        y = _MAP_TOP + index * _ROW + 19
        drawn.append(tag("text", shortened(value or "not set", _MAP_LEFT - 10), x=_MAP_LEFT - 8, y=y, class_="end"))
    bottom = _MAP_TOP + len(rows) * _ROW
    for index, value in enumerate(columns):
        x = _MAP_LEFT + (index + 0.5) * width
        drawn.append(tag("text", shortened(value or "not set", width), x=x, y=bottom + 14, class_="middle"))
    end = _MAP_LEFT + len(columns) * width
    drawn.append(tag("text", tag("title", right), shortened(right, end - _MAP_LEFT), x=_MAP_LEFT, y=14, class_="name"))
    return svg(2 * WIDTH, bottom + _MAP_BOTTOM, f"best {metric.label} by {down} and {right}", drawn)


# The score of each of several runs and its shade, from the best sixth to the worst.


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


# Parallel coordinates: an axis per setting and one for the metric, and a line per run.


MOST_AXES = 8  # of settings
_WIDTH, _HEIGHT = 2 * WIDTH, 320
_AXES_LEFT, _AXES_RIGHT, _AXES_TOP, _AXES_BOTTOM = 16, 84, 34, 14
_LETTER = 6.6  # approximate width of a letter
_MANY = 100  # lines: if there are more, they are drawn thin


def parallel_coordinates(outcomes: Sequence[ScoredSettings], keys: Sequence[str], metric: Metric) -> Markup:
    """`outcomes` are ordered from the best, which is drawn last and thickest."""
    scales = [scale_of(outcome.settings.get(key, "") for outcome in outcomes) for key in keys]
    scales.append(scale_of((str(outcome.value) for outcome in outcomes), named=1))
    gap = (_WIDTH - _AXES_LEFT - _AXES_RIGHT) / len(keys)
    lines = []
    for rank, outcome in enumerate(outcomes):
        texts = [*(outcome.settings.get(key, "") for key in keys), str(outcome.value)]
        corners = " ".join(
            f"{_AXES_LEFT + index * gap:.1f},{_y(scale.places[text]):.1f}"
            for index, (scale, text) in enumerate(zip(scales, texts, strict=True))
        )
        classes = f"line {shade(rank, len(outcomes))}{' best' * (rank == 0)}"
        lines.append(tag("polyline", tag("title", outcome.text(metric)), points=corners, class_=classes))
    axes = []
    for index, (title, scale) in enumerate(zip([*keys, metric.label], scales, strict=True)):
        x = _AXES_LEFT + index * gap
        room = gap if index < len(keys) else _AXES_RIGHT + _AXES_LEFT
        axes.append(tag("line", x1=x, x2=x, y1=_AXES_TOP, y2=_HEIGHT - _AXES_BOTTOM, class_="axis-line"))
        axes.append(tag("text", tag("title", title), shortened(title, room - 8), x=x - 8, y=16, class_="name"))
        axes += [
            tag("text", shortened(text or "not set", room - 12), x=x + 6, y=_y(place) + 4, class_="axis halo")
            for place, text in scale.labels
        ]
    style = "many" if len(lines) > _MANY else None
    drawn = [tag("g", *lines[::-1], class_=style), *axes]
    return svg(_WIDTH, _HEIGHT, f"settings and {metric.label} of each run", drawn)


def shortened(text: str, room: float) -> str:
    """`text`, cut to `room`; its end is kept, since keys share their beginnings."""
    most = max(3, int(room / _LETTER))
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _y(place: float) -> float:
    return _AXES_TOP + (_HEIGHT - _AXES_TOP - _AXES_BOTTOM) * (1 - place)


# An axis for the values of a setting or a metric: numbers to scale, other values evenly spaced.


_LARGEST = 1e300  # differences of larger values overflow
_WIDE = 100  # a wider range of numbers is drawn logarithmically
_LEAST_GAP = 0.055  # between two labels


class Scale(NamedTuple):
    """The position of each value, from 0 to 1, and the axis labels with their positions."""

    places: Mapping[str, float]
    labels: tuple[tuple[float, str], ...]


def scale_of(texts: Iterable[str], named: int = 8) -> Scale:
    """The axis of these values. Up to `named` numbers are labelled; if there are more, round numbers are."""
    distinct = ordered(texts)
    values = [number_of(text) for text in distinct]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(distinct):
        last = len(distinct) - 1
        places = {text: index / last if last else 0.5 for index, text in enumerate(distinct)}
        return Scale(places, _apart([(place, text) for text, place in places.items()]))
    low, high = numbers[0], numbers[-1]
    logarithmic = 0 < low < high / _WIDE

    def place(value: float) -> float:
        first, last, at = (math.log10(one) if logarithmic else one for one in (low, high, value))
        return (at - first) / (last - first) if last > first else 0.5

    places = {text: place(value) for text, value in zip(distinct, numbers, strict=True)}
    if len(distinct) <= named:
        return Scale(places, _apart([(place, text) for text, place in places.items()]))
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1) if logarithmic else ()
    inner = [10.0**power for power in powers] or [tick for tick in ticks(low, high) if low < tick < high]
    return Scale(places, _apart([(place(value), tick_text(value)) for value in (low, high, *inner)]))


def ordered(texts: Iterable[str]) -> list[str]:
    """The distinct values: numbers in ascending order, then the others alphabetically."""
    distinct = set(texts)
    numbers = {text: value for text in distinct if (value := number_of(text)) is not None}
    return sorted(distinct, key=lambda text: (numbers.get(text, math.inf), text))


def number_of(text: str) -> float | None:
    """`text` as a number, if it is one that can be drawn."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST else None


def _apart(labels: list[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """The labels without those too close to an earlier one."""
    kept: list[tuple[float, str]] = []
    for place, text in labels:
        if all(abs(place - other) >= _LEAST_GAP for other, _ in kept):
            kept.append((place, text))
    return tuple(kept)

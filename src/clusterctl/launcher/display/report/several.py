"""The page about several runs: what differs, or the best run and the effect of the settings; overlaid curves; tables.

The effect of two settings that form a grid is drawn as a heat map, that of others as parallel coordinates. The report
is `page`; the dashboard shows its `content`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.config.suggestions import suggested
from clusterctl.launcher.display.comparison import sections_of
from clusterctl.launcher.display.curves import Bounds, drawn_curves, is_flat, robust
from clusterctl.launcher.display.plain import compact, duration
from clusterctl.launcher.display.report.charts import WIDTH, RunLine, several_lines, svg, tick_text, ticks
from clusterctl.launcher.display.report.markup import Markup, document, join, table, tag
from clusterctl.launcher.display.report.sections import constant, counted, moment, section, state_class
from clusterctl.launcher.display.runs_table import state_text
from clusterctl.launcher.observe.comparison import MOST_CURVES
from clusterctl.launcher.observe.history import thinned
from clusterctl.shared.record.metrics import KNOWN, Better, Role, metric_of
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterctl.launcher.observe.comparison import RankedRun, Several
    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.metrics import Metric, Number


SCRIPT = "sort.js"
_MOST_POINTS = 120  # per line
_MOST_CHARTS = 16
_MOST_KEYS = 24  # of settings, as columns of the table
_MOST_METRICS = 8  # of metrics, as columns
_MOST_LINES = 1000  # through parallel axes
_MOST_PROBLEMS = 20
_FEW = 3  # with fewer runs, a chart of settings is pointless
_COLOURS = 8  # with more runs, one colour shows the score
_FEW_COLUMNS = 4  # with fewer runs, the page begins with what differs
_FEW_LINES = 5  # with fewer, none is unusual


def page(several: Several) -> str:
    """The whole HTML file."""
    return document(
        several.title, tag("header", tag("h1", several.title)), tag("main", content(several)), script=SCRIPT
    )


def content(several: Several, address: Callable[[str], str] | None = None) -> Markup:
    """The page below its title; runs are links to the `address` of their id."""
    problems = [tag("li", problem.message) for problem in several.problems[:_MOST_PROBLEMS]]
    left = len(several.problems) - len(problems)
    more = tag("p", f"{left} more are not shown.", class_="faint") if left else Markup()
    unread = section("Problems", *([tag("ul", join(problems)), more] if problems else []))
    since = min(member.status.record.created for member in several.members)
    times = tag("p", f"submitted {moment(since)}, as of {moment(several.as_of)}", class_="faint")
    few = not several.is_sweep and len(several.members) <= _FEW_COLUMNS
    first = [_differences(several, address)] if few else [_summary(several, address), _settings(several)]
    runs = Markup() if few else _tables(several, address)
    return join([times, *first, unread, _curves(several), runs])


def _linked(run: RankedRun, address: Callable[[str], str] | None) -> Markup:
    return tag("a", run.name, href=address(run.status.record.run.id)) if address else tag("span", run.name)


def _differences(several: Several, address: Callable[[str], str] | None) -> Markup:
    """A column per run, and a row for everything that differs: the page about a few runs begins with it."""
    members, metric, found = several.members, several.metric, several.comparison
    if found:  # as named, like the columns of `diff`
        members = tuple(sorted(members, key=lambda one: found.statuses.index(one.status)))
    titles = [tag("th", "")]
    for one in members:
        drawn = _sample(_style(several, one)) if one.history else Markup()
        titles.append(tag("th", drawn, _linked(one, address), scope="col"))
    ran = [one.status.ran(several.as_of) for one in members]
    rows = [
        tag("tr", tag("th", "state", scope="row"), *(_state(one.status) for one in members)),
        _row("ran", ["" if seconds is None else duration(seconds) for seconds in ran]),
    ]
    groups: dict[str, Sequence[tuple[str, ...]]] = {}
    if found:
        groups |= sections_of(found)
    else:
        groups["configuration"] = [
            (key, *(one.settings.get(key) or "not set" for one in members)) for key in several.keys
        ]
        groups["results"] = [
            (name.label, *(name.text(one.status.metrics.get(name.name)) for one in members))
            for name in _metrics_of(several)
        ]
    groups["results"] = [line for line in groups["results"] if len(set(line[1:])) > 1]
    unknown = ["results"] + (["code"] if found and found.code is None else [])
    same = [title for title, lines in groups.items() if not lines and title not in unknown]
    scores = [one.score for one in members if one.score is not None and one.finished]
    comparable = metric is not None and len(scores) == len(members) and len(set(scores)) > 1
    for title, lines in groups.items():
        if not lines:
            continue
        rows.append(tag("tr", tag("th", title, colspan=len(members) + 1, scope="rowgroup", class_="group")))
        for name, *values in lines:
            best = [
                comparable and metric is not None and name == metric.label and one == several.best for one in members
            ]
            rows.append(_row(name, values, best))
    notes = [f"No difference: {', '.join(same)}." if same else ""]
    if metric and not comparable and len(members) > 1 and not all(one.finished for one in members):
        notes.append("No run is called the best, because not all have finished.")
    shown = [tag("p", note, class_="faint") for note in notes if note]
    return section("What differs", table(rows, *titles, class_="differences"), *shown)


def _row(name: str, values: Sequence[str], best: Sequence[bool] = ()) -> Markup:
    cells = [
        tag("td", value, *([" (better)"] if is_best else []), class_="value good" if is_best else "value")
        for value, is_best in zip(values, best or [False] * len(values), strict=True)
    ]
    first, *others = re.split(r"(?<=[._])", name)  # a phone breaks a long key there
    return tag("tr", tag("th", first, *(one for part in others for one in (tag("wbr"), part)), scope="row"), *cells)


def _state(status: Status) -> Markup:
    return tag("td", state_text(status), class_=f"state {state_class(status.state)}")


def _summary(several: Several, address: Callable[[str], str] | None) -> Markup:
    """The number of runs in each state, and the best run with its settings."""
    counts = Counter(member.status.state for member in several.members)
    shown = [tag("p", tag("strong", plural(len(several.members), "run")), ": ", counted(counts))]
    if several.seconds_left is not None:
        shown.append(tag("p", f"about {duration(several.seconds_left)} left"))
    best, metric = several.best, several.metric
    if best is None or metric is None:
        note = "The runs are not ranked: none has a validation score, test score or loss yet."
        return join([*shown, tag("p", note, class_="faint")])
    word = "lowest" if metric.better is Better.LOWER else "highest"
    settings = [(key, best.settings.get(key) or "not set") for key in several.keys[:_MOST_KEYS]]
    score = (f"{word} {metric.label}", metric.text(best.score))
    compared = sum(member.score is not None and member.finished for member in several.members)
    of = plural(compared, "finished run") if best.finished else "runs that have not finished yet"
    note = f"Ranked by the latest value of {of}. For more on this run: "
    more = [tag("p", note, tag("code", suggested(f"clusterctl report {best.status.record.run.id}")), class_="faint")]
    if ahead := several.ahead:
        text = f" is ahead with {metric.text(ahead.score)}, but has not finished: {ahead.status.state}."
        more.append(tag("p", "Run ", _linked(ahead, address), text))
    title = "Best run: " if best.finished else "Best so far: "
    facts = [tag("div", tag("dt", name), tag("dd", text)) for name, text in (score, *settings)]
    return join([*shown, section(f"{title}{best.name}", tag("dl", join(facts), class_="facts"), *more)])


def _settings(several: Several) -> Markup:
    """The effect of the settings on the metric."""
    metric = several.metric
    outcomes = [
        ScoredSettings(one.name, one.settings, one.score, one.finished)
        for one in several.members
        if one.score is not None
    ]
    keys = [key for key in several.keys if len({one.settings.get(key) for one in outcomes}) > 1]
    if metric is None or len(outcomes) < _FEW or not keys:
        return Markup()
    scale = scale_over(several)
    if is_grid([member.settings for member in several.members], keys):
        drawn, notes = outcomes, list[str]()
        chart = heat_map(drawn, keys, metric, scale)
    else:
        drawn, notes = outcomes[:_MOST_LINES], ["One line per run; hover over a line for details."]
        chart = parallel_coordinates(drawn, keys[:MOST_AXES], metric, scale)
        notes += [f"Showing {len(drawn):,} of {len(outcomes):,} runs."] if len(drawn) < len(outcomes) else []
        notes += [f"Showing the first {MOST_AXES} of {len(keys)} settings."] if len(keys) > MOST_AXES else []
    notes += ["Dashed: the run has not finished."] if not all(one.finished for one in drawn) else []
    figure = tag("figure", tag("div", chart, class_="scroll wide"), scale.legend(metric))
    return section("Settings", figure, *(tag("p", note, class_="faint") for note in notes))


def _style(several: Several, run: RankedRun) -> str:
    """The colour of a run's curves: its own if there are few, else one for all, whose strength shows the score."""
    colour = f"run-{several.members.index(run)}" if len(several.members) <= _COLOURS else "run-all"
    if run.finished or not any(one.finished for one in several.members):
        return f"{colour} best" if colour == "run-all" and run == several.best else colour
    return f"{colour} unfinished"


def _sample(style: str) -> Markup:
    line = tag("line", x1=0, x2=26, y1=5, y2=5, class_="line")
    return tag("svg", line, class_=f"key {style}", viewBox="0 0 26 10")


def _curves(several: Several) -> Markup:
    """A chart per metric with a line per run, in the same colour everywhere; only the best runs."""
    lines: dict[str, list[RunLine]] = {}
    floors: dict[str, float | None] = {}
    entries = []
    scale = scale_over(several) if len(several.members) > _COLOURS else None
    for member in several.members[:MOST_CURVES]:
        style = _style(several, member)
        curves = drawn_curves(member.history) if member.history else []
        drawn = {one.title: one for one in curves if not one.over_time and one.curve.points()}
        settings = f" ({settings_text(member.settings)})" if several.is_sweep else ""
        metric = several.metric
        score = f", {metric.label} {metric.text(member.score)}" if metric and member.score is not None else ""
        name = f"{member.name}{settings}{score}"
        strength = scale.strength(member.score) if scale and member.score is not None else None
        for title, one in drawn.items():
            lines.setdefault(title, []).append(
                RunLine(name, style, thinned(one.curve.points(), _MOST_POINTS), strength)
            )
            floors[title] = one.floor
        if drawn:
            entries.append(tag("span", _sample(style), name))
    figures: list[Markup] = []
    flat = []
    for title, drawn_in in lines.items():
        points = [point for line in usual(drawn_in) for point in line.points]
        every = [point for line in drawn_in for point in line.points]
        if is_flat(every) and len(every) > len(drawn_in):
            flat.append((title, compact(every[-1].mean)))
        elif len(figures) < _MOST_CHARTS:
            bounds, floor = robust(points), floors[title]
            bounds = bounds if floor is None else Bounds(min(bounds.low, floor), bounds.high)
            figures.append(tag("figure", tag("figcaption", title), several_lines(drawn_in, title, bounds=bounds)))
    if not figures:
        return section("Curves", constant(flat))
    notes = []
    if len(several.members) > MOST_CURVES:
        notes.append(f"Showing the best {len(entries)} of {len(several.members):,} runs.")
    if scale:
        notes.append("Hover over a line for its run.")
    if any("unfinished" in _style(several, one) for one in several.members[:MOST_CURVES]):
        notes.append("Dashed: the run has not finished.")
    if any(' clipped"' in figure for figure in figures):
        notes.append("Values beyond an axis are drawn at its edge.")
    if (left := len(lines) - len(flat) - len(figures)) > 0:
        notes.append(f"{plural(left, 'more metric')} not shown.")
    if scale and several.metric:
        legend = scale.legend(several.metric)
    else:
        legend = tag("div", join(entries), class_="legend runs")
    return section(
        "Curves",
        tag("div", join(figures), class_="charts"),
        legend,
        constant(flat),
        *(tag("p", note, class_="faint") for note in notes),
    )


def usual(lines: Sequence[RunLine]) -> Sequence[RunLine]:
    """The lines without those far from all others, such as that of a diverged run, which would hide the others."""
    if len(lines) < _FEW_LINES:
        return lines
    ends = sorted(line.points[-1].mean for line in lines)
    low, high = ends[len(ends) // 4], ends[-1 - len(ends) // 4]
    reach = _FAR * (high - low)
    kept = [line for line in lines if low - reach <= line.points[-1].mean <= high + reach]
    return kept if reach > 0 else lines


def _tables(several: Several, address: Callable[[str], str] | None) -> Markup:
    """The finished runs, the best first, and the others apart; a script makes the tables sortable."""
    finished = [one for one in several.members if one.finished]
    others = [one for one in several.members if not one.finished]
    notes = [f"Run 0 is {several.title}.0, etc."] if several.is_sweep else []
    if (more := len(several.keys) - _MOST_KEYS) > 0:
        notes.append(
            f"The runs differ in {plural(more, 'more key')}; compare two of them with clusterctl diff RUN1 RUN2."
        )
    faint = [tag("p", note, class_="faint") for note in notes]
    if not finished or not others:
        return section("Runs", _table(several, several.members, address), *faint)
    left = section("Not finished", _table(several, others, address))
    return join([section("Finished runs", _table(several, finished, address), *faint), left])


def _metrics_of(several: Several) -> list[Metric]:
    """The ranking metric, then other results in the vocabulary's order, then the programs' own."""
    logged = {name for member in several.members for name in member.status.metrics}
    names = [*(name for name in KNOWN if name in logged), *sorted(logged - KNOWN.keys())]
    ranking = [several.metric] if several.metric else []
    shown = [one for one in map(metric_of, names) if one.role in (Role.CURVE, Role.RESULT, Role.RATE)]
    return [*ranking, *(one for one in shown if one not in ranking)][:_MOST_METRICS]


def _table(several: Several, members: Sequence[RankedRun], address: Callable[[str], str] | None) -> Markup:
    """One row per run."""
    keys, metrics, sort = several.keys[:_MOST_KEYS], _metrics_of(several), None
    if several.metric:
        sort = "ascending" if several.metric.better is Better.LOWER else "descending"
    ranking = int(several.metric is not None)  # it is first, beside the state: other columns may be off the screen
    titles = [tag("th", "run", scope="col"), tag("th", "state", scope="col")]
    named = [
        tag("th", metric.label, scope="col", class_="number", aria_sort=None if place else sort)
        for place, metric in enumerate(metrics)
    ]
    titles += [*named[:ranking], *(tag("th", key, scope="col") for key in keys), *named[ranking:]]
    titles.append(tag("th", "ran", scope="col", class_="number"))
    rows = []
    for member in members:
        status, ran = member.status, member.status.ran(several.as_of)
        cells = [tag("td", _linked(member, address) if address else member.name, class_="narrow"), _state(status)]
        values = [(metric, status.metrics.get(metric.name)) for metric in metrics]
        numbers = [_number(metric.text(value), value) for metric, value in values]
        settings = (tag("td", member.settings.get(key, ""), class_="value") for key in keys)
        cells += [*numbers[:ranking], *settings, *numbers[ranking:]]
        cells.append(_number("" if ran is None else duration(ran), ran))
        rows.append(tag("tr", join(cells)))
    return table(rows, *titles, class_="sortable")


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


def heat_map(outcomes: Sequence[ScoredSettings], keys: Sequence[str], metric: Metric, scale: Strengths) -> Markup:
    """`outcomes` are ordered from the best. The key with more values is horizontal."""
    down, right = sorted(keys, key=lambda key: len({outcome.settings.get(key, "") for outcome in outcomes}))
    rows, columns = (ordered(outcome.settings.get(key, "") for outcome in outcomes) for key in (down, right))
    width = min(_WIDEST, (2 * WIDTH - _MAP_LEFT) / len(columns))
    drawn = [tag("text", tag("title", down), shortened(down, _MAP_LEFT - 10), x=0, y=14, class_="name")]
    best: dict[tuple[str, str], ScoredSettings] = {}
    for outcome in outcomes:
        best.setdefault((outcome.settings.get(down, ""), outcome.settings.get(right, "")), outcome)
    for (row, column), outcome in best.items():
        x, y = _MAP_LEFT + columns.index(column) * width, _MAP_TOP + rows.index(row) * _ROW
        style = f"cell{' best' * (outcome is outcomes[0])}{' unfinished' * (not outcome.finished)}"
        strength = _STRONGEST_CELL * scale.strength(outcome.value)
        shape = tag("rect", x=x + 1, y=y + 1, width=width - 2, height=_ROW - 2, class_=style, fill_opacity=strength)
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


# The score of each of several runs, and one scale for all of them: the better, the stronger the colour.


class ScoredSettings(NamedTuple):
    """A run in a chart of settings."""

    name: str
    settings: Mapping[str, str]
    value: Number
    finished: bool = True

    def text(self, metric: Metric) -> str:
        """The run, its value and settings on one line."""
        unfinished = "" if self.finished else " (not finished)"
        return f"{self.name}: {metric.label} {metric.text(self.value)}{unfinished}, {settings_text(self.settings)}"


def settings_text(settings: Mapping[str, str]) -> str:
    """Such as `lr=0.01 seed=2`: keys without their tables, unless that is ambiguous."""
    short = [key.rpartition(".")[2] for key in settings]
    names = short if len(set(short)) == len(short) else settings
    return " ".join(f"{name}={value}" for name, value in zip(names, settings.values(), strict=True))


class Strengths(NamedTuple):
    """A sequential scale in one colour from the `best` value to the `worst`, and the number of runs beyond that."""

    best: Number
    worst: Number
    beyond: int

    def strength(self, value: Number) -> float:
        """From 1 for the best value to `_WEAKEST`."""
        whole = self.worst - self.best
        away = (value - self.best) / whole if math.isfinite(whole) and whole else 0.0
        return 1 - (1 - _WEAKEST) * min(1.0, max(0.0, away))

    def legend(self, metric: Metric) -> Markup:
        steps = [
            tag("rect", x=8 * place, y=0, width=8, height=10, class_="cell", fill_opacity=_STRONGEST_CELL * strength)
            for place in range(_STEPS)
            for strength in [1 - (1 - _WEAKEST) * place / (_STEPS - 1)]
        ]
        bar = tag("svg", *steps, class_="scale", viewBox=f"0 0 {8 * _STEPS} 10")
        more = f" ({plural(self.beyond, 'run')} beyond)" if self.beyond else ""
        ends = metric.text(self.best), metric.text(self.worst)
        return tag("div", tag("span", f"{metric.label}: {ends[0]} ", bar, f" {ends[1]}{more}"), class_="legend")


def scale_over(several: Several) -> Strengths:
    """The scale of all scores. Values that are far worse than most do not stretch it."""
    lower = several.metric is not None and several.metric.better is Better.LOWER
    values = sorted((one.score for one in several.members if one.score is not None), reverse=not lower) or [0]
    usual = values[3 * (len(values) - 1) // 4]
    inside = [value for value in values if abs(value - values[0]) <= _FAR * abs(usual - values[0])]
    within = inside if usual != values[0] else values
    return Strengths(values[0], within[-1], len(values) - len(within))


_WEAKEST, _STRONGEST_CELL, _STEPS = 0.3, 0.62, 24  # the worst line must be seen, and text in a cell stay legible
_FAR = 3.0  # times the distance of the better three quarters


# Parallel coordinates: an axis per setting and one for the metric, and a line per run.


MOST_AXES = 8  # of settings
_WIDTH, _HEIGHT = 2 * WIDTH, 320
_AXES_LEFT, _AXES_RIGHT, _AXES_TOP, _AXES_BOTTOM = 16, 84, 34, 14
_LETTER = 6.6  # approximate width of a letter
_MANY = 100  # lines: if there are more, they are drawn thin


def parallel_coordinates(
    outcomes: Sequence[ScoredSettings], keys: Sequence[str], metric: Metric, strengths: Strengths
) -> Markup:
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
        classes = f"line{' best' * (rank == 0)}{' unfinished' * (not outcome.finished)}"
        strength = strengths.strength(outcome.value)
        named = tag("title", outcome.text(metric))
        lines.append(tag("polyline", named, points=corners, class_=classes, stroke_opacity=strength))
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

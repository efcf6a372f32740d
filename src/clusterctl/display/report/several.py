"""The report on several runs: the best run, the effect of the settings, overlaid curves, a table."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from clusterctl.display.curves import drawn_curves, robust
from clusterctl.display.plain import duration
from clusterctl.display.report.charts import RunLine, several_lines
from clusterctl.display.report.document import document
from clusterctl.display.report.heat_map import heat_map, is_grid
from clusterctl.display.report.markup import Markup, join, table, tag
from clusterctl.display.report.outcomes import ScoredSettings, settings_text, shades_legend
from clusterctl.display.report.parallel import MOST_AXES, parallel_coordinates
from clusterctl.display.report.sections import moment, section, stage_class
from clusterctl.display.runs_table import stage_text
from clusterctl.observe.curve import thinned
from clusterctl.observe.several import MOST_CURVES
from clusterctl.observe.several import examine_runs as examine_runs
from clusterctl.observe.several import examine_sweep as examine_sweep
from clusterctl.runs.stages import Stage
from clusterctl.runs.vocabulary import KNOWN, Better, Role, metric_of
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.observe.several import RankedRun, Several
    from clusterctl.runs.vocabulary import Metric, Number

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
    return document(
        several.title,
        tag("header", tag("h1", several.title)),
        tag("main", _summary(several), _unread(several), _settings(several), _curves(several), _table(several)),
        script="sort.js",
    )


def _summary(several: Several) -> Markup:
    """The number of runs in each stage, and the best run with its settings."""
    counts = Counter(member.status.stage for member in several.members)
    facts = [("runs", f"{len(several.members):,}")]
    facts += [(stage.value, f"{counts[stage]:,}") for stage in Stage if counts[stage]]
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


def _unread(several: Several) -> Markup:
    """Problems in reading the runs."""
    shown = [tag("li", problem.message) for problem in several.problems[:_MOST_PROBLEMS]]
    left = len(several.problems) - len(shown)
    more = tag("p", f"{left} more are not shown.", class_="faint") if left else Markup()
    return section("Problems", *([tag("ul", join(shown)), more] if shown else []))


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
        name = _named(several, member)
        for title, points in drawn.items():
            lines.setdefault(title, []).append(RunLine(name, style, thinned(points, _MOST_POINTS)))
        if drawn:
            entries.append(tag("span", _key(style), name))
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


def _key(style: str) -> Markup:
    """A sample of a run's line, for the legend."""
    return tag("svg", tag("line", x1=0, x2=26, y1=5, y2=5, class_=f"line {style}"), class_="key", viewBox="0 0 26 10")


def _named(several: Several, member: RankedRun) -> str:
    score = f" {several.metric.text(member.score)}" if several.metric and member.score is not None else ""
    settings = f" ({settings_text(member.settings)})" if several.is_sweep else ""
    return f"{member.name}{settings}{score}"


def _table(several: Several) -> Markup:
    """One row per run, the best first; a script makes the table sortable."""
    keys, metrics = several.keys[:_MOST_KEYS], _metrics(several)
    sort = None
    if several.metric:
        sort = "ascending" if several.metric.better is Better.LOWER else "descending"
    titles = [tag("th", "run", scope="col"), tag("th", "stage", scope="col")]
    titles += [tag("th", key, scope="col") for key in keys]
    for metric in metrics:
        first = several.metric is not None and metric.name == several.metric.name
        titles.append(tag("th", metric.label, scope="col", class_="number", aria_sort=sort if first else None))
    titles.append(tag("th", "ran", scope="col", class_="number"))
    rows = [tag("tr", join(list(_cells(several, member, keys, metrics)))) for member in several.members]
    notes = [f"Run 0 is {several.title}.0, etc." if several.is_sweep else ""]
    if (more := len(several.keys) - len(keys)) > 0:
        notes.append(f"The runs differ in {plural(more, 'more key')}; compare two runs with clusterctl diff.")
    shown = table(rows, *titles, class_="sortable")
    return section("Runs", shown, *(tag("p", note, class_="faint") for note in notes if note))


def _cells(several: Several, member: RankedRun, keys: Sequence[str], metrics: Sequence[Metric]) -> Iterator[Markup]:
    status = member.status
    yield tag("td", member.name, class_="narrow")
    yield tag("td", stage_text(status), class_=stage_class(status.stage))
    for key in keys:
        yield tag("td", member.settings.get(key, ""), class_="value")
    for metric in metrics:
        value = status.metrics.get(metric.name)
        yield _number(metric.text(value), value)
    ran = status.ran(several.as_of)
    yield _number("" if ran is None else duration(ran), ran)


def _number(text: str, value: Number | None) -> Markup:
    """A cell that is sorted by its exact value, or last without one."""
    exact = f"{value:.12g}" if value is not None and math.isfinite(value) else ""
    return tag("td", text, class_="number", data_value=exact)


def _metrics(several: Several) -> list[Metric]:
    """The columns: the ranking metric, then other results in the vocabulary's order, then the programs' own."""
    logged = {name for member in several.members for name in member.status.metrics}
    names = [*(name for name in KNOWN if name in logged), *sorted(logged - KNOWN.keys())]
    shown = [metric_of(name) for name in names]
    ranking = [several.metric] if several.metric else []
    others = [one for one in shown if one not in ranking and one.role in (Role.CURVE, Role.RESULT, Role.RATE)]
    return [*ranking, *others][:_MOST_METRICS]

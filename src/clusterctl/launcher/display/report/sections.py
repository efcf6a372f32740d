"""The sections of a report on what happened: summary, phases, curves, efficiency, nodes and ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.diagnosis.efficiency import not_learning
from clusterctl.launcher.diagnosis.running import stragglers
from clusterctl.launcher.display.curves import drawn_curves, is_flat, robust
from clusterctl.launcher.display.logs import label_of
from clusterctl.launcher.display.plain import as_shown, clock, compact, duration, ranges, ranks_text, share
from clusterctl.launcher.display.report.charts import PhasesRow, Piece, line_chart, shares, waterfall
from clusterctl.launcher.display.report.markup import Markup, join, table, tag
from clusterctl.launcher.display.runs_table import state_text
from clusterctl.launcher.display.tables import resource_rows
from clusterctl.launcher.observe.written import Written
from clusterctl.shared.record.metrics import KNOWN, Role, counted_examples, is_other_score, metric_of, number
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.api.logs import Failure
    from clusterctl.launcher.diagnosis.efficiency import Advice, Use
    from clusterctl.launcher.observe.history import History, NodeHistory
    from clusterctl.launcher.observe.logs import Line
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.timeline import TimelineEvent
    from clusterctl.shared.errors import ConfigError, SlurmError

_MOST_ATTEMPTS = 60
_MOST_EVENTS = 80
_MOST_NODES = 32  # drawn
_MOST_CURVES = 24
_MOST_LOG_LINES, _MOST_ERROR_LINES, _LONGEST_LINE = 60, 80, 400  # of excerpts
_MOST_OPEN_RANKS = 16  # shown at once
_MOST_RANKS, _SLOWEST = 256, 64  # in the table: all ranks, or the slowest if there are more
_LEAST_PIECE = 1 / 2000  # minimum width of a piece, as a share of the waterfall's


@dataclass(frozen=True)
class PostMortem:
    """Everything that the report on one run shows.

    `folder` will contain the report: links are relative to it. None: the page is shown elsewhere, without links.
    """

    as_of: float
    status: Status
    history: History
    timeline_events: tuple[TimelineEvent, ...]
    use: Use
    advice: tuple[Advice, ...]
    record: dict[str, Any]  # the content of run.json: versions, git, origins
    folder: Path | None
    findings: tuple[str, ...] = ()  # the lines of `why`
    problems: tuple[ConfigError | SlurmError, ...] = ()
    written: Written = field(default_factory=Written)  # the program's files in its working directory
    log: tuple[Line, ...] = ()  # the last lines
    error: Failure | None = None  # the first one


def section(title: str, *content: Markup) -> Markup:
    """A section with its heading; empty if there is no content."""
    shown = [part for part in content if part]
    return tag("section", tag("h2", title), join(shown)) if shown else Markup()


def summary(examined: PostMortem) -> Markup:
    """The run's state or outcome, and its numbers."""
    status, metrics, use = examined.status, examined.status.metrics, examined.use
    gpus = f", {use.gpus_per_node.in_words} per node" if use.gpus_per_node else ""
    results = [metric for metric in KNOWN.values() if metric.role is Role.RESULT]
    others = [metric_of(name) for name in sorted(metrics) if is_other_score(name)]
    changing = [metric for metric in KNOWN.values() if metric.role is Role.CURVE]
    facts = (
        *((metric.label, metric.text(metrics.get(metric.name))) for metric in (*results, *others, *changing)),
        ("tested on", counted_examples(metrics)),
        ("epoch", share(metrics.get("epoch"), metrics.get("epochs"))),
        ("step", share(metrics.get("step"), metrics.get("steps"))),
        ("nodes x tasks", f"{use.nodes} x {use.tasks_per_node}{gpus}"),
        ("ran", duration(use.held) if use.held else ""),
        ("queued", duration(use.queued) if status.started is not None else ""),
        ("attempts", str(len(status.attempts) or "")),
        ("GPU hours", f"{use.gpu_hours:.1f}" if use.gpus_per_node else ""),
        ("GPU use", f"{use.gpu_percent:.0f} %" if use.gpu_percent is not None else ""),
        ("Slurm job", status.job_id or ""),
        ("cluster", status.record.cluster.name),
        ("note", status.record.job.note or ""),
        ("tags", ", ".join(status.record.job.tags)),
    )
    cells = [tag("div", tag("dt", name), tag("dd", text)) for name, text in facts if text]
    eventful = status.state is not State.FINISHED or len(status.attempts) > 1
    lesson = not_learning(status.attempt.loss_trend if status.attempt else None)
    code = f", exit code {status.exit_code}" if status.exit_code else ""
    when = f" - submitted {moment(status.record.created)}"
    until = f", ended {moment(status.ended)}" if status.ended else f", as of {moment(examined.as_of)}"
    headline = tag("span", state_text(status), class_=f"state {state_class(status.state)}")
    shown = [tag("p", headline, code, tag("span", when + until, class_="faint"))]
    shown.append(tag("dl", join(cells), class_="facts"))
    if status.left_out:
        shown.append(tag("p", "; ".join(map(str, status.left_out)), class_="faint"))
    if lesson:
        shown.append(tag("p", lesson.text[:1].upper() + lesson.text[1:], class_="waits"))
    if examined.findings and eventful:
        shown.append(section("Why", tag("pre", "\n".join(examined.findings))))
    return join(shown)


def advice(examined: PostMortem) -> Markup:
    """Suggestions for the next run, each with the setting to change; what was requested, used, and enough."""
    notes = [
        tag(
            "div",
            tag("strong", one.subject),
            tag("p", one.text),
            tag("p", "next time: ", tag("code", f"--set {one.change}")) if one.change else Markup(),
            class_="advice",
        )
        for one in examined.advice
    ]
    use, split = examined.use, examined.use.split
    nothing = "Nothing to improve." if use.gpus or split else "There is not enough telemetry to judge."
    whole = sum(split.values())
    shown = notes or [tag("p", nothing, class_="faint")]
    if whole:
        legend = [
            tag("span", tag("i", class_=f"part-{index % 6}"), f"{name} {seconds / whole:.0%}, {1000 * seconds:.1f} ms")
            for index, (name, seconds) in enumerate(split.items())
        ]
        shown += [tag("p", f"A step took {1000 * whole:.1f} ms:"), shares(split, "parts of a step")]
        shown.append(tag("div", join(legend), class_="legend"))
    if use.needs is not None and use.needs.memory.used is not None:  # it was measured
        busy = None if use.gpu_percent is None else use.gpu_percent / 100
        rows = [
            tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in cells))
            for name, *cells in resource_rows(use.needs, busy)
            if any(cells)
        ]
        titles = ("per node", "requested", "used", "enough", "next time")
        shown.append(table(rows, *(tag("th", title) for title in titles)))
    return section("Efficiency", *shown)


def seconds(number: float) -> str:
    return f"{number:.1f}s" if number < 10 else duration(number)


def phases(examined: PostMortem) -> Markup:
    """The waterfall of attempts, the duration of each phase, and the events."""
    rows, totals = [], dict[State, float]()
    before = examined.status.record.created
    for attempt, timeline in list(examined.history.attempts.items())[-_MOST_ATTEMPTS:]:
        spans = timeline.phases(examined.as_of)
        if not spans:
            continue
        waited = max(0.0, spans[0].start - before)
        queued = [Piece(State.QUEUED, before, spans[0].start)] if waited else []
        pieces = (Piece(span.state, span.start, span.end or span.start) for span in spans)
        rows.append(PhasesRow(f"attempt {attempt}", [*queued, *pieces]))
        totals[State.QUEUED] = totals.get(State.QUEUED, 0.0) + waited
        for state, spent in timeline.state_seconds(examined.as_of).items():
            totals[state] = totals.get(state, 0.0) + spent
        before = spans[-1].end or before
    if not rows:
        return section("Phases", tag("p", "No attempt has started.", class_="faint"))
    legend = [
        tag("span", tag("i", class_=f"state-{state}"), f"{state} {seconds(totals[state])}")
        for state in State
        if state in totals
    ]
    drawn = tag("div", waterfall(_merged(rows), "phases of each attempt"), class_="scroll wide")
    chart = tag("figure", drawn, tag("div", join(legend), class_="legend"))
    shown = examined.timeline_events[-_MOST_EVENTS:]
    restarted = list(restarts(examined))
    costs_of = ("attempt", "started again", "noticed after", "ranks after", "next step after", "steps repeated")
    titles = [tag("th", title) for title in costs_of]
    costs = table(restarted[-_MOST_ATTEMPTS:], *titles) if restarted else Markup()
    events = [
        tag(
            "tr",
            tag("td", moment(event.time), class_="narrow"),
            tag("td", ranks_text(event.rank, event.ranks), class_="narrow"),
            tag("td", event.text, class_="bad" if event.bad else None),
        )
        for event in shown
    ]
    left = len(examined.timeline_events) - len(shown)
    more = tag("p", f"{left} earlier events are not shown.", class_="faint") if left else Markup()
    return section("Phases", chart, costs, join([more, table(events, class_="events")]))


def restarts(examined: PostMortem) -> Iterator[Markup]:
    """What each restart cost, as rows: from the last step to the attempt's end, the next ranks, and the next step."""
    attempts = examined.history.attempts
    for one in examined.history.resumptions:
        timeline = attempts.get(one.attempt)
        before = max((number for number in attempts if number < one.attempt), default=None)
        host = attempts[before].host if before is not None else None
        how = "in the same job" if host and host.restarting else "through the queue"
        began = timeline.first_event if timeline else None
        ends = (host.end if host else None, began, one.resumed)
        waits = ["" if end is None or one.stopped is None else seconds(max(0.0, end - one.stopped)) for end in ends]
        yield tag("tr", *(tag("td", text) for text in (str(one.attempt), how, *waits, f"{one.undone:,.0f}")))


def curves(examined: PostMortem) -> Markup:
    """A chart for every metric over the steps, with a band for the range summarized in each point."""
    figures: list[Markup] = []
    flat = []
    for drawn in drawn_curves(examined.history):
        points = drawn.curve.points()
        if not points:
            continue
        if is_flat(points):
            flat.append((drawn.title, compact(points[-1].mean)))
            continue
        if len(figures) == _MOST_CURVES:
            break
        marks = [] if drawn.over_time else [one.step for one in examined.history.resumptions]
        x_text = since(points[0].x) if drawn.over_time else (lambda x: f"step {x:.0f}")
        last = compact(drawn.curve.last) if drawn.curve.last is not None else "-"
        best = f", best {compact(drawn.best)}" if drawn.best is not None else ""
        broken = f", not a number {drawn.curve.broken} times" if drawn.curve.broken else ""
        caption = tag("figcaption", drawn.title, tag("span", f"  last {last}{best}{broken}"))
        chart = line_chart(points, drawn.title, bounds=robust(points), marks=marks, x_text=x_text, floor=drawn.floor)
        figures.append(tag("figure", caption, chart))
    notes = []
    if examined.history.resumptions:
        notes.append(tag("p", "Dashed lines mark restarts.", class_="faint"))
    if any('class="outside"' in figure for figure in figures):
        notes.append(
            tag("p", "Triangles mark values beyond the axis; hover over one to see its value.", class_="faint")
        )
    if examined.history.sampled:
        notes.append(tag("p", "The curves show a sample: there are too many data points.", class_="faint"))
    charts = tag("div", join(figures), class_="charts") if figures else Markup()
    return section("Curves", charts, *notes, constant(flat))


def constant(values: Sequence[tuple[str, str]]) -> Markup:
    """The curves that do not change, as numbers rather than charts."""
    cells = [tag("span", f"{title} ", tag("strong", value)) for title, value in values]
    return tag("div", "Constant:", join(cells), class_="legend") if cells else Markup()


def excerpts(examined: PostMortem) -> list[Markup]:
    """The first error and the last lines of the logs, so that they can be read where the files are not."""
    shown = []
    if error := examined.error:
        whose = f"rank {', '.join(ranges(error.ranks, 1)[:3])}, " if error.ranks else ""
        lines = error.text.split("\n")
        cut = ["..."] if len(lines) > _MOST_ERROR_LINES else []
        text = "\n".join(_short(line) for line in [*cut, *lines[-_MOST_ERROR_LINES:]])
        shown += [tag("p", f"The first error, {whose}attempt {error.attempt}:"), tag("pre", text)]
    if examined.log:
        several = len({line.source.rank for line in examined.log}) > 1
        seating = examined.status.record.seating
        lines = [(label_of(line, seating) if several else "") + _short(as_shown(line.text)) for line in examined.log]
        shown += [tag("p", "The last lines:"), tag("pre", "\n".join(lines[-_MOST_LOG_LINES:]))]
    return shown


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


def machines(examined: PostMortem) -> Markup:
    """GPU, CPU and memory of every node over time, and its ranks; if there are many nodes, the idlest."""
    flat: list[tuple[str, str]] = []
    figures, nodes = [], sorted(examined.history.nodes.values(), key=lambda node: node.name)
    shown = nodes
    if len(nodes) > _MOST_NODES:

        def utilisation(node: NodeHistory) -> float:
            means = [mean for gpu in node.gpus.values() if (mean := gpu.mean()) is not None]
            return sum(means) / len(means) if means else math.inf

        shown = sorted(nodes, key=utilisation)[:_MOST_NODES]
    for node in shown:
        for what, curve, ceiling, text in (
            ("GPU utilisation, percent", node.gpu, 100.0, "{:.0f}"),
            ("CPU cores in use", node.cpu, None, "{:.1f}"),
            ("memory, GiB", node.memory, None, "{:.1f}"),
        ):
            points = curve.points()
            if not points:
                continue
            if curve is node.memory:
                points = [
                    point._replace(low=point.low / 2**30, mean=point.mean / 2**30, high=point.high / 2**30)
                    for point in points
                ]
            mean = sum(point.mean for point in points) / len(points)
            if is_flat(points):
                flat.append((f"{node.name}: {what}", text.format(mean)))
                continue
            caption = tag("figcaption", f"{node.name}: {what}", tag("span", f"  mean {text.format(mean)}"))
            chart = line_chart(points, f"{node.name}: {what}", x_text=since(points[0].x), floor=0.0, ceiling=ceiling)
            figures.append(tag("figure", caption, chart))
    charts = [tag("div", join(figures), class_="charts small")] if figures else []
    note = (
        f"The {len(shown)} of {len(nodes):,} nodes with the lowest GPU utilisation." if len(shown) < len(nodes) else ""
    )
    shown_note = tag("p", note, class_="faint") if note else Markup()
    return section("Nodes and ranks", *charts, constant(flat), shown_note, _ranks(examined))


def _ranks(examined: PostMortem) -> Markup:
    """One line per rank: node, steps, seconds per step; if there are many ranks, the slowest."""
    known = sorted(examined.history.ranks.items())
    if not known:
        return Markup() if examined.history.nodes else tag("p", "This run has no telemetry.", class_="faint")
    busy = {rank: of_rank.busy.mean() for rank, of_rank in known}
    slow = {straggler.rank for straggler in stragglers(busy)}
    rows = []
    shown = known if len(known) <= _MOST_RANKS else sorted(known, key=lambda pair: -(busy[pair[0]] or 0))[:_SLOWEST]
    for rank, of_rank in shown:
        seconds = of_rank.seconds
        numbers = (
            number(of_rank.newest.step, 0),
            *map(number, (seconds.low, seconds.mean(), seconds.high, busy[rank])),
        )
        cells = [
            tag("td", str(rank), class_="number"),
            tag("td", of_rank.node),
            *(tag("td", text or "-", class_="number") for text in numbers),
        ]
        rows.append(tag("tr", join(cells), class_="bad" if rank in slow else None))
    names = ("rank", "node", "step", "fastest s", "mean s", "slowest s", "own work s")
    titles = [tag("th", title, class_=None if title == "node" else "number") for title in names]
    notes = ["Red: ranks that slow the others down."] if slow else []
    notes += [f"The {len(shown)} slowest of {len(known):,} ranks."] if len(shown) < len(known) else []
    faint = [tag("p", note, class_="faint") for note in notes]
    if len(rows) <= _MOST_OPEN_RANKS:
        return join([table(rows, *titles), *faint])
    first = [row for (rank, _), row in zip(shown, rows, strict=True) if rank in slow]
    ranks = tag("details", tag("summary", f"{len(rows)} ranks"), table(rows, *titles))
    return join([*([table(first, *titles)] if first else []), *faint, ranks])


def _merged(rows: list[PhasesRow]) -> list[PhasesRow]:
    """Merge pieces too short to be visible into the one before, to limit the size of the page."""
    start = min(piece.start for row in rows for piece in row.pieces)
    least = _LEAST_PIECE * (max(piece.end for row in rows for piece in row.pieces) - start)
    merged = []
    for row in rows:
        pieces: list[Piece] = []
        for piece in row.pieces:
            if pieces and (piece.end - piece.start < least or piece.state is pieces[-1].state):
                pieces[-1] = pieces[-1]._replace(end=piece.end)
            else:
                pieces.append(piece)
        merged.append(PhasesRow(row.name, pieces))
    return merged


def state_class(state: State) -> str:
    """The CSS class of a state, by what it means: only a failure is red."""
    return _CLASSES.get(state, "alive")


_CLASSES = {
    State.QUEUED: "waits",
    State.FINISHED: "good",
    State.FAILED: "bad",
    State.LOST: "bad",
    State.PREEMPTED: "stopped",
    State.TIMED_OUT: "stopped",
    State.CANCELLED: "cancelled",
}


def counted(counts: Mapping[State, int]) -> Markup:
    """The number of runs in each state, in lifecycle order."""
    parts = [
        tag("span", f"{counts[one]} {one}", class_=f"state {state_class(one)}") for one in State if counts.get(one)
    ]
    return join([part for one in parts for part in (one, Markup(" "))])


def moment(seconds: float) -> str:
    """A date and time with its zone."""
    return clock(seconds, date=True)


def since(start: float) -> Callable[[float], str]:
    return lambda x: f"+{duration(x - start)}"

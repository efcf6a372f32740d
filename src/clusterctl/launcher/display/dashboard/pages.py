"""The pages: all runs, a sweep, a run, its log, its `why`."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from clusterctl.launcher.diagnosis.efficiency import advise, use_of
from clusterctl.launcher.display.logs import label_of
from clusterctl.launcher.display.plain import as_shown, clock, duration, share
from clusterctl.launcher.display.report import sections
from clusterctl.launcher.display.report.markup import Markup, join, tag
from clusterctl.launcher.display.report.markup import table as framed
from clusterctl.launcher.display.report.sections import PostMortem
from clusterctl.launcher.display.runs_table import LEFT_ALIGNED, row_of
from clusterctl.launcher.observe.measurements import progress
from clusterctl.launcher.observe.run_names import submission
from clusterctl.launcher.observe.sweeps import values_of
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.launcher.display.dashboard.data import SweepScene
    from clusterctl.launcher.observe.overview import Scene
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import Report
    from clusterctl.shared.errors import ClusterctlError

# The columns of `status`; those on the second line are hidden on narrow screens.
_COLUMNS = {
    **dict.fromkeys(("RUN", "STATE", "PROGRESS", "LOSS"), ""),
    **dict.fromkeys(("EPOCH", "ETA", "VAL", "TEST", "NODES/S", "GPU", "TASKS", "AGE", "NOTE"), "wide"),
}
ALL_RUNS = tag("a", "all runs", href="/")


def document(title: str, links: Iterable[Markup], main: Markup) -> str:
    """A whole page. Style and script are files on this server; the script replaces `main` with newer versions."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="stylesheet", href="/style.css"),
        tag("script", src="/script.js", defer=""),
    )
    above = tag("header", tag("nav", *links), tag("h1", title), tag("p", id="trouble", class_="bad", role="status"))
    return f"<!doctype html>\n{tag('html', head, tag('body', above, tag('main', main)), lang='en')}\n"


def runs(found: Report, stage: str = "") -> Markup:
    """All runs, newest first, with one line per sweep; or only the runs in `state`."""
    counts = Counter(status.state for status in found.statuses)
    links = [tag("a", plural(len(found.statuses), "run"), href="/", aria_current=None if stage else "page")]
    links += [
        tag("a", f"{counts[one]} {one}", href=f"/?stage={one}", aria_current="page" if one == stage else None)
        for one in State
        if one in counts
    ]
    shown = (status for status in found.statuses if stage in ("", status.state))
    rows = []
    for name, members in groupby(shown, lambda status: submission(status.record.run.id)):
        first, *others = members
        if stage or first.record.run.id == name:
            rows += [_cells(status, found.as_of) for status in (first, *others)]
        else:
            runs_of = [first, *others]
            of_sweep = Counter(status.state for status in runs_of)
            ended = sum(count for one, count in of_sweep.items() if one.ended)
            rows.append(
                {
                    **{column: _cell(column, "") for column in _COLUMNS},
                    "RUN": _cell("RUN", tag("a", name, href=f"/sweep/{name}")),
                    "STATE": tag("td", *_counted(of_sweep)),
                    "PROGRESS": _progress(ended / len(runs_of), share(ended, len(runs_of))),
                    "AGE": _cell("AGE", duration(found.as_of - first.record.created)),
                    "NOTE": _cell("NOTE", f"sweep of {plural(len(runs_of), 'run')}"),
                }
            )
    table = _table(rows) if rows else tag("p", "no matching runs" if stage else "no runs yet", class_="faint")
    return join([tag("nav", *links), problems(found.problems), table, _as_of(found.as_of)])


def sweep(scene: SweepScene) -> Markup:
    """The runs of a sweep with their settings."""
    summary = scene.summary
    record, best = summary.record, summary.best
    settings = {run: values_of(one) for run, one in zip(record.runs, record.settings, strict=True)}
    rows = []
    for status in summary.statuses:
        values = settings[status.record.run]
        chosen = {key: _cell(key, values.get(key, "")) for key in record.keys}
        cells = _cells(status, scene.as_of, status.record.run.id.removeprefix(record.sweep.id))
        rows.append({"RUN": cells["RUN"], **chosen, **cells})
    facts = []
    if summary.seconds_left is not None:
        facts.append(tag("p", f"about {duration(summary.seconds_left)} left"))
    if best:
        run_id, value = best.status.record.run.id, best.metric.text(best.value)
        link = tag("a", run_id, href=_run_address(run_id))
        facts.append(tag("p", "best so far: ", link, f", {best.metric.label} {value}"))
    counts = tag("p", *_counted(summary.states))
    return join([counts, *facts, problems(scene.problems), _table(rows), _as_of(scene.as_of)])


def run(scene: Scene, findings: Sequence[str]) -> Markup:
    """The current report of the run: numbers, curves, phases, nodes and ranks."""
    seen = scene.selected
    if seen is None:
        return problems(scene.problems)
    use = use_of(seen.status, seen.history, scene.as_of)
    examined = PostMortem(
        as_of=scene.as_of,
        status=seen.status,
        history=seen.history,
        timeline_events=seen.timeline_events,
        use=use,
        advice=tuple(advise(use)),
        record={},
        folder=seen.status.record.run.path,
        findings=tuple(findings),
    )
    parts = (sections.summary, sections.curves, sections.advice, sections.phases, sections.machines)
    return join([problems(scene.problems), *(part(examined) for part in parts), _as_of(scene.as_of)])


def log(scene: Scene) -> Markup:
    """The last lines of the ranks' logs, merged by time."""
    if scene.selected is None:
        return problems(scene.problems)
    lines = scene.selected.log
    several = len({line.source.rank for line in lines}) > 1
    texts = [(label_of(line) if several else "") + as_shown(line.text) for line in lines]
    shown = tag("pre", "\n".join(texts), class_="log") if texts else tag("p", "no output yet", class_="faint")
    command = f"clusterctl logs {scene.selected.status.record.run.id}"
    return join([shown, tag("p", "complete log: ", tag("code", command), class_="faint"), _as_of(scene.as_of)])


def why(lines: Sequence[str]) -> Markup:
    """The output of `clusterctl why`."""
    return tag("pre", "\n".join(lines))


def problems(found: Iterable[ClusterctlError]) -> Markup:
    """The problems in reading the runs, with hints."""
    lines = [tag("p", problem.message, *([f" ({problem.hint})"] if problem.hint else [])) for problem in found]
    return tag("div", *lines, class_="advice") if lines else Markup()


def run_links(run_id: str, part: str) -> list[Markup]:
    """The navigation links of a run's page, with `part` as the current one."""
    sweep = submission(run_id)
    above = [] if sweep == run_id else [tag("a", "sweep", href=f"/sweep/{sweep}")]
    parts = [
        tag("a", one or "run", href=_run_address(run_id, one), aria_current="page" if one == part else None)
        for one in ("", "logs", "why")
    ]
    return [ALL_RUNS, *above, *parts]


def _run_address(run_id: str, part: str = "") -> str:
    return f"/run/{run_id}/{part}".rstrip("/")


def _cells(status: Status, now: float, name: str | None = None) -> dict[str, Markup]:
    """The cells of one run by column; `name` replaces its id."""
    texts, done = row_of(status, now).cells, progress(status.metrics)
    cells = {name: _cell(name, texts.get(name, "")) for name in _COLUMNS}
    cells["RUN"] = _cell("RUN", tag("a", name or texts["RUN"], href=_run_address(texts["RUN"])))
    cells["AGE"] = _cell("AGE", duration(now - status.record.created))
    cells["STATE"] = tag("td", texts["STATE"], class_=f"narrow stage {sections.state_class(status.state)}")
    if texts.get("PROGRESS") and done is not None:
        cells["PROGRESS"] = _progress(done, f"{done:.0%}")
    return cells


def _counted(counts: Mapping[State, int]) -> list[str]:
    """The number of runs in each state, in lifecycle order."""
    stages = [one for one in State if one in counts]
    links = [tag("span", f"{counts[one]} {one}", class_=f"stage {sections.state_class(one)}") for one in stages]
    return [part for link in links for part in (link, " ")]


def _progress(done: float, text: str) -> Markup:
    return tag("td", tag("progress", value=done, max=1), " ", text, class_="narrow")


def _cell(column: str, text: str) -> Markup:
    return tag("td", text, class_=_class_of(column))


def _class_of(column: str) -> str | None:
    kinds = [_COLUMNS[column], "" if column in LEFT_ALIGNED else "number"] if column in _COLUMNS else []
    return " ".join(filter(None, kinds)) or None


def _table(rows: Sequence[dict[str, Markup]]) -> Markup:
    """A table of runs without empty columns; columns beyond those of `status` are settings."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] != _cell(name, "") for row in rows)]
    titles = [
        tag("th", name.lower(), class_=_class_of(name)) if name in _COLUMNS else tag("th", name) for name in names
    ]
    return framed([tag("tr", *(row[name] for name in names)) for row in rows], *titles)


def _as_of(moment: float) -> Markup:
    return tag("p", f"as of {clock(moment)}", class_="faint")

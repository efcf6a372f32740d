"""The pages: all runs, a sweep, a run, its log, its `why`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from clusterctl.launcher.config.suggestions import suggested
from clusterctl.launcher.diagnosis.efficiency import advise, use_of
from clusterctl.launcher.display.logs import label_of
from clusterctl.launcher.display.plain import as_shown, clock, duration, share
from clusterctl.launcher.display.report import sections
from clusterctl.launcher.display.report.markup import Markup, join, tag
from clusterctl.launcher.display.report.markup import table as framed
from clusterctl.launcher.display.report.sections import PostMortem
from clusterctl.launcher.display.report.several import content
from clusterctl.launcher.display.runs_table import LEFT_ALIGNED, row_of
from clusterctl.launcher.observe.measurements import progress
from clusterctl.launcher.observe.run_names import submission
from clusterctl.launcher.observe.status import in_order, is_ascending
from clusterctl.launcher.observe.sweeps import ranked
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.launcher.display.explanation import Causes
    from clusterctl.launcher.observe.comparison import Several
    from clusterctl.launcher.observe.overview import Scene
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import RunStatuses
    from clusterctl.shared.errors import ClusterctlError

# The columns of `status`; those on the second line are hidden on narrow screens.
_COLUMNS = {
    "RUN": "run",
    **dict.fromkeys(("STATE", "PROGRESS", "LOSS"), ""),
    **dict.fromkeys(("EPOCH", "ETA", "VAL", "TEST", "NODES/S", "GPU", "TASKS", "CLUSTER", "TAGS", "AGE"), "wide"),
}
_NOTE = "NOTE"  # below its run: a column would leave it no room
_SORTED = {name: name.lower() for name in _COLUMNS if name not in ("CLUSTER", "TAGS")}
_SORTED["NODES/S"] = "nodes_per_second"
_ROWS = 50  # per page
_LONGEST_SEARCH, _LONGEST_NUMBER = 200, 7
_LAST_LINES = 40
ALL_RUNS = tag("a", "all runs", href="/")


def document(title: str, links: Iterable[Markup], main: Markup, search: str | None = None) -> str:
    """A whole page, with a field to `search`. Style and script are files on this server.

    The script replaces `main` with newer versions.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="stylesheet", href="/style.css"),
        tag("script", src="/script.js", defer=""),
    )
    field = {"type": "search", "id": "search", "placeholder": "search runs, tags, notes", "aria_label": "search"}
    searched = [] if search is None else [tag("input", value=search, **field)]
    trouble = tag("p", id="trouble", class_="bad", role="status")
    above = tag("header", tag("nav", *links), tag("h1", title), *searched, trouble)
    return f"<!doctype html>\n{tag('html', head, tag('body', above, tag('main', main)), lang='en')}\n"


class Wanted(NamedTuple):
    """Which runs the first page shows, and in which order, as in its address."""

    state: str = ""
    words: str = ""  # each must be in a run's id, state, cluster, tags or note
    sort: str = ""  # a column, see `observe.status`; reversed after a minus sign
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, Sequence[str]]) -> Wanted:
        """Those of a request; what an address cannot mean is left out."""
        state, words, sort, page = (query.get(name, [""])[0] for name in ("state", "q", "sort", "page"))
        return cls(
            state if state in tuple(State) else "",
            words[:_LONGEST_SEARCH].strip(),
            sort if sort.removeprefix("-") in _SORTED.values() else "",
            int(page) if page.isascii() and page.isdigit() and 0 < len(page) < _LONGEST_NUMBER else 1,
        )

    @property
    def everything(self) -> bool:
        """Whether neither some runs nor an order were chosen."""
        return not (self.state or self.words or self.sort)

    @property
    def address(self) -> str:
        given = {"state": self.state, "q": self.words, "sort": self.sort, "page": self.page if self.page > 1 else ""}
        query = urlencode({name: value for name, value in given.items() if value})
        return f"/?{query}" if query else "/"


def runs(found: RunStatuses, wanted: Wanted = Wanted(), causes: Causes | None = None) -> Markup:  # noqa: B008 - immutable
    """All runs, newest first, with one line per sweep; or the single runs that match, or in another order.

    `causes` explains those that failed.
    """
    groups = _groups(found, wanted)
    pages = max(1, -(-len(groups) // _ROWS))
    wanted = wanted._replace(page=min(wanted.page, pages))
    first = (wanted.page - 1) * _ROWS
    drawn = groups[first : first + _ROWS]
    clusters = {status.record.cluster.name for status in found.statuses}
    as_sweeps = [wanted.everything and _is_sweep(group) for group in drawn]
    single = [group[0] for group, is_sweep in zip(drawn, as_sweeps, strict=True) if not is_sweep]
    known = causes.of(single) if causes else {}
    rows = [
        _sweep_cells(group, found.as_of) if is_sweep else _cells(group[0], found.as_of, known)
        for group, is_sweep in zip(drawn, as_sweeps, strict=True)
    ]
    for row in rows if len(clusters) == 1 else ():  # below the table instead
        row["CLUSTER"] = _cell("CLUSTER", "")
    table = (
        _table(rows, wanted)
        if rows
        else tag("p", "no matching runs" if found.statuses else "no runs yet", class_="faint")
    )
    newer, older = ("previous", "next") if wanted.sort else ("newer", "older")
    turns = [
        tag("a", text, href=wanted._replace(page=number).address)
        for text, number in ((newer, wanted.page - 1), (older, wanted.page + 1))
        if 0 < number <= pages
    ]
    which = tag("span", f"{first + 1} to {first + len(drawn)} of {len(groups)}", class_="faint")
    paging = tag("nav", which, *turns) if turns else Markup()
    place = f"cluster {next(iter(clusters))}, " if len(clusters) == 1 else ""
    return join([_states(found, wanted), problems(found.problems), table, paging, _as_of(found.as_of, place)])


def _states(found: RunStatuses, wanted: Wanted) -> Markup:
    """Links to the runs in each state, with their number."""
    counts, everything = Counter(status.state for status in found.statuses), wanted._replace(state="", page=1)
    whole = plural(len(found.statuses), "run")
    links = [tag("a", whole, href=everything.address, aria_current=_current(not wanted.state))]
    for one in (one for one in State if one in counts):
        dot, address = tag("i", class_=sections.state_class(one)), everything._replace(state=one).address
        links.append(tag("a", dot, f"{counts[one]} {one}", href=address, aria_current=_current(one == wanted.state)))
    return tag("nav", *links)


def _groups(found: RunStatuses, wanted: Wanted) -> list[list[Status]]:
    """What is a row each: a run, or a sweep where nothing was chosen."""
    words = wanted.words.casefold().split()
    shown = [one for one in found.statuses if wanted.state in ("", one.state) and _matches(one, words)]
    if wanted.sort:
        with suppress(UsageError):  # no run has logged that metric
            column = wanted.sort.removeprefix("-")
            shown = in_order(shown, column, found.as_of, reverse=column != wanted.sort)
    if not wanted.everything:
        return [[one] for one in shown]
    return [list(members) for _, members in groupby(shown, lambda one: submission(one.record.run.id))]


def _is_sweep(group: Sequence[Status]) -> bool:
    run_id = group[0].record.run.id
    return submission(run_id) != run_id


def _current(here: bool) -> str | None:
    return "page" if here else None


def _matches(status: Status, words: Sequence[str]) -> bool:
    record, job = status.record, status.record.job
    texts = record.run.id, status.state, record.cluster.name, *job.tags, job.note or "", status.job_id or ""
    text = " ".join(texts).casefold() if words else ""
    return all(word in text for word in words)


def _sweep_cells(members: Sequence[Status], now: float) -> dict[str, Markup]:
    """The row of a sweep: how many of its runs are in each state, and the best of the finished ones."""
    first, counts = members[0], Counter(status.state for status in members)
    name, ended = submission(first.record.run.id), sum(count for one, count in counts.items() if one.ended)
    best = next(iter(ranked([one for one in members if one.state is State.FINISHED])), None)
    of_best = f"best {best.metric.label} {best.metric.text(best.value)}" if best else ""
    return {
        **{column: _cell(column, "") for column in _COLUMNS},
        "RUN": _cell("RUN", tag("a", name, href=f"/sweep/{name}")),
        "STATE": tag("td", plural(len(members), "run"), class_="narrow"),
        "PROGRESS": _progress(ended / len(members), share(ended, len(members))),
        "CLUSTER": _cell("CLUSTER", first.record.cluster.name),
        "TAGS": _tags(first.record.job.tags),
        "AGE": _cell("AGE", duration(now - first.record.created)),
        _NOTE: join(["sweep: ", sections.counted(counts), of_best]),
    }


def sweep(several: Several) -> Markup:
    """The sweep, as in its report."""
    return join([content(several, _run_address), _as_of(several.as_of)])


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
        folder=None,
        findings=tuple(findings),
        log=seen.log[-_LAST_LINES:],
    )
    parts = (sections.summary, sections.curves, sections.advice, sections.phases, sections.machines)
    log = sections.section("Log", *sections.excerpts(examined))
    return join([problems(scene.problems), *(part(examined) for part in parts), log, _as_of(scene.as_of)])


def log(scene: Scene) -> Markup:
    """The last lines of the ranks' logs, merged by time."""
    if scene.selected is None:
        return problems(scene.problems)
    lines = scene.selected.log
    several = len({line.source.rank for line in lines}) > 1
    seating = scene.selected.status.record.seating
    texts = [(label_of(line, seating) if several else "") + as_shown(line.text) for line in lines]
    shown = tag("pre", "\n".join(texts), class_="log") if texts else tag("p", "no output yet", class_="faint")
    command = suggested(f"clusterctl logs {scene.selected.status.record.run.id}")
    return join([shown, tag("p", "complete log: ", tag("code", command), class_="faint"), _as_of(scene.as_of)])


def why(lines: Sequence[str]) -> Markup:
    """The output of `clusterctl why`."""
    return tag("pre", "\n".join(lines))


def problems(found: Iterable[ClusterctlError]) -> Markup:
    """The problems in reading the runs, with hints."""
    lines = [
        tag("p", problem.message, *([f" ({suggested(problem.hint)})"] if problem.hint else [])) for problem in found
    ]
    return tag("div", *lines, class_="advice") if lines else Markup()


def run_links(run_id: str, part: str) -> list[Markup]:
    """The navigation links of a run's page, with `part` as the current one."""
    sweep = submission(run_id)
    above = [] if sweep == run_id else [tag("a", "sweep", href=f"/sweep/{sweep}")]
    parts = [
        tag("a", one or "run", href=_run_address(run_id, one), aria_current="page" if one == part else None)
        for one in ("", "logs", "why")
    ]
    return [ALL_RUNS, *above, *parts, report_link(_run_address(run_id))]


def report_link(page: str) -> Markup:
    """The link to the report on the run or sweep at the address `page`: one file, to save and to send."""
    return tag("a", "report", href=f"{page}/report")


def _run_address(run_id: str, part: str = "") -> str:
    return f"/run/{run_id}/{part}".rstrip("/")


def _cells(status: Status, now: float, causes: Mapping[str, str]) -> dict[str, Markup]:
    """The cells of one run by column."""
    texts, done = row_of(status, now).cells, progress(status.metrics)
    cells = {name: _cell(name, texts.get(name, "")) for name in _COLUMNS}
    cells["RUN"] = _cell("RUN", tag("a", texts["RUN"], href=_run_address(texts["RUN"])))
    cells["AGE"] = _cell("AGE", duration(now - status.record.created))
    cells["STATE"] = tag("td", texts["STATE"], class_=f"narrow state {sections.state_class(status.state)}")
    cells["CLUSTER"] = _cell("CLUSTER", status.record.cluster.name)
    cells["TAGS"] = _tags(status.record.job.tags)
    cells[_NOTE] = join([causes.get(status.record.run.id) or texts.get(_NOTE, "")])
    if texts.get("PROGRESS") and done is not None:
        cells["PROGRESS"] = _progress(done, f"{done:.0%}")
    return cells


def _tags(tags: Sequence[str]) -> Markup:
    """Labels that lead to all runs with them."""
    labels = [tag("a", one, href=Wanted(words=one).address, class_="label") for one in tags]
    return _cell("TAGS", join([part for one in labels for part in (one, Markup(" "))]))


def _progress(done: float, text: str) -> Markup:
    return tag("td", tag("progress", value=done, max=1), " ", text, class_="narrow")


def _cell(column: str, text: str) -> Markup:
    return tag("td", text, class_=_class_of(column))


def _class_of(column: str) -> str | None:
    kinds = [_COLUMNS[column], "" if column in (*LEFT_ALIGNED, "CLUSTER") else "number"]
    return " ".join(filter(None, kinds)) or None


def _table(rows: Sequence[dict[str, Markup]], wanted: Wanted) -> Markup:
    """A table of runs without empty columns; most titles sort by their column, and again in the other direction."""
    names = [name for name in _COLUMNS if any(row[name] != _cell(name, "") for row in rows)]
    titles = []
    for name in names:
        by = _SORTED.get(name)
        if by is None:
            titles.append(tag("th", name.lower(), class_=_class_of(name)))
            continue
        order = "ascending" if is_ascending(by) != wanted.sort.startswith("-") else "descending"
        shown = order if wanted.sort.removeprefix("-") == by else None
        address = wanted._replace(sort=f"-{by}" if wanted.sort == by else by, page=1).address
        titles.append(tag("th", tag("a", name.lower(), href=address), class_=_class_of(name), aria_sort=shown))
    lines = []
    for row in rows:
        lines.append(tag("tr", *(row[name] for name in names), class_="noted" if row[_NOTE] else None))
        lines += [tag("tr", tag("td", row[_NOTE], colspan=len(names)), class_="note")] if row[_NOTE] else []
    return framed(lines, *titles)


def _as_of(moment: float, place: str = "") -> Markup:
    return tag("p", f"{place}as of {clock(moment)}", class_="faint")

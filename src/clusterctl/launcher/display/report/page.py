"""A report on one run: the evidence at one moment, its page, and the sections on where its values come from."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from clusterctl.launcher.api.logs import read_logs
from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.diagnosis.efficiency import advise, use_of
from clusterctl.launcher.display.explanation import explanation
from clusterctl.launcher.display.plain import as_bytes
from clusterctl.launcher.display.report import sections
from clusterctl.launcher.display.report.markup import Markup, document, join, table, tag
from clusterctl.launcher.display.report.sections import PostMortem, section
from clusterctl.launcher.observe.history import History
from clusterctl.launcher.observe.logs import MOST_LOGS, Logs, Selection, collapsed
from clusterctl.launcher.observe.needs import used_in
from clusterctl.launcher.observe.overview import timeline_events
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.written import read_written
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.record.files import exists, read_json
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.keys import leaves_as_written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster


def examine(
    run: RunDir,
    folder: Path | None,
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
    clock: Callable[[], float] = time.time,
) -> PostMortem:
    """Examine `run` for a report in `folder` (None: without links). Raises ConfigError without a readable record."""
    found = statuses_of([run], slurm_of, clock)
    if not found.statuses:
        raise found.problems[0]
    (status,) = found.statuses
    history = History(run, all_ranks=False)
    history.update(status.attempts)
    diagnosis = diagnose_status(status, slurm_of, clock, seen=history.take_events)  # read the events only once
    use = use_of(status, history, found.as_of, used_in(run.attempts()))
    many = status.record.job.resources.nodes * status.record.tasks_per_node > MOST_LOGS
    last = Logs(run, Selection(rank=0 if many else None, host=True), tail=_TAIL).read(ended=True)
    failed = status.state.ended and status.state is not State.FINISHED
    searched = failed and not many and run.attempts()  # of many ranks, the findings have the error
    errors = read_logs(run, Selection(host=True), tail=_ERROR_TAIL).errors() if searched else []
    return PostMortem(
        as_of=found.as_of,
        status=status,
        history=history,
        timeline_events=tuple(timeline_events(status, history)),
        use=use,
        advice=tuple(advise(use)),
        record=read_json(run.run_json),
        folder=folder,
        findings=tuple(explanation(diagnosis)),
        problems=found.problems,
        written=read_written(run),
        log=tuple(collapsed(last)),
        error=errors[0] if errors else None,
    )


def page(examined: PostMortem) -> str:
    """The whole HTML file."""
    run = examined.status.record.run.id
    return document(
        f"{run} - {examined.status.state}",
        tag("header", tag("h1", run)),
        tag(
            "main",
            sections.summary(examined),
            sections.curves(examined),
            sections.advice(examined),
            sections.phases(examined),
            sections.machines(examined),
            environment(examined),
            configuration(examined),
            logs(examined),
            files(examined),
        ),
    )


_TAIL, _ERROR_TAIL = 40, 2000  # lines of each log that are read for excerpts
_MOST_RANKS = 64
_MOST_FILES = 100
_DEFAULT = "default"


def environment(examined: PostMortem) -> Markup:
    """Versions, code, cluster, and the command line."""
    record, cluster = examined.record, examined.status.record.cluster
    git = _table(record, "git")
    commit = str(git.get("commit", "")) + (" with changes, see git.patch" if git.get("dirty") else "")
    newest = examined.status.attempt
    typed = record.get("argv")
    facts = {
        "run directory": str(examined.status.record.run.path),
        "cluster": f"{cluster.name} ({cluster.kind})",
        "nodes": newest.nodes if newest else "",
        "image": ", ".join(examined.status.record.job.images) or "none: on the host",
        **{str(name): str(version) for name, version in _table(record, "versions").items()},
        "git commit": commit,
        "command": " ".join(["clusterctl", *map(str, typed)]) if isinstance(typed, list) else "",
    }
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", text, class_="value")) for name, text in facts.items() if text
    ]
    return section("Environment", table(rows))


def configuration(examined: PostMortem) -> Markup:
    """Every key of the job with its value and origin; keys that were set come first, the others are collapsed."""
    origins = {str(key): str(origin) for key, origin in _table(examined.record, "origins").items()}
    leaves = leaves_as_written(_table(examined.record, "job"))
    chosen = []
    for key, value in leaves:  # the origin of the key, or of the table that contains it
        names = (".".join(key[:length]) for length in range(len(key), 0, -1))
        chosen.append((".".join(key), value, next(filter(None, map(origins.get, names)), _DEFAULT)))
    given = [row for row in chosen if row[2] != _DEFAULT]
    rest = [row for row in chosen if row[2] == _DEFAULT]
    hidden = tag("details", tag("summary", f"{len(rest)} keys at their defaults"), _key_table(rest))
    return section("Configuration", *([_key_table(given)] if given else []), *([hidden] if rest else []))


def logs(examined: PostMortem) -> Markup:
    """Excerpts of the logs, and links to their files and the batch script."""
    excerpts, items, folder = sections.excerpts(examined), [], examined.folder
    if folder is None:
        return section("Logs", *excerpts)
    for attempt in examined.status.record.run.attempts():
        paths = [("host", attempt.host_log)] if exists(attempt.host_log) else []
        files = [(rank, stream, path) for stream in ("out", "err") for rank, path in attempt.log_files(stream).items()]
        files.sort(key=lambda file: file[0])
        paths += [(f"rank {rank} {stream}", path) for rank, stream, path in files if rank < _MOST_RANKS and _size(path)]
        links = [tag("a", name, href=link(path, folder)) for name, path in paths]
        more = " and more ranks in the folder" if any(rank >= _MOST_RANKS for rank, _, _ in files) else ""
        spaced = [part for one in links for part in (one, Markup(" "))]
        items.append(tag("p", tag("strong", f"attempt {attempt.number}: "), join(spaced), more))
    script = examined.status.record.run.script
    if exists(script):
        items.append(tag("p", tag("a", "batch script", href=link(script, folder))))
    note = tag("p", "These links work where this page was written.", class_="faint")
    listed = tag("details", tag("summary", "complete files"), *items, note) if items else Markup()
    return section("Logs", *excerpts, listed)


def files(examined: PostMortem) -> Markup:
    """Links to the files the program wrote to its working directory."""
    work, written = examined.status.record.run.work, examined.written
    rows = []
    for file in written.files[:_MOST_FILES]:
        folder = examined.folder
        name = tag("a", file.name, href=link(work / file.name, folder)) if folder else tag("span", file.name)
        rows.append(tag("tr", tag("td", name, class_="value"), tag("td", as_bytes(file.bytes), class_="number")))
    if not rows:
        return Markup()
    left = len(written.files) - len(rows)
    notes = [f"{left} more are not shown."] if left else []
    notes += [] if written.complete else ["Not all files were examined: there are too many."]
    above = tag("p", f"New or changed in {work}:", class_="faint")
    return section("Files", above, table(rows), *(tag("p", note, class_="faint") for note in notes))


def link(path: Path, folder: Path) -> str:
    """The URL of `path` relative to the report's folder."""
    relative = os.path.relpath(path, folder)
    return quote(relative if ":" not in relative.split("/")[0] else f"./{relative}", errors="surrogateescape")


def _key_table(rows: list[tuple[str, Any, str]]) -> Markup:
    body = []
    for key, value, origin in rows:
        text = value if isinstance(value, str) else "-" if value is None else json.dumps(value, ensure_ascii=False)
        body.append(tag("tr", tag("td", key), tag("td", text, class_="value"), tag("td", origin, class_="faint")))
    return table(body, tag("th", "key"), tag("th", "value"), tag("th", "from"))


def _table(record: dict[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0

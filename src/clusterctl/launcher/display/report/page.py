"""A report on one run: the evidence at one moment, its page, and the sections on where its values come from.

Reports are written to files here, and a run is packed into an archive together with its report.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from clusterctl.launcher.api.export import check_output, write_archive
from clusterctl.launcher.api.find import as_run, find
from clusterctl.launcher.api.logs import read_logs
from clusterctl.launcher.api.remote.operations import suggesting
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.api.sweeps import Sweep, sweep_meant
from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.diagnosis.efficiency import advise, use_of
from clusterctl.launcher.display.explanation import explanation
from clusterctl.launcher.display.plain import as_bytes
from clusterctl.launcher.display.report import sections
from clusterctl.launcher.display.report.markup import Markup, document, join, table, tag, write_text
from clusterctl.launcher.display.report.sections import PostMortem, section
from clusterctl.launcher.display.report.several import page as page_on_several
from clusterctl.launcher.observe.comparison import examine_runs, examine_sweep
from clusterctl.launcher.observe.history import History
from clusterctl.launcher.observe.logs import MOST_LOGS, Logs, Selection, collapsed
from clusterctl.launcher.observe.needs import used_in
from clusterctl.launcher.observe.overview import timeline_events
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.sweeps import one_run
from clusterctl.launcher.observe.written import read_written
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import HostError, UsageError
from clusterctl.shared.record.files import exists, read_json
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.keys import leaves_as_written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.shared.errors import ClusterctlError
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


@suggesting
def report(
    *of: Run | Sweep | str,
    output: str | Path | None = None,
    metric: str | None = None,
    cluster: str | None = None,
) -> Path:
    """Write an HTML report on a run, a sweep or several runs, and return its path.

    `output` is by default report.html in the run's or sweep's directory; a report on several runs needs it. `metric`
    ranks several runs. Raises NotFoundError, ConfigError, UsageError for a metric that none of them has logged, and
    HostError for runs on another machine.
    """
    named = [find_sweep_or_run(one, cluster) if isinstance(one, str) else one for one in of]
    written = render(named, metric, None if output is None else Path(output))
    check_output(written.path, "report.html")
    write_text(written.path, written.text)
    return written.path


def find_sweep_or_run(name: str, cluster: str | None = None) -> Run | Sweep:
    """What `name` refers to. Raises NotFoundError."""
    return sweep_meant(name, cluster) or find(name, cluster)


class Rendered(NamedTuple):
    """A report, the file that it belongs in, and the problems found while making it."""

    path: Path
    text: str
    problems: tuple[ClusterctlError, ...]


def render(named: Sequence[Run | Sweep], metric: str | None = None, output: Path | None = None) -> Rendered:
    """The report on a run, on a sweep, or on several runs."""
    runs = [one for one in named if isinstance(one, Run)]
    if len(runs) < len(named) and len(named) > 1:
        raise one_run(next(one for one in named if isinstance(one, Sweep)).directory)
    if far := next((one for one in named if one.place), None):
        hint = f"in a terminal: clusterctl report {far.id} --cluster {shlex.quote(far.place.name)}" if far.place else ""
        raise HostError(f"its files are on another machine: {far.id}", hint)
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise UsageError(f"run named twice: {twice.id}", "name each run once")
    if not named:
        raise UsageError("no run named", "name a run, a sweep, or several runs")
    if len(runs) == 1 and metric is not None:
        raise UsageError("`metric=` needs several runs", "leave it out, or name more runs")
    if len(runs) > 1 and output is None:
        raise UsageError("a report on several runs needs `output=`", 'for example `output="report.html"`')
    path = output or named[0].directory.report
    if len(runs) == 1:
        examined = examine(runs[0].directory, path.parent.resolve())
        return Rendered(path, page(examined), tuple(examined.problems))
    found = named[0]
    if isinstance(found, Sweep):
        group = examine_sweep(found.directory, metric)
    else:
        group = examine_runs([run.directory for run in runs], metric)
    return Rendered(path, page_on_several(group), group.problems)


class Exported(NamedTuple):
    """An archive, and the problems found while creating its report."""

    path: Path
    problems: tuple[ClusterctlError, ...]


@suggesting
def export(
    run: Run | str,
    output: str | Path | None = None,
    *,
    cluster: str | None = None,
    weights: bool = True,
    work: bool = False,
    force: bool = False,
) -> Path:
    """Write `output`, by default RUN.tar.gz in the current folder, and return its path.

    The archive contains the run's record, metrics (also as CSV), report, logs, uncommitted changes and, unless
    `weights` is False, the trained weights; with `work`, also the files the program wrote to its working directory. A
    running run is exported in its current state. Raises NotFoundError, ConfigError, and UsageError if `output` exists
    and `force` is not set.
    """
    return export_run(as_run(run, cluster), output, weights=weights, work=work, force=force).path


def export_run(run: Run, output: str | Path | None, *, weights: bool, work: bool, force: bool) -> Exported:
    """`export` that also returns the problems found."""
    examined = examine(run.directory, run.path)
    pages = {"report.html": page(examined)}
    path = write_archive(run.directory, output, weights=weights, work=work, force=force, pages=pages)
    return Exported(path, tuple(examined.problems))

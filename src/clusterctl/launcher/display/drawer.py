"""How values of the Python API are shown: the text and tables of the command line, as plain text or for a notebook.

`launcher.config.shown` calls it. In a notebook, `wait` shows a line that is updated in place.
"""

from __future__ import annotations

import functools
import io
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from clusterctl.launcher.api.clean import CleanUp
from clusterctl.launcher.api.images import Images
from clusterctl.launcher.api.init import FirstFiles
from clusterctl.launcher.api.jobs import Jobs
from clusterctl.launcher.api.logs import Lines, Reading
from clusterctl.launcher.api.notify import Notified, Tracked, points_copied
from clusterctl.launcher.api.run import MetricRecords, Output, Roles, Run, Runs
from clusterctl.launcher.api.settings import values
from clusterctl.launcher.api.several_clusters import Offers
from clusterctl.launcher.api.submitting.submit import DryRun
from clusterctl.launcher.api.submitting.verify import Examination
from clusterctl.launcher.api.sweeps import Sweep
from clusterctl.launcher.api.usage import UsageReport
from clusterctl.launcher.config import Resolved
from clusterctl.launcher.diagnosis.diagnose import Diagnosis
from clusterctl.launcher.display import comparison, tables
from clusterctl.launcher.display.explanation import explanation, lines_of_checks
from clusterctl.launcher.display.logs import label_of
from clusterctl.launcher.display.plain import as_shown, clock, compact, duration, plain, plain_lines, share
from clusterctl.launcher.display.report.markup import tag
from clusterctl.launcher.display.runs_table import headline, row_of, show_runs, state_text, together
from clusterctl.launcher.display.runs_table import listing as of_sweep
from clusterctl.launcher.observe.comparison import Comparison
from clusterctl.launcher.observe.ended_runs import ended_runs
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import Listing, RunStatuses
from clusterctl.launcher.observe.sweeps import SweepSummary
from clusterctl.launcher.slurm import Inventory
from clusterctl.shared.errors import ClusterctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WIDTH, _NOTEBOOK_WIDTH = 160, 250  # of text that goes to no terminal, and of tables in a notebook, which scrolls
_MOST_LINES = 300  # of logs in a notebook
_MOST_RECORDS = 20
_HTML = '<pre style="white-space:pre;font-family:monospace;line-height:1.35;overflow-x:auto">{code}</pre>'
# A notebook may be light or dark, which its output cannot know: these are legible on both (at least 3.8 : 1).
_THEME = TerminalTheme(
    (255, 255, 255),
    (0, 0, 0),
    [
        (125, 125, 125),  # black
        (220, 63, 69),  # red
        (42, 143, 69),  # green
        (160, 120, 0),  # yellow
        (47, 125, 215),  # blue
        (176, 82, 201),  # magenta
        (23, 138, 156),  # cyan
        (125, 125, 125),  # white
    ],
)


def text(value: object) -> str:
    """`value` as the command line shows it. A run, whose state costs a look at its files, is its id."""
    if isinstance(value, Run | Sweep):
        return value.id
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    file = io.StringIO()
    draw(value, _console(file, width))
    return file.getvalue().rstrip("\n")


def html(value: object) -> str:
    """The same for a notebook, in the colours of a terminal. All text is escaped."""
    console = _console(io.StringIO(), _NOTEBOOK_WIDTH, record=True, force_terminal=True, color_system="truecolor")
    try:
        draw(value, console)
    except ClusterctlError as error:  # the run may have been removed
        console.print(Text(plain(f"{value}: {error.message}")))
    return console.export_html(theme=_THEME, inline_styles=True, code_format=_HTML)


def _console(file: io.StringIO, width: int, **more: Any) -> Console:
    more |= {"force_jupyter": False}  # in a notebook, rich would display what it prints
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, **more)


@functools.singledispatch
def draw(value: object, console: Console) -> None:
    """Print `value`."""
    console.print(Text(plain_lines(repr(value))), soft_wrap=True)


@draw.register
def _(value: Status, console: Console) -> None:
    _statuses([value], console)


def _statuses(statuses: Sequence[Status], console: Console) -> None:
    now = time.time()
    show_runs(console, Listing(now, tuple(row_of(status, now) for status in statuses)))


@draw.register
def _(value: Run, console: Console) -> None:
    _statuses([value.status()], console)


@draw.register
def _(value: Runs, console: Console) -> None:
    if not value:
        console.print("no matching runs")
    elif any(run.place for run in value):  # a look at each of them would be a connection of its own
        _lines([run.id for run in value], console)
    else:
        from clusterctl.launcher.observe.status import statuses_of

        found = statuses_of((run.directory for run in value), ended=ended_runs(value[0].path.parent))
        rows = tuple(together(row_of(status, found.as_of) for status in found.statuses))
        if rows:
            show_runs(console, Listing(found.as_of, rows))
        _lines([f"warning: {problem.message}" for problem in found.problems], console)


@draw.register
def _(value: Sweep, console: Console) -> None:
    draw(value.status(), console)


@draw.register
def _(value: SweepSummary, console: Console) -> None:
    show_runs(console, of_sweep(value, RunStatuses(time.time(), value.statuses, ())))


@draw.register
def _(value: Diagnosis, console: Console) -> None:
    _lines(explanation(value), console)


@draw.register
def _(value: Comparison, console: Console) -> None:
    comparison.show(console, value)


@draw.register
def _(value: Reading, console: Console) -> None:
    _log([*value.again()], console)


@draw.register
def _(value: Lines, console: Console) -> None:
    _log(value, console)


def _log(lines: Sequence[Any], console: Console) -> None:
    several = len({line.source.rank for line in lines}) > 1
    shown = lines[-_MOST_LINES:] if console.record else lines
    if len(shown) < len(lines):
        _lines([f"... the last {len(shown)} of {len(lines):,} lines:"], console)
    _lines([(label_of(line) if several else "") + as_shown(line.text) for line in shown] or ["no output yet"], console)


@draw.register
def _(value: MetricRecords, console: Console) -> None:
    names = list(dict.fromkeys(name for record in value for name in record if name not in ("attempt", "time")))
    shown = value if len(value) <= _MOST_RECORDS else [*value[: _MOST_RECORDS // 2], *value[-_MOST_RECORDS // 2 :]]
    rows = [tuple(_number(record.get(name)) for name in names) for record in shown]
    if names:
        tables.show_columns(console, tuple(map(plain, names)), rows, tuple(map(plain, names)))
    notes = [f"{len(value):,} records, of which {len(shown)} are shown"] if len(shown) < len(value) else []
    _lines(notes or ([] if value else ["no metrics yet"]), console)


def _number(value: object) -> str:
    return compact(value) if isinstance(value, float) else "" if value is None else str(value)


@draw.register
def _(value: Inventory, console: Console) -> None:
    tables.show_partitions(console, value)
    console.print()
    tables.show_nodes(console, value.nodes.values())


@draw.register
def _(value: UsageReport, console: Console) -> None:
    tables.show_usage(console, value) if value.rows else console.print("no runs have started yet")


@draw.register
def _(value: CleanUp, console: Console) -> None:
    tables.show_disk(console, value)


@draw.register
def _(value: Images, console: Console) -> None:
    tables.show_images(console, value, time.time()) if value else console.print("no images")


@draw.register
def _(value: Jobs, console: Console) -> None:
    tables.show_jobs(console, value, time.time()) if value else console.print("no other jobs")


@draw.register
def _(value: DryRun, console: Console) -> None:
    _lines(value.script.split("\n"), console)


@draw.register
def _(value: Resolved, console: Console) -> None:
    tables.show_columns(console, ("KEY", "VALUE", "FROM"), list(values(value)))


@draw.register
def _(value: Examination, console: Console) -> None:
    _lines(lines_of_checks(value.checks), console)


@draw.register
def _(value: Offers, console: Console) -> None:
    _lines([*map(str, [*value])], console)


@draw.register
def _(value: FirstFiles, console: Console) -> None:
    _lines([*map(str, value.texts), *(f"could not find out {one}" for one in value.unknown)], console)


@draw.register
def _(value: Notified, console: Console) -> None:
    sent = [f"{one.run}: {one.channel} {one.delivery.outcome}" for one in value.tries]
    _lines(sent or ["nothing to send"], console)


@draw.register
def _(value: Tracked, console: Console) -> None:
    _lines([points_copied(tracker, count) for tracker, count in value.items()], console)


@draw.register
def _(value: Roles, console: Console) -> None:
    if not tables.show_roles(console, [("", value)]):
        console.print("no roles: this run has a single program")


@draw.register
def _(value: Output, console: Console) -> None:
    printed = [line for text in (value.stdout, value.stderr) for line in text.splitlines()]
    _lines([*printed, *([f"exit code {value.code}"] if value.code else [])], console)


def _lines(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(Text(plain_lines(line)), soft_wrap=True)


# What `wait` shows while it waits.


def progress(wanted: bool | None) -> Line | None:
    """A line that is updated in place: in a notebook unless it is not `wanted`, and on a terminal if it is."""
    if notebook := _notebook():
        return Line(_Cell(notebook).show)
    if wanted:
        return Line(_show_on_stderr if sys.stderr.isatty() else _print_on_stderr)
    return None


class Line:
    """The state of a run or a sweep in one line. The same line is not shown twice."""

    def __init__(self, show: Callable[[str, bool], None]) -> None:
        self._show, self._shown = show, ""

    def update(self, value: object) -> None:
        line = plain(line_of(value))
        if line != self._shown:
            self._show(line, False)
            self._shown = line

    def end(self) -> None:
        self._show(self._shown, True)


def line_of(value: object) -> str:
    """The state, progress, and time left of a run; the runs in each state and the best one of a sweep."""
    if isinstance(value, SweepSummary):
        return headline(value).replace("\n", "; ")
    if not isinstance(value, Status):
        return str(value)
    now, metrics = time.time(), value.metrics
    step, epoch = share(metrics.get("step"), metrics.get("steps")), share(metrics.get("epoch"), metrics.get("epochs"))
    left, loss = value.seconds_left(now), metrics.get("loss")
    facts = [
        f"epoch {epoch}" if epoch else "",
        f"step {step}" if step else "",
        f"loss {compact(loss)}" if loss is not None else "",
        f"about {duration(left)} left" if left is not None and not value.state.ended else "",
        value.held_up_by if value.reason else "",
    ]
    return f"{clock(now)}  {value.record.run.id}  {state_text(value)}  {'  '.join(filter(None, facts))}".rstrip()


def _notebook() -> Any:
    """The module `IPython.display`, if this process is the kernel of a notebook: then it has been imported."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return ipython.display if hasattr(shell, "kernel") else None


class _Cell:
    def __init__(self, notebook: Any) -> None:
        self._notebook, self._handle = notebook, None

    def show(self, line: str, ended: bool) -> None:
        if ended and self._handle is None:
            return
        drawn = self._notebook.HTML(tag("pre", line))
        if self._handle is None:
            self._handle = self._notebook.display(drawn, display_id=True)
        else:
            self._handle.update(drawn)


def _show_on_stderr(line: str, ended: bool) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{line[:width]}\x1b[K" + "\n" * ended)
    sys.stderr.flush()


def _print_on_stderr(line: str, ended: bool) -> None:
    if not ended:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

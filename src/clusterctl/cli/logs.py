"""`clusterctl logs`: show what the ranks of a run wrote."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import cluster_option, runs_named
from clusterctl.display.plain import as_shown, plain, plain_lines
from clusterctl.errors import UsageError
from clusterctl.observe.collapse import collapsed
from clusterctl.observe.follow import watch
from clusterctl.observe.logs import Logs, Nodes, Selection, check_selection
from clusterctl.observe.run_record import read_record
from clusterctl.observe.times import is_stamped, time_of
from clusterctl.runs.stamp import LENGTH, stamp
from clusterctl.spec.values import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterctl.observe.logs import Line
    from clusterctl.runs.layout import RunDir

# The first lines are shown as they are found, the others some at a time.
_AT_ONCE_LINES, _TOGETHER_LINES = 100, 500


@click.command(short_help="Show what the ranks of a run wrote")
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends; Ctrl-C leaves the run alone.")
@click.option(
    "--rank", metavar="N", type=click.IntRange(min=0), help="One rank; default: all, each line with its rank."
)
@click.option("--node", metavar="NAME", help="The ranks of one node.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=0), help="One attempt; default: all.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="The last N lines of each file.")
@click.option("--since", metavar="TIME", help='Lines from then on: an age (90s, 20m, 4h) or "2026-01-31 12:00:00".')
@click.option("--grep", "pattern", metavar="REGEX", help="Lines in which this is found.")
@click.option("--errors", is_flag=True, help="The first traceback, and which ranks had it; then the other errors.")
@click.option("--stdout", "streams", flag_value="out", help="Standard output alone.")
@click.option("--stderr", "streams", flag_value="err", help="Standard error alone.")
@click.option("--host", is_flag=True, help="Also the batch script's own log.")
@click.option("-t", "--times", is_flag=True, help="Begin each line with its time (UTC).")
@click.option("--no-collapse", is_flag=True, help="Every rank's line, also where many wrote the same.")
@cluster_option
def logs(
    name: str,
    follow: bool,
    rank: int | None,
    node: str | None,
    attempt: int | None,
    tail: int | None,
    since: str | None,
    pattern: str | None,
    errors: bool,
    streams: str | None,
    host: bool,
    times: bool,
    no_collapse: bool,
    cluster: str | None,
) -> None:
    """Show what the ranks of RUN wrote, merged by time; what many ranks wrote alike stands once, with their number.

    \b
    Examples:
      clusterctl logs cora -f
      clusterctl logs @last --rank 0 --tail 20
      clusterctl logs @last --errors
    """
    if errors and (follow or pattern or tail is not None):
        raise UsageError("--errors shows errors alone", "leave out --follow, --grep and --tail")
    takes = _filter(_moment(since, time.time()), pattern)
    (run,) = runs_named((name,), cluster)
    record = read_record(run)
    selection = Selection(attempt, rank, (streams,) if streams else ("out", "err"), host, node)
    files = Logs(run, selection, tail)
    ranks = record.job.resources.nodes * record.tasks_per_node if rank is None else 1
    label = _Label(run, several_ranks=ranks > 1, several_nodes=ranks > 1 and record.job.resources.nodes > 1)

    def show(*, ended: bool) -> None:
        lines = filter(takes, files.read(ended=ended))
        _print(lines if no_collapse or ranks == 1 else collapsed(lines), label, times=times)

    if errors:
        check_selection(run, selection)
        _print_errors(run, selection, filter(takes, files.read(ended=True)), label)
    elif not follow:
        check_selection(run, selection)
        show(ended=True)
    else:
        for status in watch(run, record.cluster):
            show(ended=status.stage.ended and status.sure)
        click.echo(f"{run.id}: {status.stage}", err=True)


def _moment(since: str | None, now: float) -> float | None:
    """Seconds since the epoch: an age counts back from `now`."""
    if since is None:
        return None
    try:
        return now - parse_seconds(since)
    except ValueError:
        moment = time_of(since.encode())
    if moment is None:
        raise UsageError(f"--since {since}: no age and no time", 'for example --since 20m, or "2026-01-31 12:00:00"')
    return moment


def _filter(since: float | None, pattern: str | None) -> Callable[[Line], bool]:
    try:
        wanted = re.compile(pattern.encode(errors="surrogateescape")) if pattern is not None else None
    except re.error as error:
        raise UsageError(f"--grep {pattern}: {error}", "a regular expression as Python's; \\. is a dot") from None

    def takes(line: Line) -> bool:
        return (since is None or line.time >= since) and (wanted is None or wanted.search(line.text) is not None)

    return takes


def _print(lines: Iterable[Line], label: _Label, *, times: bool) -> None:
    """A terminal gets text that cannot move its cursor, a file or a pipe the very bytes."""
    at_terminal = sys.stdout.isatty()
    waiting: list[bytes] = []
    for count, line in enumerate(lines):
        text = as_shown(line.text).encode() if at_terminal else line.text
        before = (line.content[:LENGTH].decode() if is_stamped(line.content) else stamp(line.time)) if times else ""
        waiting.append(f"{label.of(line)}{before}".encode() + text + b"\n")
        if count < _AT_ONCE_LINES or len(waiting) >= _TOGETHER_LINES:
            _write(waiting)
    _write(waiting)


def _write(lines: list[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
    lines.clear()


def _print_errors(run: RunDir, selection: Selection, lines: Iterator[Line], label: _Label) -> None:
    from clusterctl.observe.tracebacks import failures

    found = failures(run, selection, lines)
    if not found:
        click.echo(f"no errors in the logs of {run.id}", err=True)
    for place, failure in enumerate(found):
        whose = label.of_ranks(failure.attempt, tuple(failure.ranks))
        text = plain(failure.message) if place else plain_lines(failure.text)
        at = stamp(failure.time) if failure.time else ""
        click.echo(f"then {whose}{at}{text}" if place else f"{whose}{at}".rstrip() + f"\n{text}")


class _Label:
    """Whose line it is: `r03 node2 ` where there are several, `r00-31 x32 ` for many; `a1 ` from the second attempt."""

    def __init__(self, run: RunDir, *, several_ranks: bool, several_nodes: bool) -> None:
        self._several_ranks, self._several_nodes, self._nodes = several_ranks, several_nodes, Nodes(run)
        self._known: dict[tuple[int, tuple[int, ...]], str] = {}

    def of(self, line: Line) -> str:
        source = line.source
        if source.rank is None:
            return f"{_attempt(source.attempt)}host "
        key = (source.attempt, line.ranks or (source.rank,))
        if key not in self._known:
            self._known[key] = self.of_ranks(*key)
        return self._known[key]

    def of_ranks(self, attempt: int, ranks: tuple[int, ...]) -> str:
        if not self._several_ranks or not ranks:
            return _attempt(attempt)
        if len(ranks) > 1:
            return f"{_attempt(attempt)}{_ranges(ranks)} x{len(ranks)} "
        node = plain(self._nodes.of(attempt, ranks[0])) if self._several_nodes else ""
        return f"{_attempt(attempt)}r{ranks[0]:02} {node}{' ' if node else ''}"


def _attempt(number: int) -> str:
    return f"a{number} " if number else ""


def _ranges(ranks: tuple[int, ...]) -> str:
    """`r00-03,07`, and no more than three pieces."""
    pieces: list[list[int]] = []
    for rank in ranks:
        if pieces and rank == pieces[-1][1] + 1:
            pieces[-1][1] = rank
        else:
            pieces.append([rank, rank])
    words = [f"{first:02}" if first == last else f"{first:02}-{last:02}" for first, last in pieces]
    return "r" + ",".join([*words[:3], *["..."] * (len(words) > 3)])

"""The table of differences between two runs, and the diff of their code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from clusterctl.launcher.display.plain import duration, plain
from clusterctl.shared.record.vocabulary import Role, metric_of
from clusterctl.shared.spec.keys import as_toml
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from clusterctl.launcher.observe.comparison import CodeChange, Comparison, FileDifference, Result
    from clusterctl.launcher.observe.stage import Status
    from clusterctl.shared.spec.keys import Difference


Row = tuple[str, str, str]

_MOST_FILES = 20
_SHOWN = (Role.CURVE, Role.RESULT, Role.RATE)
_REACHED = ("epoch", "step")
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def show(console: Console, found: Comparison, lines: Iterable[FileDifference] = ()) -> None:
    """Print the table, then `lines`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("", *(status.record.run.id for status in found.statuses)):
        table.add_column(Text(plain(title)), overflow="fold")
    for row in _head(found.statuses, found.as_of):
        table.add_row(*map(Text, row))
    same = []
    for title, rows in _sections(found).items():
        if rows:
            table.add_row()
            table.add_row(Text(title.upper(), style="bold"))
        elif title != "results" and not (title == "code" and found.code is None):
            same.append(title)
        for row in rows:
            table.add_row(*map(Text, row))
    console.print(table)
    if same:
        console.print(Text(f"\nno difference: {', '.join(same)}"))
    for one in lines:
        _show_lines(console, one)


def _head(statuses: Sequence[Status], now: float) -> Iterator[Row]:
    first, second = statuses
    yield ("stage", first.stage.value, second.stage.value)
    yield ("ran", _ran(first, now), _ran(second, now))


def _ran(status: Status, now: float) -> str:
    seconds = status.ran(now)
    return "" if seconds is None else duration(seconds)


def _sections(found: Comparison) -> dict[str, list[Row]]:
    return {
        "configuration": [_of_difference(one) for one in found.configuration],
        "code": list(_of_code(found.code or ())),
        "versions": [_of_version(one) for one in found.versions],
        "image": [_of_version(one) for one in found.image],
        "results": [_of_result(one) for one in found.results if _is_shown(one)],
    }


def _of_difference(one: Difference) -> Row:
    return plain(one.key), value_text(one.first), value_text(one.second)


def _of_version(one: Difference) -> Row:
    return plain(one.key), _version(one.first), _version(one.second)


def _version(value: object) -> str:
    if isinstance(value, bool):
        return "uncommitted" if value else "none"
    return "not recorded" if value is None else plain(str(value))


def _of_code(changes: Sequence[CodeChange]) -> Iterator[Row]:
    for one in changes[:_MOST_FILES]:
        yield plain(one.name), "", one.change.value
    if (more := len(changes) - _MOST_FILES) > 0:
        yield f"and {plural(more, 'more file')}; list all with -o json", "", ""


def _is_shown(one: Result) -> bool:
    return one.metric in _REACHED or metric_of(one.metric).role in _SHOWN


def _of_result(one: Result) -> Row:
    metric = metric_of(one.metric)
    return plain(metric.label), metric.text(one.first), metric.text(one.second)


def _show_lines(console: Console, one: FileDifference) -> None:
    console.print()
    if not one.lines:
        why = (
            "binary, or too large to compare line by line"
            if one.lines is None
            else "only permissions or a secret differ"
        )
        console.print(Text(f"{plain(one.name)} {one.change.value}: {why}"))
        return
    for line in one.lines:
        for shown in line.split("\n"):  # a second line notes a missing newline at the end of the file
            style = "bold" if line.startswith(("---", "+++")) else _STYLES.get(shown[:1], "")
            console.print(Text(plain(shown), style=style), soft_wrap=True)


# Differences between two runs, as text for a terminal.


def value_text(value: Any) -> str:
    """A value in TOML."""
    return plain(as_toml(value)) or "not set"


def change_line(change: Difference) -> str:
    """A line such as `train.lr: 0.01 -> 0.003`."""
    return f"{plain(change.key)}: {value_text(change.first)} -> {value_text(change.second)}"

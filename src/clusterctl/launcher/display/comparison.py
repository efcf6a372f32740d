"""The table of differences between two runs, the diff of their code, and one changed value as a line of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from clusterctl.launcher.display.plain import duration, plain
from clusterctl.shared.record.metrics import Role, metric_of
from clusterctl.shared.spec.keys import as_toml
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from clusterctl.launcher.observe.comparison import Comparison, FileDifference
    from clusterctl.shared.spec.keys import Difference


Row = tuple[str, str, str]

_MOST_FILES = 20
_SHOWN = (Role.CURVE, Role.RESULT, Role.RATE)
_REACHED = ("epoch", "step")
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def show(console: Console, found: Comparison, lines: Iterable[FileDifference] = ()) -> None:
    """Print the table, then `lines`. Names that do not fit above the values are printed above the table."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    names = [plain(status.record.run.id) for status in found.statuses]
    for title in ("", *names):
        table.add_column(Text(title), overflow="fold")
    table.add_row(*map(Text, ("state", *(status.state.value for status in found.statuses))))
    ran = [status.ran(found.as_of) for status in found.statuses]
    table.add_row(*map(Text, ("ran", *("" if seconds is None else duration(seconds) for seconds in ran))))
    same = []
    for title, rows in sections_of(found).items():
        if rows:
            table.add_row()
            table.add_row(Text(title.upper(), style="bold"))
        elif title != "results" and not (title == "code" and found.code is None):
            same.append(title)
        for row in rows:
            table.add_row(*map(Text, row))
    if console.measure(table, options=console.options.update_width(10_000)).maximum > console.width:
        for column, title, name in zip(table.columns[1:], ("first", "second"), names, strict=True):
            column.header = Text(title)
            console.print(Text(f"{title + ':':8}{name}"), soft_wrap=True)
        console.print()
    console.print(table)
    if same:
        console.print(Text(f"\nno difference: {', '.join(same)}"))
    for one in lines:
        console.print()
        if not one.lines:
            why = "only permissions or a secret differ"
            if one.lines is None:
                why = "binary, or too large to compare line by line"
            console.print(Text(f"{plain(one.name)} {one.change.value}: {why}"))
        for line in one.lines or ():
            for shown in line.split("\n"):  # a second line notes a missing newline at the end of the file
                style = "bold" if line.startswith(("---", "+++")) else _STYLES.get(shown[:1], "")
                console.print(Text(plain(shown), style=style), soft_wrap=True)


def sections_of(found: Comparison) -> dict[str, list[Row]]:
    """The rows of each part: a name, and its value in both runs. A part without rows does not differ."""
    changes = found.code or ()
    code = [(plain(one.name), "", one.change.value) for one in changes[:_MOST_FILES]]
    if (more := len(changes) - _MOST_FILES) > 0:
        code.append((f"and {plural(more, 'more file')}; list all with -o json", "", ""))
    results = []
    for one in found.results:
        metric = metric_of(one.metric)
        if one.metric in _REACHED or metric.role in _SHOWN:
            results.append((plain(metric.label), metric.text(one.first), metric.text(one.second)))
    return {
        "configuration": [
            (plain(one.key), value_text(one.first), value_text(one.second)) for one in found.configuration
        ],
        "code": code,
        "versions": [_of_version(one) for one in found.versions],
        "image": [_of_version(one) for one in found.image],
        "results": results,
    }


def _of_version(one: Difference) -> Row:
    return plain(one.key), _version(one.first), _version(one.second)


def _version(value: object) -> str:
    if isinstance(value, bool):
        return "uncommitted" if value else "none"
    return "not recorded" if value is None else plain(str(value))


def value_text(value: Any) -> str:
    """A value in TOML."""
    return plain(as_toml(value)) or "not set"


def change_line(change: Difference) -> str:
    """A line such as `train.lr: 0.01 -> 0.003`."""
    return f"{plain(change.key)}: {value_text(change.first)} -> {value_text(change.second)}"

"""The rows of the monitor's list of runs: those that match a filter, in an order, a sweep as one row unless opened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from clusterctl.launcher.display.plain import bar, duration, plain, share
from clusterctl.launcher.display.runs_table import note, state_style, state_text
from clusterctl.launcher.observe.run_names import submission
from clusterctl.launcher.observe.status import in_order
from clusterctl.launcher.observe.sweeps import states_in_words
from clusterctl.shared.record.metrics import number, score_of
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.launcher.observe.overview import Scene
    from clusterctl.launcher.observe.state import Status

ORDERS = ("", "age", "progress", "eta", "loss", "val", "gpu", "ran")
"""The orders that a key goes through; the first is the living runs, then the others, each newest first."""
_STATE_WIDTH = 13
_BAR_WIDTH = 8
_LEAST_NAME, _MARK_WIDTH = 27, 3  # a short job's id; the mark of the selected row, and the blank after the name
# Title and least width of each column after the state; the note fills the rest of the line.
_COLUMNS = (("done", _BAR_WIDTH + 1), ("epoch", 8), ("loss", 8), ("score", 8), ("age", 7))


@dataclass(frozen=True)
class Choice:
    """Which runs are listed: with all words of `words`, in an order, and the sweeps whose runs have rows."""

    words: str = ""
    order: str = ""
    opened: frozenset[str] = frozenset()


class RunRow(NamedTuple):
    """A run, or the heading of a sweep with its `runs`, of which `status` is the first at work, if any."""

    status: Status
    sweep: str = ""
    runs: tuple[Status, ...] = ()
    is_open: bool = False

    def stands_for(self, run: str) -> bool:
        """Whether the row is marked if the run with that id is selected."""
        if self.sweep:
            return not self.is_open and any(status.record.run.id == run for status in self.runs)
        return self.status.record.run.id == run


def rows_of(scene: Scene, choice: Choice) -> list[RunRow]:
    """The rows of a scene. Sorted by a column, every run has its own, so that the best can be found."""
    found = _matching(scene, choice)
    if choice.order:
        column = choice.order
        known = column != "loss" or any("loss" in status.metrics for status in found)
        return [RunRow(status) for status in (in_order(found, column, scene.as_of) if known else found)]
    groups: dict[str, list[Status]] = {}
    for status in sorted(found, key=lambda status: status.state.ended):
        groups.setdefault(submission(status.record.run.id), []).append(status)
    rows: list[RunRow] = []
    for name, group in groups.items():
        if group[0].record.run.id == name:
            rows.append(RunRow(group[0]))
            continue
        is_open = name in choice.opened
        at_work = (status for status in group if not status.state.ended and status.state is not State.QUEUED)
        rows.append(RunRow(next(at_work, group[0]), name, tuple(group), is_open))
        rows += [RunRow(status) for status in group] if is_open else []
    return rows


def _matching(scene: Scene, choice: Choice) -> list[Status]:
    words = choice.words.casefold().split()
    if not words:
        return list(scene.statuses)
    found = []
    for status in scene.statuses:
        job, run = status.record.job, status.record.run.id
        shown = f"{note(status)} {scene.causes.get(run, '')}"
        text = f"{run} {status.state} {shown} {job.note or ''} {' '.join(job.tags)}".casefold()
        if all(word in text for word in words):
            found.append(status)
    return found


def position_of(rows: list[RunRow], selected: str | None) -> int:
    """The place of the selected run among `rows`; the first one if it has no row."""
    return next((place for place, row in enumerate(rows) if selected and row.stands_for(selected)), 0)


def first_row(rows: list[RunRow], selected: str | None, height: int) -> int:
    """The first of `height` visible rows, such that the selected one is among them."""
    return max(0, min(position_of(rows, selected) - height // 2, len(rows) - height))


def drawn_rows(scene: Scene, choice: Choice, selected: str | None, width: int, height: int) -> list[Text]:
    """The titles and one line per row, the selected one marked: id, state, progress, loss, score, age, note."""
    rows = rows_of(scene, choice)
    room = height - 1
    first = first_row(rows, selected, room)
    shown = rows[first : first + room]
    facts = {row.status.record.run: _facts(row.status, scene.as_of) for row in shown if not row.sweep}
    cells = [
        max([least, *(len(texts[column]) + 1 for texts in facts.values())])
        for column, (_, least) in enumerate(_COLUMNS)
    ]
    longest = max((len(row.sweep or row.status.record.run.id) for row in rows), default=0)
    up_to_score = _MARK_WIDTH + _STATE_WIDTH + sum(cells[:-1])  # or most causes
    name_width = min(longest, max(_LEAST_NAME, width - up_to_score))
    title = Text("  run".ljust(name_width + _MARK_WIDTH), "dim")
    _append_columns(title, "state", "", [name for name, _ in _COLUMNS], cells, "note", width)
    lines = [title]
    for row in shown:
        here = selected is not None and row.stands_for(selected)
        line = Text("▸ " if here else "  ")
        name = shortened(_name(row, choice), name_width).ljust(name_width + 1)
        line.append(name, "bold reverse" if here else "")
        if row.sweep:
            words = states_in_words(Counter(status.state for status in row.runs))
            beside = width - line.cell_len - len(words)
            if beside >= _STATE_WIDTH:  # else the words tell more, and add up to the number of runs
                line.append(f"{len(row.runs)} runs".ljust(_STATE_WIDTH), state_style(row.status.state))
            if beside >= _STATE_WIDTH + _BAR_WIDTH + 1:
                ended = sum(status.state.ended for status in row.runs) / len(row.runs)
                line.append(bar(ended, _BAR_WIDTH).ljust(_BAR_WIDTH + 1))
            line.append(words, "" if beside >= _STATE_WIDTH else state_style(row.status.state))
        else:
            _append_facts(line, row.status, scene, facts[row.status.record.run], cells, width)
        lines.append(line)
    return lines


def _name(row: RunRow, choice: Choice) -> str:
    """A sweep's id, that of a run, or only the index below its sweep."""
    run = row.status.record.run.id
    if row.sweep:
        return plain(row.sweep)
    return f"  .{run.rpartition('.')[2]}" if submission(run) in choice.opened and not choice.order else plain(run)


def shortened(name: str, width: int) -> str:
    """`name` in at most `width` characters: its middle is left out, because runs of a job differ at the end."""
    if len(name) <= width:
        return name
    end = (width - 1) // 2
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def _facts(status: Status, now: float) -> list[str]:
    """The texts of the columns."""
    step, steps = status.metrics.get("step"), status.metrics.get("steps")
    score = score_of(status.metrics, "test") or score_of(status.metrics, "val")
    return [
        bar(step / steps, _BAR_WIDTH) if step is not None and steps else "",
        share(status.metrics.get("epoch"), status.metrics.get("epochs")),
        number(status.metrics.get("loss")),
        number(score[1]) if score else "",
        duration(now - status.record.created),
    ]


def _append_facts(
    line: Text, status: Status, scene: Scene, facts: Sequence[str], cells: Sequence[int], width: int
) -> None:
    job, cause = status.record.job, scene.causes.get(status.record.run.id, "")
    label = plain(" ".join(filter(None, [job.note, *(f"#{tag}" for tag in job.tags)])))  # the user's own note and tags
    last = cause or note(status) or label
    beside = width - line.cell_len - _STATE_WIDTH
    if cause and len(cause) > beside - sum(cells):  # it tells more than the columns
        line.append(state_text(status).ljust(_STATE_WIDTH), state_style(status.state))
        line.append(cause if len(cause) <= beside else f"{cause[: max(0, beside - 1)]}…")
        return
    _append_columns(line, state_text(status), state_style(status.state), facts, cells, last, width)


def _append_columns(
    line: Text, state: str, style: str, facts: Sequence[str], cells: Sequence[int], last: str, width: int
) -> None:
    """Add the state, the columns that fit, and where all do, the last one to the end of the line."""
    room = width - line.cell_len - _STATE_WIDTH
    line.append(state.ljust(_STATE_WIDTH), style)
    for text, column in zip(facts, cells, strict=True):
        if room < column:
            return
        line.append(text.ljust(column))
        room -= column
    line.append(last)


def in_words(scene: Scene, choice: Choice) -> Iterable[str]:
    """How the list is narrowed and sorted, for the headline."""
    if choice.words:
        yield f"filter: {choice.words} ({len(_matching(scene, choice))} match)"
    if choice.order:
        yield f"sorted by {choice.order}"

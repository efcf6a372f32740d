"""The table of runs: as many columns as fit the terminal, the least important ones left out first.

A sweep is one row, or a table of its own with the settings that it varies as columns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from clusterctl.launcher.diagnosis.efficiency import not_learning, single_steps
from clusterctl.launcher.display.plain import BAR_CELLS, clock, duration, hours_text, plain, progress_bar, share
from clusterctl.launcher.display.terminal import wrapped
from clusterctl.launcher.observe.attempt import flawed_lines, node_setup_flaws
from clusterctl.launcher.observe.ended_runs import Row
from clusterctl.launcher.observe.measurements import progress
from clusterctl.launcher.observe.run_names import submission
from clusterctl.launcher.observe.status import Listing
from clusterctl.launcher.observe.sweeps import ranked, states_in_words, values_of
from clusterctl.shared.record.heartbeats import IDLE_GPUS
from clusterctl.shared.record.metrics import KNOWN, metric_of, number, own_metrics, score_of
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions

    from clusterctl.launcher.observe.attempt import AttemptEvidence
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import RunStatuses
    from clusterctl.launcher.observe.sweeps import SweepSummary


_STYLES = {State.FINISHED: "green", State.QUEUED: "yellow", State.CANCELLED: "dim"}
_AT_WORK = frozenset({State.TRAINING, State.EVALUATING, State.CHECKPOINTING})
_GAP = 2
_SHORT = 0.9  # share of its steps: a program may log only every tenth
_IMPORTANCE = {  # 0 is never left out; the column with the highest number is dropped first
    "RUN": 0, "STATE": 0, "PROGRESS": 1, "EPOCH": 1, "STEP": 10, "ETA": 3, "LOSS": 3, "VAL": 4, "TEST": 2, "NODES/S": 8,
    "GPU": 7, "TASKS": 9, "TAGS": 9, "AGE": 6, "RAN": 11, "GPU-H": 12, "TRY": 13, "JOB": 14, "NOTE": 3,
}  # fmt: skip
_LEAST_IMPORTANT = 99
_LEAST_HEIGHT = 4  # of a table: the header, a run, its note, and how many more there are
_LEAST_NAMES = 28  # of the column: a short job's id
_BAR = 6  # a bar of the progress is as important
_USEFUL_NOTE = 48  # a shorter column would lose the cause: notes below their runs have the whole width
LEFT_ALIGNED = ("RUN", "STATE", "PROGRESS", "TAGS", "NOTE", "ON")


def show_runs(console: Console, listing: Listing, *, wide: bool = False) -> None:
    """Print one line per run, in the given order; `wide` prints every column, even beyond the terminal's width."""
    if listing.head:
        console.print(Text(listing.head))
    console.print(RunsTable(listing, None if wide else console.width), soft_wrap=True)


def watch_runs(listings: Iterable[Listing], console: Console, *, wide: bool = False) -> None:
    """Show each of `listings` in turn: in place on a terminal, elsewhere whenever the table has changed."""
    from rich.console import Group
    from rich.live import Live

    if not console.is_terminal or console.is_dumb_terminal:
        before = ""
        for one in listings:
            lines = RunsTable(one, None if wide else console.width).plain
            shown = "\n".join([*one.head.splitlines(), lines, *(problem.plain for problem in _problems(one))])
            if shown != before:
                console.print(Text(("\n" if before else "") + f"{totals(one)}\n{shown}"), soft_wrap=True)
                before = shown
        return
    with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        for one in listings:
            problems = _problems(one)
            head = [totals(one), *one.head.splitlines()]
            above = [Text(part) for line in head for part in wrapped(line, console.width)]
            height = max(_LEAST_HEIGHT, console.height - len(problems) - len(above) - 1)
            table = RunsTable(one, console.width, height) if one.rows else Text("no runs yet")
            live.update(Group(*above, table, *problems), refresh=True)


def totals(listing: Listing) -> str:
    """The time, the number of runs in each state, and their GPU-hours: above a table that is shown again and again.

    They cover every matching run, even those without a row; if only the newest were read, the line says so.
    """
    rows = listing.matching or listing.rows
    hours, newest = _gpu_hours(rows), "" if listing.is_whole else "newest "
    facts = [
        clock(listing.as_of),
        f"{newest}{plural(len(rows), 'run')}: {states_in_words(_states(rows))}" if rows else "",
        f"{hours} GPU-hours" if hours else "",
        f"newest {len(listing.rows)} shown" if listing.more and listing.is_whole else "",
    ]
    return "  ".join(filter(None, facts))


def _states(rows: Iterable[Row]) -> Counter[State]:
    return Counter(row.state for row in rows)


def _gpu_hours(rows: Iterable[Row]) -> str:
    """The sum of a column, which an ended run has only as text; empty without GPUs."""
    found = [float(row.cells["GPU-H"]) for row in rows if "GPU-H" in row.cells]
    return hours_text(sum(found)) if found else ""


def _problems(listing: Listing) -> list[Text]:
    lines = [f"warning: {plain(problem.message)}" for problem in listing.problems]
    return [Text(line, "yellow", no_wrap=True, overflow="ellipsis") for line in lines]


class RunsTable:
    """The table in lines of at most `width` cells (None: unlimited), at most `height` lines including its header.

    Built from rich's segments: its Table takes a millisecond per line, and a Text per line a tenth of that.
    """

    def __init__(self, listing: Listing, width: int | None, height: int | None = None) -> None:
        rows, now = listing.rows, listing.as_of
        shown = rows if height is None else rows[: height - 1]
        first, *others = _IMPORTANCE
        others = [column for column in others if column not in listing.varied]
        columns = [first, *listing.varied, *others, *(["ON"] if width is None else [])]
        cells = {column: [row.cells.get(column, "") for row in shown] for column in columns}
        cells["AGE"] = [duration(now - row.created) for row in shown]
        widths = {column: max(map(_width, {column, *cells[column]})) for column in columns}
        columns = [column for column in columns if any(cells[column])]
        below = [""] * len(shown)
        if width is not None:
            importance = _IMPORTANCE | dict.fromkeys(listing.varied, 1)  # almost as important as the run and its state
            if {*cells["TRY"]} <= {"", "1"}:  # first attempts are no news: only where there is room for everything
                importance["TRY"] = _LEAST_IMPORTANT
            columns, without_note = _made_to_fit(columns, importance, cells, widths, width)
            below = [_cut(f"  {text}", width) if text else "" for text in without_note] or below
        names = [text if _width(text) > widths["RUN"] else "" for text in cells["RUN"]]  # on lines of their own
        cells["RUN"] = ["" if name else text for name, text in zip(names, cells["RUN"], strict=True)]
        if height is not None:
            heights = [1 + bool(name) + bool(text) for name, text in zip(names, below, strict=True)]
            shown = shown[: _rows_within(height - 1, heights, len(rows))]
        head, *texts = zip(*(_aligned(column, cells[column], widths[column]) for column in columns), strict=True)
        self._lines = [[Segment("  ".join(head).rstrip(), Style(bold=True))]]
        place = columns.index("STATE")
        for row, of_row, name, note_below in zip(shown, texts, names, below, strict=False):  # `shown` may be shorter
            state = of_row[place].rstrip()
            blank = of_row[place][len(state) :]
            before = Segment("  ".join([*of_row[:place], ""]))
            after = Segment("  ".join([blank, *of_row[place + 1 :]]).rstrip())
            if name:
                self._lines.append([Segment(name)])
            self._lines.append([before, Segment(state, Style.parse(state_style(row.state))), after])
            if note_below:
                self._lines.append([Segment(note_below)])
        if left_out := len(rows) - len(shown):
            self._lines.append([Segment(f"and {left_out + listing.more} more", Style(dim=True))])
        if width is not None:
            self._lines = [Segment.adjust_line_length(line, width, pad=False) for line in self._lines]

    @property
    def plain(self) -> str:
        return "\n".join("".join(segment.text for segment in line) for line in self._lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._lines:
            yield from line
            yield Segment.line()


def note(status: Status) -> str:
    """What no column shows: cancelling, idle, why it is waiting, how it failed, or that it is not learning."""
    if status.cancelling:
        return "cancelling"
    if status.reason:
        return plain(status.held_up_by)
    flaws = flawed_lines(status.attempt, status.record) if status.attempt and status.state is not State.FINISHED else ()
    if status.state is State.FAILED and status.attempt:
        if on_nodes := node_setup_flaws(status.attempt, status.record):
            return plain(on_nodes[0])
        return plain(flaws[0]) if flaws and status.attempt.setup_ended is not None else _end(status.attempt)
    if flaws and status.attempt and not status.state.ended:
        return plain(flaws[0])
    if status.no_successor:
        return plain(f"no job to go on in: {status.no_successor}")
    if not status.state.ended and status.attempt and (since := status.attempt.idle_since) is not None:
        return f"idle since {clock(since)}, logs no steps"
    if not status.state.ended and status.attempt and (since := status.attempt.gpus_idle_since) is not None:
        return f"GPUs idle since {clock(since)}"
    if not status.state.ended and status.left_out:
        return plain(str(status.left_out[-1]))
    done = progress(status.metrics)
    if status.state is State.FINISHED and status.record.job.workload == "command" and done and done < _SHORT:
        return f"exited after step {share(status.metrics.get('step'), status.metrics.get('steps'))}"
    lesson = not_learning(status.attempt.loss_trend if status.attempt else None)
    return lesson.note if lesson else "1 step per epoch" * bool(single_steps(status))


def _end(attempt: AttemptEvidence) -> str:
    """How the first rank ended: srun's code is the highest of all ranks', 143 for those it killed."""
    if attempt.hung:
        return "GPUs idle" if attempt.hung == IDLE_GPUS else "no progress"
    death = attempt.death
    if death and death.code is None:
        return plain(death.how).lower()
    code = death.code if death else attempt.exit_code
    return f"exit code {code}" if code else ""


def _made_to_fit(
    columns: list[str], importance: Mapping[str, int], cells: dict[str, list[str]], widths: dict[str, int], width: int
) -> tuple[list[str], list[str]]:
    """The columns that fit into `width`, the most important first, and the notes that belong below their runs.

    Progress bars shrink to numbers rather than push out a more important column. Notes, which say why a run failed or
    waits, get a column only if those columns leave enough room, and are printed below their runs otherwise. A name
    that is so long that a column would be lost moves to a line of its own. Long notes are cut.
    """

    def room(chosen: Iterable[str]) -> int:
        return width + _GAP - sum(widths[column] + _GAP for column in chosen)

    by_importance = sorted(columns, key=importance.__getitem__)
    first = [column for column in by_importance if importance[column] < _BAR]
    note, bars, below = widths["NOTE"], cells["PROGRESS"], []
    widths["NOTE"] = min(note, _USEFUL_NOTE)
    bar_width = widths["PROGRESS"]
    if bar_width > len("PROGRESS"):
        cells["PROGRESS"] = [text[BAR_CELLS:].strip() for text in bars]
        widths["PROGRESS"] = len("PROGRESS")
    if room(first) < 0 and "NOTE" in first:
        first.remove("NOTE")
        below = cells["NOTE"]
    if room(first) < 0:
        longest = max(_LEAST_NAMES, width * 2 // 5)
        short = [wide for name in cells["RUN"] if (wide := _width(name)) <= longest]
        widths["RUN"] = max([len("RUN"), *short])
    kept: list[str] = []
    for column in first:
        kept += [column] if not importance[column] or room([*kept, column]) >= 0 else []
    if "PROGRESS" in kept and room(kept) >= bar_width - widths["PROGRESS"]:
        cells["PROGRESS"], widths["PROGRESS"] = bars, bar_width
    for column in by_importance:
        kept += [column] if importance[column] >= _BAR and room([*kept, column]) >= 0 else []
    if len(kept) + bool(below) < len(columns) and importance["TRY"] == _LEAST_IMPORTANT:
        kept = [column for column in kept if column != "TRY"]
    if "NOTE" in kept:
        widths["NOTE"] = min(note, widths["NOTE"] + room(kept))
        cells["NOTE"] = [_cut(text, widths["NOTE"]) for text in cells["NOTE"]]
    return [column for column in columns if column in kept], below


def _rows_within(lines: int, heights: Sequence[int], rows: int) -> int:
    """How many of `rows` fit into `lines`, with a last line for those left out; `heights` are those of the first."""
    ends = [*accumulate(heights)]
    if len(heights) == rows and (not ends or ends[-1] <= lines):
        return rows
    return sum(end < lines for end in ends)


def _cut(text: str, width: int) -> str:
    return text if _width(text) <= width else f"{set_cell_size(text, width - 3).rstrip()}..."


def _aligned(column: str, texts: list[str], width: int) -> list[str]:
    """The title of `column` and `texts`, padded to `width`."""
    blanks = {text: " " * (width - _width(text)) for text in {column, *texts}}
    left = column in LEFT_ALIGNED
    return [text + blanks[text] if left else blanks[text] + text for text in (column, *texts)]


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def state_style(state: State) -> str:
    return _STYLES.get(state, "red" if state.ended else "cyan")


def state_text(status: Status) -> str:
    """The state, with a question mark if only Slurm knows and has not answered."""
    return status.state.value if status.sure else f"{status.state}?"


def row_of(status: Status, now: float) -> Row:
    """The row of one run. The row of an ended run does not depend on `now`."""
    state, metrics, attempt, job = status.state, status.metrics, status.attempt, status.record.job
    at_work = state in _AT_WORK
    done = progress(metrics) if state not in (State.QUEUED, State.STARTING) else None
    left = status.seconds_left(now) if at_work else None
    gpu = attempt.gpu if attempt and not state.ended else None
    ran = status.ran(now)
    scores = (score_of(metrics, "val"), score_of(metrics, "test"))
    val, test = (score[0].text(score[1]) if score else "" for score in scores)
    cells = {
        "RUN": status.record.run.id,
        "STATE": state_text(status),
        "PROGRESS": "" if done is None else progress_bar(done),
        "EPOCH": share(metrics.get("epoch"), metrics.get("epochs")),
        "STEP": share(metrics.get("step"), metrics.get("steps")),
        "ETA": "" if left is None else duration(left),
        "LOSS": number(metrics.get("loss")),
        "VAL": val,
        "TEST": test,
        "NODES/S": KNOWN["nodes_per_second"].text(metrics.get("nodes_per_second") if at_work else None),
        "GPU": "" if gpu is None else f"{gpu:.0f}%",
        "TASKS": f"{job.resources.nodes}x{status.record.tasks_per_node}",
        "RAN": "" if ran is None else duration(ran),
        "GPU-H": "" if (hours := status.gpu_hours(now)) is None else hours_text(hours),
        "TRY": str(len(status.attempts) or ""),
        "JOB": status.job_id or "",
        "TAGS": plain(",".join(job.tags)),
        "NOTE": note(status)
        or plain(job.note or "")
        or "  ".join(f"{plain(name)} {number(own)}" for name, own in own_metrics(metrics).items()),
        "ON": plain(attempt.nodes) if attempt else "",
    }
    shown = {column: text for column, text in cells.items() if text}
    return Row(status.record.run.id, state, status.record.created, shown)


# Rows for sweeps in the table of runs: one row per sweep, or one per run with the settings it varies.


_MOST_COLUMNS = 6  # for varied settings


def together(rows: Iterable[Row]) -> list[Row]:
    """`rows` with the runs of each sweep combined into one row, in place of the first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(submission(row.run), []).append(row)
    combined = []
    for name, group in groups.items():
        if group[0].run == name:  # not a sweep
            combined.append(group[0])
            continue
        counts = _states(group)
        ended = sum(row.state.ended for row in group) / len(group)
        cells = {
            "RUN": name,
            "STATE": f"{len(group)} runs",
            "PROGRESS": progress_bar(ended),
            "NOTE": states_in_words(counts),
            **({"GPU-H": hours} if (hours := _gpu_hours(group)) else {}),
        }
        # The colour is that of the active runs, else of those that ended badly.
        going = [state for state in counts if not state.ended]
        at_work = [state for state in going if state is not State.QUEUED]
        badly = [state for state in counts if state.ended and state is not State.FINISHED]
        state = next(iter([*at_work, *going, *badly]), State.FINISHED)
        combined.append(Row(name, state, max(row.created for row in group), cells))
    return combined


def apart(rows: Iterable[Row], settings: Mapping[str, Sequence[str]]) -> tuple[list[Row], list[str]]:
    """`rows` with their runs' `settings` in additional columns, and the titles of those columns."""
    values = {run: values_of(row) for run, row in settings.items()}
    keys = [*dict.fromkeys(key for row in values.values() for key in row)][:_MOST_COLUMNS]
    ends = Counter(key.rpartition(".")[2] for key in keys)
    # `train.lr` -> `lr`, unless another key ends in the same word.
    titles = {key: plain(end if ends[end := key.rpartition(".")[2]] == 1 else key) for key in keys}
    changed = []
    for row in rows:
        mine = {titles[key]: plain(text) for key, text in values.get(row.run, {}).items() if key in titles}
        changed.append(row._replace(cells={**row.cells, "RUN": f".{row.run.rpartition('.')[2]}", **mine}))
    return changed, [*titles.values()]


def listing(summary: SweepSummary, looked: RunStatuses, *, ranks: bool = True) -> Listing:
    """A sweep as a table of its runs with its headline: the best by its metric first, then the others by index.

    Without `ranks`, they stay in the order of `looked`.
    """
    record, best = summary.record, summary.best
    ranking = ranked(summary.statuses, best.metric.name) if best else []
    settings = {run.id: row for run, row in zip(record.runs, record.settings, strict=True)}
    places = {one.status.record.run: place for place, one in enumerate(ranking)}
    statuses = [*looked.statuses]
    if ranks:
        statuses.sort(key=lambda status: places.get(status.record.run, len(places)))
    rows, varied = apart((row_of(status, looked.as_of) for status in statuses), settings)
    if ranking:  # the metric that ranks them is as important as the settings
        metric, metrics = ranking[0].metric, ranking[0].status.metrics
        shown = {"LOSS": KNOWN["loss"]}
        shown |= {split.upper(): score[0] for split in ("val", "test") if (score := score_of(metrics, split))}
        varied.append(next((column for column, one in shown.items() if one == metric), plain(metric.label)))
        if varied[-1] not in shown:
            values = {one.status.record.run.id: metric.text(one.value) for one in ranking}
            rows = [row._replace(cells={**row.cells, varied[-1]: values.get(row.run, "")}) for row in rows]
    head = headline(summary)
    return Listing(looked.as_of, tuple(rows), looked.problems, tuple(statuses), head, tuple(varied))


def with_column(found: Listing, name: str) -> Listing:
    """`found` with the column or metric `name`, which orders its rows, beside the state: no terminal is too narrow."""
    rows, title = found.rows, "NODES/S" if name == "nodes_per_second" else name.upper()
    if title not in _IMPORTANCE:
        metric = metric_of(name)
        title = plain(metric.label)
        logged = {one.record.run.id: metric.text(one.metrics[name]) for one in found.looked if name in one.metrics}
        rows = tuple(row._replace(cells={**row.cells, title: logged.get(row.run, "")}) for row in rows)
    known = title in ("RUN", "STATE", *found.varied)
    return replace(found, rows=rows, varied=found.varied if known else (*found.varied, title))


def headline(found: SweepSummary) -> str:
    """The state of the sweep in one or two lines."""
    lines = [f"{found.record.sweep.id}: {len(found.statuses)} runs: {states_in_words(found.states)}"]
    if found.seconds_left:
        lines[0] += f"; about {duration(found.seconds_left)} left"
    if best := found.best:
        place = best.status.record.run.id.rpartition(".")[2]
        settings = " ".join(found.record.settings[found.record.places.index(int(place))])
        of = f".{place}: {settings}" if settings else f".{place}"
        lines.append(f"best {best.metric.label}: {best.metric.text(best.value)} of {of}")
    return "\n".join(map(plain, lines))

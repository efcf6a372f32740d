"""Render a scene as the text of each pane, and all panes as one frame for `monitor --once`.

First the layout: one pane below the runs on a small terminal, all side by side on a large one. Then the panes, in this
order: devices, steps, runs, log, events, queue, why, training.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from clusterctl.launcher.config.suggestions import suggested
from clusterctl.launcher.diagnosis.efficiency import not_learning
from clusterctl.launcher.diagnosis.running import stragglers
from clusterctl.launcher.display.curves import chart, drawn_curves
from clusterctl.launcher.display.logs import label_of
from clusterctl.launcher.display.monitor.rows import Choice, drawn_rows, in_words
from clusterctl.launcher.display.plain import (
    as_bytes,
    as_shown,
    bar,
    clock,
    compact,
    duration,
    plain,
    ranks_text,
    share,
)
from clusterctl.launcher.display.runs_table import note, state_style
from clusterctl.launcher.display.terminal import wrapped
from clusterctl.launcher.observe.run_names import submission
from clusterctl.shared.record.metrics import number, score_of
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.launcher.display.curves import DrawnCurve
    from clusterctl.launcher.observe.history import History, NodeHistory
    from clusterctl.launcher.observe.overview import Scene, Selected


_WIDE_COLUMNS, _WIDE_LINES = 150, 40
_RUNS_LINES = 7  # including the frame, on a small terminal


class Pane(StrEnum):
    RUNS = "runs"
    TRAINING = "training"
    DEVICES = "devices"
    STEPS = "steps"
    LOG = "log"
    EVENTS = "events"
    QUEUE = "queue"
    WHY = "why"


PAGES = tuple(pane for pane in Pane if pane is not Pane.RUNS)
"""The panes that can be maximized, in the order of their keys, from 1."""


class Region(NamedTuple):
    """The position and size of a pane including its frame, in characters."""

    pane: Pane
    x: int
    y: int
    width: int
    height: int


def arrange(width: int, height: int, page: Pane | None = None) -> list[Region]:
    """The non-overlapping regions of a `width` x `height` terminal, between its first and last line.

    `page` is the maximized pane; by default, a small terminal shows the training.
    """
    lines = height - 2  # the title and the keys
    wide = width >= _WIDE_COLUMNS and height >= _WIDE_LINES
    if not wide or page is not None:
        runs = max(4, min(14 if wide else _RUNS_LINES, lines // 3))
        alone = Region(page or Pane.TRAINING, 0, 1 + runs, width, max(3, lines - runs))
        return [Region(Pane.RUNS, 0, 1, width, runs), alone]
    left = max(60, width * 2 // 5)
    right = width - left
    upper = lines * 3 // 5
    lower = lines - upper
    runs, events = upper // 2, upper - upper // 2
    devices = upper // 3
    queue, log = lower // 2, width - left - right // 3
    return [
        Region(Pane.RUNS, 0, 1, left, runs),
        Region(Pane.EVENTS, 0, 1 + runs, left, events),
        Region(Pane.TRAINING, left, 1, right, upper - devices),
        Region(Pane.DEVICES, left, 1 + upper - devices, right, devices),
        Region(Pane.QUEUE, 0, 1 + upper, left, queue),
        Region(Pane.WHY, 0, 1 + upper + queue, left, lower - queue),
        Region(Pane.STEPS, left, 1 + upper, right - log, lower),
        Region(Pane.LOG, width - log, 1 + upper, log, lower),
    ]


@dataclass(frozen=True)
class MonitorView:
    """What to show: a scene, and additional information about the selected run."""

    scene: Scene
    findings: tuple[str, ...] = ()  # of `why`, about the selected run
    nodes: tuple[str, ...] = ()  # of the cluster
    back: int = 0  # lines that log and events are scrolled back
    down: int = 0  # lines that the other panes are scrolled down
    choice: Choice = field(default_factory=Choice)  # of the runs that are listed

    @property
    def selected_id(self) -> str | None:
        return self.scene.selected.status.record.run.id if self.scene.selected else None


def draw(pane: Pane, view: MonitorView, width: int, height: int) -> Text:
    """The text of `pane`, at most `height` lines of `width` columns."""
    scene, selected = view.scene, view.scene.selected
    if width < 1 or height < 1:
        return Text()
    if pane is Pane.RUNS:
        return run_rows(view, width, height)
    if pane is Pane.QUEUE:
        return queue(scene, view.nodes, width, height, view.down)
    if selected is None:
        return Text("no run selected", "dim")
    with selected.history.lock:  # a thread may be refreshing it
        if pane is Pane.TRAINING:
            return training(selected, scene.as_of, width, height)
        if pane is Pane.DEVICES:
            return devices(selected.history, scene.as_of, width, height, view.down)
        if pane is Pane.STEPS:
            return steps(selected.history, width, height)
    if pane is Pane.LOG:
        return log(selected, width, height, view.back)
    if pane is Pane.EVENTS:
        return events(selected, width, height, view.back)
    return why(selected, view.findings, width, height, view.down)


def headline(view: MonitorView, width: int) -> Text:
    """The first line: number of runs, age of Slurm's data, first problem."""
    scene = view.scene
    alive = sum(not status.state.ended for status in scene.statuses)
    runs = f"{plural(len(scene.statuses), 'run')}, {alive} alive"
    if scene.older:
        runs = f"newest {len(scene.statuses)} of {len(scene.statuses) + scene.older:,} runs: {alive} alive"
    line = Text.assemble((" clusterctl ", "bold reverse"), f" {runs}")
    for words in in_words(scene, view.choice):
        line.append(f"  {plain(words)}", "yellow")
    line.append(f"  {clock(scene.as_of)}")
    if scene.snapshots:
        oldest = min(snapshot.taken_at for snapshot in scene.snapshots)
        line.append(f"  Slurm as of {duration(scene.as_of - oldest)} ago", "dim")
    for problem in scene.problems[:1]:
        line.append(f"  {plain(problem.message)}", "red")
    line.truncate(width, overflow="ellipsis")
    return line


def frame(view: MonitorView, width: int, height: int, page: Pane | None = None) -> Text:
    """The whole frame: a headline and every pane in its box."""
    boxes = []
    for region in arrange(width, height, page):
        inner = region.width - 2
        rows = draw(region.pane, view, inner, region.height - 2).split("\n", allow_blank=True)
        top = f"╭─ {region.pane} ".ljust(region.width - 1, "─")[: region.width - 1] + "╮"
        boxed = [Text(top, "dim")]
        for index in range(region.height - 2):
            row = rows[index] if index < len(rows) else Text()
            row.truncate(inner, pad=True)
            boxed.append(Text.assemble(("│", "dim"), row, ("│", "dim")))
        boxed.append(Text(f"╰{'─' * inner}╯", "dim"))
        boxes.append((region, boxed))
    lines = [headline(view, width)]
    for y in range(1, height - 1):
        line = Text()
        for region, boxed in sorted(boxes, key=lambda box: box[0].x):
            if region.y <= y < region.y + region.height:
                line.append_text(boxed[y - region.y])
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


# Nodes and their GPUs as a matrix that is legible without colour, and the breakdown of a step's time.


_STALE_SECONDS = 60
_IDLE_PERCENT = 10
_MOST_STRAGGLERS = 4  # listed by name
_BESIDE_GPUS = 28  # columns: the use of CPUs, with a bar, and of memory, with its limit
# In a light theme, a terminal's "white" may be grey; its black is black in all.
_HEAT = ((90, "bold black on green"), (60, "black on green"), (30, "black on yellow"), (0, "black on red"))


def devices(history: History, now: float, width: int, height: int, down: int = 0) -> Text:
    """One line per node: GPU utilisation, CPU and memory; the nodes with the idlest GPU first.

    If not all nodes fit, a summary line comes first, and those `down` from the first one are shown.
    """
    nodes = [node for node in history.nodes.values() if node.newest]
    if not nodes:  # no telemetry: the ranks on each node
        newest = next(reversed(history.attempts.values()), None)
        if newest is None or not newest.nodes:
            return fitted([Text("no nodes have started", "dim")], width, height)
        where: dict[str, list[int]] = {}
        for rank, name in sorted(newest.nodes.items()):
            where.setdefault(name, []).append(rank)
        lines = [Text(f"{plain(name)}  ranks {', '.join(map(str, ranks))}") for name, ranks in where.items()]
        return fitted([*lines, Text("no telemetry for this run", "dim")], width, height)
    use = {
        node.name: [gpu.utilisation for gpu in node.newest.gpus if gpu.utilisation is not None]
        for node in nodes
        if node.newest
    }
    nodes.sort(key=lambda node: (min(use[node.name], default=0.0), node.name))
    name_width = min(20, max(len(plain(node.name)) for node in nodes))
    most = max((len(node.newest.gpus) for node in nodes if node.newest), default=0)
    titles = ["node".ljust(name_width), *(f"  gpu{index}".ljust(7) for index in range(most))]
    is_narrow = width < name_width + 7 * most + _BESIDE_GPUS
    titles.append("  cpu     memory" if is_narrow else "  cpu              memory")
    header = Text.assemble(*((title, "dim") for title in titles))
    above = [header]
    if len(nodes) >= height:
        summary = Text(plural(len(nodes), "node"), "bold")
        if known := [one for of_node in use.values() for one in of_node]:
            gpus = sum(len(node.newest.gpus) for node in nodes if node.newest)
            idle = sum(utilisation < _IDLE_PERCENT for utilisation in known)
            in_use = f"{sum(known) / len(known):.0f} % in use, {idle:,} idle; idlest first:"
            summary.append(f"  {plural(gpus, 'GPU')}, {in_use}")
        above = [summary, header]
    room = max(0, height - len(above))
    first = max(0, min(down, len(nodes) - room))
    shown = nodes[first : first + room]
    return fitted([*above, *(_node_line(node, name_width, most, now, is_narrow) for node in shown)], width, height)


def steps(history: History, width: int, height: int) -> Text:
    """The breakdown of a step's time, the ranks that slow the others down, and the band over the ranks."""
    split = history.split()
    whole = sum(split.values())
    lines = [Text(f"a step takes {1000 * whole:.1f} ms", "bold")] if whole else []
    for name, seconds in split.items() if whole else ():
        text = f"{name:<13} {1000 * seconds:8.1f} ms {seconds / whole:4.0%} "
        lines.append(Text(text).append(bar(seconds / whole, max(4, min(30, width - len(text)))), "cyan"))
    busy = {rank: known.busy.last for rank, known in history.ranks.items() if known.busy.last is not None}
    slow = stragglers(busy)
    for straggler in slow[:_MOST_STRAGGLERS]:
        node = plain(history.ranks[straggler.rank].node)
        lines.append(Text(f"rank {straggler.rank} ({node}): {straggler.slowdown:.1f}x the others", "bold red"))
    if len(slow) > _MOST_STRAGGLERS:
        lines.append(Text(f"and {len(slow) - _MOST_STRAGGLERS:,} more of {len(busy):,} ranks", "bold red"))
    if busy and not slow:
        lines.append(Text(f"{plural(len(busy), 'rank')}, no straggler", "dim"))
    room = height - len(lines) - 1
    points = history.step_seconds.points()
    if points and room >= 3:
        lines.append(Text("seconds per step, band over ranks", "bold"))
        lines += chart(points, width, room, "yellow", floor=0.0).split("\n")
    return fitted(lines or [Text("no steps yet", "dim")], width, height)


def _node_line(node: NodeHistory, name_width: int, gpus: int, now: float, is_narrow: bool) -> Text:
    newest = node.newest
    assert newest is not None
    line = Text(plain(node.name)[:name_width].ljust(name_width))
    for position in range(gpus):
        line.append("  ")
        if position >= len(newest.gpus):
            line.append("     ")
        elif (used := newest.gpus[position].utilisation) is None:
            line.append("  -  ", "dim")
        else:  # the bar's height and the number carry the same information as the colour
            style = next(style for least, style in _HEAT if used >= least or least == 0)
            line.append(f"{'▁▂▃▄▅▆▇█'[min(7, max(0, int(used / 12.5)))]}{used:3.0f} ", style)
    cpu = f"{newest.cpu:.1f}" if newest.cpu is not None else "-"
    share = newest.cpu / newest.cpus if newest.cpu is not None and newest.cpus else 0.0
    line.append("  " if is_narrow else f"  {bar(share, 6)} ")
    line.append((f"{cpu}/{newest.cpus:g}" if newest.cpus else cpu).ljust(7 if is_narrow else 9))
    if newest.memory is not None:
        limit = f"/{as_bytes(newest.memory_limit)}" if newest.memory_limit and not is_narrow else ""
        line.append(f" {as_bytes(newest.memory)}{limit}")
    if now - newest.time > _STALE_SECONDS:
        line.append(" old" if is_narrow else f"  {duration(now - newest.time)} ago", "dim")
    return line


# The text panes: runs, log, events, queue, why.


def fitted(lines: Sequence[Text], width: int, height: int, down: int = 0) -> Text:
    """At most `height` lines truncated to `width` columns, from `down` on; the last one counts the lines left out."""
    first = max(0, min(down, len(lines) - height))
    shown = list(lines[first : first + height])
    if (below := len(lines) - first - height) > 0 and height > 1:
        shown[-1] = Text(f"... {below + 1} more", "dim")
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(shown)


def run_rows(view: MonitorView, width: int, height: int) -> Text:
    """The list of runs (`rows`), or what to type if there is none."""
    if not view.scene.statuses:
        return Text(suggested("no runs yet; try: clusterctl submit cora --follow"), "dim")
    lines = drawn_rows(view.scene, view.choice, view.selected_id, width, height)
    return fitted(lines if len(lines) > 1 else [Text("no run matches; / changes the filter", "dim")], width, height)


def log(selected: Selected, width: int, height: int, back: int = 0) -> Text:
    """The last lines of the log, scrolled `back` lines."""
    lines = selected.log[: len(selected.log) - back] if back else selected.log
    several = len({line.source.rank for line in lines}) > 1
    shown = []
    for line in lines[-height:]:
        text = Text(label_of(line, selected.status.record.seating), "dim") if several else Text()
        shown.append(text.append(as_shown(line.text).expandtabs(4)))
    return fitted(shown or [Text("no output yet", "dim")], width, height)


def events(selected: Selected, width: int, height: int, back: int = 0) -> Text:
    """The newest events, the last one at the bottom, scrolled `back` lines. The headline has the zone of the times."""
    lines = []
    for event in selected.timeline_events[: len(selected.timeline_events) - back][-height:]:
        several = f"x{event.ranks} " if event.ranks > 1 else ""
        rank = several or (f"r{event.rank:02} " if event.rank is not None else "")
        text = f"{rank}{plain(event.text)}"
        at = time.strftime("%H:%M:%S ", time.localtime(event.time))
        lines.append(Text.assemble((at, "dim"), (text, "red" if event.bad else "")))
    return fitted(lines, width, height)


def queue(scene: Scene, nodes: Sequence[str], width: int, height: int, down: int = 0) -> Text:
    """The number of the user's jobs, the waiting runs with the reason, then the nodes."""
    lines = []
    for snapshot in scene.snapshots:
        states = [job.state for job in snapshot.jobs.values() if not job.state.ended]
        waiting = sum(state.waiting for state in states)
        age = duration(scene.as_of - snapshot.taken_at)
        lines.append(Text(f"{plural(len(states) - waiting, 'job')} running, {waiting} waiting, as of {age} ago"))
    for status in scene.statuses:
        if status.state is State.QUEUED:
            reason = plain(status.held_up_by) or "not yet known"
            lines.append(Text.assemble((plain(status.record.run.id), "yellow"), f"  {reason}"))
    lines += [Text(plain(line)) for line in nodes]
    return fitted(lines or [Text("no runs waiting", "dim")], width, height, down)


def why(selected: Selected, findings: Sequence[str], width: int, height: int, down: int = 0) -> Text:
    """The diagnosis or, until there is one, what the ranks reported; long lines are wrapped."""
    if findings:
        lines = [Text(part) for line in findings for part in wrapped(plain(line), width)]
        return fitted(lines, width, height, down)
    status = selected.status
    lines = [Text(f"exit code {status.exit_code}", "red")] if status.exit_code else []
    if status.reason and not status.state.ended:
        lines.append(Text(f"waiting: {plain(status.held_up_by)}", "yellow"))
    bad = [event for event in selected.timeline_events if event.bad and event.rank is not None]
    bad.sort(key=lambda event: event.ranks)  # an error on one rank causes errors on many others
    lines += [Text(f"{ranks_text(event.rank, event.ranks)}: {plain(event.text)}", "red") for event in bad]
    return fitted(lines or [Text("no problems reported", "dim")], width, height)


# The training pane: progress and curves.


_STYLES = ("cyan", "green", "magenta", "yellow")
_LEAST_LINES = 6  # of a chart including its title
_LEAST_COLUMNS = 36


def training(selected: Selected, now: float, width: int, height: int) -> Text:
    """Two lines of facts, then as many charts as fit."""
    lines = _facts(selected, now, width)
    curves = drawn_curves(selected.history)
    if not curves:
        return fitted([*lines, Text("no metrics yet", "dim")], width, height)
    room = height - len(lines)
    across = max(1, min(len(curves), 2 if width >= 2 * _LEAST_COLUMNS + 2 else 1))
    down = max(1, min(-(-len(curves) // across), room // _LEAST_LINES))
    across = min(across, -(-len(curves) // down))
    for first in range(0, down * across, across):
        lines += _row(curves[first : first + across], first, width, room // down)
    return fitted(lines, width, height)


def _facts(selected: Selected, now: float, width: int) -> list[Text]:
    status, metrics = selected.status, selected.status.metrics
    scores = [score for split in ("val", "test") if (score := score_of(metrics, split))]
    run = status.record.run.id
    of_sweep = f".{run.rpartition('.')[2]} " if submission(run) != run else ""  # its row may be that of the sweep
    first = Text.assemble((of_sweep, "bold"), (str(status.state), state_style(status.state)))
    named = (
        ("epoch", share(metrics.get("epoch"), metrics.get("epochs"))),
        ("loss", number(metrics.get("loss"))),
        *((metric.label, metric.text(value)) for metric, value in scores),
        ("attempt", str(status.attempt.number) if status.attempt and len(status.attempts) > 1 else ""),
    )
    for name, text in named:
        if text:
            first.append(f"  {name} ", "dim").append(text)
    second = Text()
    step, steps = metrics.get("step"), metrics.get("steps")
    if step is not None and steps:
        second.append(bar(step / steps, min(24, width // 3)), "green").append(f" step {share(step, steps)}")
    if (left := status.seconds_left(now)) is not None:
        second.append("  left ", "dim").append(duration(left))
    lesson = not_learning(status.attempt.loss_trend if status.attempt else None)
    idle = status.attempt is not None and status.attempt.idle_since is not None and not status.state.ended
    third = Text(lesson.text if lesson else note(status) if idle else "", "bold red")
    return [line for line in (first, second, third) if line]


def _row(curves: list[DrawnCurve], first: int, width: int, height: int) -> list[Text]:
    """The lines of charts side by side across the whole width, two columns apart."""
    each = (width - 2 * (len(curves) - 1)) // len(curves)
    columns = []
    for position, titled in enumerate(curves):
        style = _STYLES[(first + position) % len(_STYLES)]
        last = titled.curve.last
        title = Text.assemble((titled.title, "bold"), "  ", compact(last) if last is not None else "")
        title.truncate(each, overflow="ellipsis")
        curve = chart(titled.curve.points(), each, max(1, height - 1), style, floor=titled.floor)
        columns.append([title, *(curve.split("\n") if curve else ())])
    lines = []
    for *left, last_one in zip_longest(*columns, fillvalue=Text()):
        line = Text()
        for part in left:
            padded = Text().append_text(part)
            padded.truncate(each, pad=True)
            line.append_text(padded).append("  ")
        lines.append(line.append_text(last_one))
    return lines

"""Render a scene as the text of each pane, and all panes as one frame for `monitor --once`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.display.monitor import texts
from clusterctl.display.monitor.arrange import Pane, arrange
from clusterctl.display.monitor.devices import devices, steps
from clusterctl.display.monitor.training import training
from clusterctl.display.plain import duration, plain
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from clusterctl.observe.overview import Scene


@dataclass(frozen=True)
class MonitorView:
    """What to show: a scene, and additional information about the selected run."""

    scene: Scene
    findings: tuple[str, ...] = ()  # of `why`, about the selected run
    nodes: tuple[str, ...] = ()  # of the cluster
    back: int = 0  # lines the log is scrolled back

    @property
    def selected_id(self) -> str | None:
        return self.scene.selected.status.record.run.id if self.scene.selected else None


def draw(pane: Pane, view: MonitorView, width: int, height: int) -> Text:
    """The text of `pane`, at most `height` lines of `width` columns."""
    scene, selected = view.scene, view.scene.selected
    if width < 1 or height < 1:
        return Text()
    if pane is Pane.RUNS:
        return texts.run_rows(scene, view.selected_id, width, height)
    if pane is Pane.QUEUE:
        return texts.queue(scene, view.nodes, width, height)
    if selected is None:
        return Text("no run selected", "dim")
    with selected.history.lock:  # a thread may be refreshing it
        if pane is Pane.TRAINING:
            return training(selected, scene.as_of, width, height)
        if pane is Pane.DEVICES:
            return devices(selected.history, scene.as_of, width, height)
        if pane is Pane.STEPS:
            return steps(selected.history, width, height)
    if pane is Pane.LOG:
        return texts.log(selected, width, height, view.back)
    if pane is Pane.EVENTS:
        return texts.events(selected, width, height)
    return texts.why(selected, view.findings, width, height)


def headline(view: MonitorView, width: int) -> Text:
    """The first line: number of runs, age of Slurm's data, first problem."""
    scene = view.scene
    alive = sum(not status.stage.ended for status in scene.statuses)
    line = Text.assemble((" clusterctl ", "bold reverse"), f" {plural(len(scene.statuses), 'run')}, {alive} alive")
    if scene.snapshots:
        oldest = min(snapshot.taken_at for snapshot in scene.snapshots)
        line.append(f"  Slurm as of {duration(scene.as_of - oldest)} ago", "dim")
    for problem in scene.problems[:1]:
        line.append(f"  {plain(problem.message)}", "red")
    line.truncate(width, overflow="ellipsis")
    return line


def frame(view: MonitorView, width: int, height: int, page: Pane | None = None) -> Text:
    """The whole frame: a headline and every pane in its box."""
    boxes = [
        (region, list(_boxed(region.pane, view, region.width, region.height).split("\n")))
        for region in arrange(width, height, page)
    ]
    lines = [headline(view, width)]
    for y in range(1, height - 1):
        line = Text()
        for region, rows in sorted(boxes, key=lambda box: box[0].x):
            if region.y <= y < region.y + region.height:
                line.append_text(rows[y - region.y])
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def _boxed(pane: Pane, view: MonitorView, width: int, height: int) -> Text:
    """The text of a pane in a titled frame, exactly `width` x `height` characters."""
    rows = list(draw(pane, view, width - 2, height - 2).split("\n", allow_blank=True))
    top = f"╭─ {pane} ".ljust(width - 1, "─")[: width - 1] + "╮"
    boxed = [Text(top, "dim")]
    for number in range(height - 2):
        row = rows[number] if number < len(rows) else Text()
        row.truncate(width - 2, pad=True)
        boxed.append(Text.assemble(("│", "dim"), row, ("│", "dim")))
    boxed.append(Text(f"╰{'─' * (width - 2)}╯", "dim"))
    return Text("\n").join(boxed)

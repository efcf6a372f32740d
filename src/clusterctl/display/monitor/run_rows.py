"""The list of runs, the selected one marked, scrolled so that it can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.display.monitor.fitting import fitted
from clusterctl.display.plain import duration, plain, share
from clusterctl.display.runs_table import note
from clusterctl.display.units import bar
from clusterctl.runs.stages import Stage
from clusterctl.runs.vocabulary import number, score_of

if TYPE_CHECKING:
    from clusterctl.observe.overview import Scene
    from clusterctl.observe.stage import Status

_STYLES = {Stage.FINISHED: "green", Stage.QUEUED: "yellow", Stage.CANCELLED: "dim"}
_STAGE_WIDTH = 13


def run_rows(scene: Scene, selected: str | None, width: int, height: int) -> Text:
    """One line a run, newest first: id, stage, how far, loss, score, age, what else there is to say."""
    if not scene.statuses:
        return Text("no runs yet; try: clusterctl submit cora --follow", "dim")
    first = first_row(scene, selected, height)
    shown = scene.statuses[first : first + height]
    name_width = min(max(len(status.record.run.id) for status in scene.statuses), max(20, width - 36))
    lines = []
    for status in shown:
        here = status.record.run.id == selected
        line = Text("▸ " if here else "  ")
        line.append(plain(status.record.run.id)[:name_width].ljust(name_width + 1), "bold reverse" if here else "")
        _append_facts(line, status, scene.as_of, width - line.cell_len)
        lines.append(line)
    return fitted(lines, width, height)


def first_row(scene: Scene, selected: str | None, height: int) -> int:
    """Which run stands in the first line, so that the selected one is among the `height` that are shown."""
    position = next((i for i, status in enumerate(scene.statuses) if status.record.run.id == selected), 0)
    return max(0, min(position - height // 2, len(scene.statuses) - height))


def stage_style(stage: Stage) -> str:
    return _STYLES.get(stage, "red" if stage.ended else "cyan")


def _append_facts(line: Text, status: Status, now: float, width: int) -> None:
    metrics = status.metrics
    line.append(f"{status.stage}{'' if status.sure else '?'}".ljust(_STAGE_WIDTH), stage_style(status.stage))
    step, steps = metrics.get("step"), metrics.get("steps")
    score = score_of(metrics, "test") or score_of(metrics, "val")
    facts = (
        (bar(step / steps, 8) if step is not None and steps else "", 9),
        (share(metrics.get("epoch"), metrics.get("epochs")), 8),
        (number(metrics.get("loss")), 8),
        (number(score[1]) if score else "", 8),
        (duration(now - status.record.created), 7),
        (note(status), 40),
    )
    room = width - _STAGE_WIDTH
    for text, cells in facts:
        if room < cells and cells != 40:
            break
        line.append(text.ljust(cells))
        room -= cells

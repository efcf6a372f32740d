"""The text panes: runs, log, events, queue, why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.display.plain import as_shown, bar, duration, plain, ranks_text, share
from clusterctl.display.runs_table import note, stage_style, stage_text
from clusterctl.runs.stages import Stage
from clusterctl.runs.vocabulary import number, score_of
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.logs import Line
    from clusterctl.observe.overview import Scene, Selected
    from clusterctl.observe.stage import Status

_STAGE_WIDTH = 13


def fitted(lines: Sequence[Text], width: int, height: int) -> Text:
    """At most `height` lines truncated to `width` columns; the last one counts the lines left out."""
    shown = list(lines[:height])
    if len(lines) > height > 1:
        shown[-1] = Text(f"... {len(lines) - height + 1} more", "dim")
    for line in shown:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(shown)


def run_rows(scene: Scene, selected: str | None, width: int, height: int) -> Text:
    """One line per run, newest first, the selected one marked: id, stage, progress, loss, score, age, note."""
    if not scene.statuses:
        return Text("no runs yet; try: clusterctl submit cora --follow", "dim")
    first = first_row(scene, selected, height)
    name_width = min(max(len(status.record.run.id) for status in scene.statuses), max(20, width - 36))
    lines = []
    for status in scene.statuses[first : first + height]:
        here = status.record.run.id == selected
        line = Text("▸ " if here else "  ")
        line.append(plain(status.record.run.id)[:name_width].ljust(name_width + 1), "bold reverse" if here else "")
        _append_facts(line, status, scene.as_of, width - line.cell_len)
        lines.append(line)
    return fitted(lines, width, height)


def first_row(scene: Scene, selected: str | None, height: int) -> int:
    """The index of the first visible run, such that the selected one is among the `height` shown."""
    position = next((i for i, status in enumerate(scene.statuses) if status.record.run.id == selected), 0)
    return max(0, min(position - height // 2, len(scene.statuses) - height))


def _append_facts(line: Text, status: Status, now: float, width: int) -> None:
    metrics = status.metrics
    line.append(stage_text(status).ljust(_STAGE_WIDTH), stage_style(status.stage))
    step, steps = metrics.get("step"), metrics.get("steps")
    score = score_of(metrics, "test") or score_of(metrics, "val")
    facts = (
        (bar(step / steps, 8) if step is not None and steps else "", 9),
        (share(metrics.get("epoch"), metrics.get("epochs")), 8),
        (number(metrics.get("loss")), 8),
        (number(score[1]) if score else "", 8),
        (duration(now - status.record.created), 7),
    )
    room = width - _STAGE_WIDTH
    for text, cells in facts:
        if room < cells:
            return
        line.append(text.ljust(cells))
        room -= cells
    line.append(note(status))


def log(selected: Selected, width: int, height: int, back: int = 0) -> Text:
    """The last lines of the log, scrolled `back` lines."""
    lines = selected.log[: len(selected.log) - back] if back else selected.log
    several = len({line.source.rank for line in lines}) > 1
    shown = []
    for line in lines[-height:]:
        text = Text(label_of(line), "dim") if several else Text()
        shown.append(text.append(as_shown(line.text).expandtabs(4)))
    return fitted(shown or [Text("no output yet", "dim")], width, height)


def events(selected: Selected, width: int, height: int) -> Text:
    """The newest events, the last one at the bottom."""
    lines = []
    for happening in selected.happenings[-height:]:
        several = f"x{happening.ranks} " if happening.ranks > 1 else ""
        rank = several or (f"r{happening.rank:02} " if happening.rank is not None else "")
        text = f"{rank}{plain(happening.text)}"
        at = time.strftime("%H:%M:%S ", time.localtime(happening.time))
        lines.append(Text.assemble((at, "dim"), (text, "red" if happening.bad else "")))
    return fitted(lines, width, height)


def queue(scene: Scene, nodes: Sequence[str], width: int, height: int) -> Text:
    """The number of the user's jobs, the waiting runs with the reason, then the nodes."""
    lines = []
    for snapshot in scene.snapshots:
        states = [job.state for job in snapshot.jobs.values() if not job.state.ended]
        waiting = sum(state.waiting for state in states)
        age = duration(scene.as_of - snapshot.taken_at)
        lines.append(Text(f"{plural(len(states) - waiting, 'job')} running, {waiting} waiting, as of {age} ago"))
    for status in scene.statuses:
        if status.stage is Stage.QUEUED:
            reason = plain(status.held_up_by) or "not yet known"
            lines.append(Text.assemble((plain(status.record.run.id), "yellow"), f"  {reason}"))
    lines += [Text(plain(line)) for line in nodes]
    return fitted(lines or [Text("no runs waiting", "dim")], width, height)


def why(selected: Selected, findings: Sequence[str], width: int, height: int) -> Text:
    """The diagnosis or, until there is one, what the ranks reported."""
    if findings:
        return fitted([Text(plain(line)) for line in findings], width, height)
    status = selected.status
    lines = [Text(f"exit code {status.exit_code}", "red")] if status.exit_code else []
    if status.reason and not status.stage.ended:
        lines.append(Text(f"waiting: {plain(status.held_up_by)}", "yellow"))
    bad = [happening for happening in selected.happenings if happening.bad and happening.rank is not None]
    bad.sort(key=lambda happening: happening.ranks)  # an error on one rank causes errors on many others
    lines += [
        Text(f"{ranks_text(happening.rank, happening.ranks)}: {plain(happening.text)}", "red") for happening in bad
    ]
    return fitted(lines or [Text("no problems reported", "dim")], width, height)


def label_of(line: Line) -> str:
    """The prefix of a line: r03, or x32 if 32 ranks wrote the same."""
    source = line.source
    attempt = f"a{source.attempt} " if source.attempt else ""
    if len(line.ranks) > 1:
        return f"{attempt}x{len(line.ranks):<2} "
    return f"{attempt}host " if source.rank is None else f"{attempt}r{source.rank:02} "

"""The panes that are lists of lines: the log, the events, the queue, why."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.display.monitor.fitting import fitted
from clusterctl.display.plain import as_shown, duration, plain
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.logs import Line
    from clusterctl.observe.overview import Scene, Selected


def log(selected: Selected, width: int, height: int, back: int = 0) -> Text:
    """The last lines that the ranks wrote, `back` lines before the newest."""
    lines = selected.log[: len(selected.log) - back] if back else selected.log
    several = len({line.source.rank for line in lines}) > 1
    shown = []
    for line in lines[-height:]:
        text = Text(_label(line), "dim") if several else Text()
        shown.append(text.append(as_shown(line.text).expandtabs(4)))
    return fitted(shown or [Text("nothing written yet", "dim")], width, height)


def events(selected: Selected, width: int, height: int) -> Text:
    """The newest happenings, the last one at the bottom."""
    lines = []
    for happening in selected.happenings[-height:]:
        rank = f"r{happening.rank:02} " if happening.rank is not None else ""
        text = f"{rank}{plain(happening.text)}"
        at = time.strftime("%H:%M:%S ", time.localtime(happening.time))
        lines.append(Text.assemble((at, "dim"), (text, "red" if happening.bad else "")))
    return fitted(lines, width, height)


def queue(scene: Scene, nodes: Sequence[str], width: int, height: int) -> Text:
    """The runs that wait and why, how many jobs the user has, then the nodes."""
    lines = []
    for snapshot in scene.snapshots:
        states = [job.state for job in snapshot.jobs.values() if not job.state.ended]
        waiting = sum(state.waiting for state in states)
        age = duration(scene.as_of - snapshot.taken_at)
        lines.append(Text(f"{len(states) - waiting} jobs running, {waiting} waiting, as of {age} ago"))
    for status in scene.statuses:
        if status.stage is Stage.QUEUED:
            reason = plain(status.reason) or "not yet known"
            lines.append(Text.assemble((plain(status.record.run.id), "yellow"), f"  {reason}"))
    lines += [Text(plain(line)) for line in nodes]
    return fitted(lines or [Text("nothing waits", "dim")], width, height)


def why(selected: Selected, findings: Sequence[str], width: int, height: int) -> Text:
    """What was found; until somebody looked, what the ranks said themselves."""
    if findings:
        return fitted([Text(plain(line)) for line in findings], width, height)
    status = selected.status
    lines = [Text(f"exit code {status.exit_code}", "red")] if status.exit_code else []
    if status.reason:
        lines.append(Text(f"waits: {plain(status.reason)}", "yellow"))
    bad = [happening for happening in selected.happenings if happening.bad and happening.rank is not None]
    lines += [Text(f"rank {happening.rank}: {plain(happening.text)}", "red") for happening in bad]
    return fitted(lines or [Text("nothing is wrong that its ranks would have told", "dim")], width, height)


def _label(line: Line) -> str:
    """Whose line it is: r03, or x32 where so many ranks wrote the same."""
    source = line.source
    attempt = f"a{source.attempt} " if source.attempt else ""
    if len(line.ranks) > 1:
        return f"{attempt}x{len(line.ranks):<2} "
    return f"{attempt}host " if source.rank is None else f"{attempt}r{source.rank:02} "

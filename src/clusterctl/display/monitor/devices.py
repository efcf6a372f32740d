"""Nodes and their GPUs as a matrix that is legible without colour, and the breakdown of a step's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.diagnosis.running import stragglers
from clusterctl.display.braille import chart
from clusterctl.display.monitor.texts import fitted
from clusterctl.display.plain import as_bytes, bar, duration, plain
from clusterctl.spec.values import plural

if TYPE_CHECKING:
    from clusterctl.observe.history import History, NodeHistory
    from clusterctl.observe.telemetry import Gpu

_STALE_SECONDS = 60
_IDLE_PERCENT = 10
_MOST_STRAGGLERS = 4  # listed by name
_HEAT = ((90, "white on green"), (60, "black on green"), (30, "black on yellow"), (0, "white on red"))


def devices(history: History, now: float, width: int, height: int) -> Text:
    """One line per node: GPU utilisation, CPU and memory; the nodes with the idlest GPU first.

    If not all nodes fit, a summary line comes first.
    """
    nodes = [node for node in history.nodes.values() if node.newest]
    if not nodes:
        return fitted(_without_telemetry(history), width, height)
    nodes.sort(key=lambda node: (_least_utilisation(node), node.name))
    name_width = min(20, max(len(plain(node.name)) for node in nodes))
    most = max((len(node.newest.gpus) for node in nodes if node.newest), default=0)
    titles = ["node".ljust(name_width), *(f"  gpu{index}".ljust(7) for index in range(most))]
    header = Text.assemble(*((title, "dim") for title in [*titles, "  cpu              memory"]))
    above = [header] if len(nodes) < height else [_summed_up(nodes), header]
    shown = nodes[: max(0, height - len(above))]
    return fitted([*above, *(_node_line(node, name_width, most, now) for node in shown)], width, height)


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
        lines += chart(points, width, room, "yellow").split("\n")
    return fitted(lines or [Text("no steps yet", "dim")], width, height)


def _without_telemetry(history: History) -> list[Text]:
    """The ranks on each node, for a run without telemetry."""
    newest = next(reversed(history.attempts.values()), None)
    if newest is None or not newest.nodes:
        return [Text("no nodes have started", "dim")]
    where: dict[str, list[int]] = {}
    for rank, node in sorted(newest.nodes.items()):
        where.setdefault(node, []).append(rank)
    lines = [Text(f"{plain(node)}  ranks {', '.join(map(str, ranks))}") for node, ranks in where.items()]
    return [*lines, Text("no telemetry for this run", "dim")]


def _summed_up(nodes: list[NodeHistory]) -> Text:
    """The number of nodes and their GPU utilisation."""
    gpus = [gpu.utilisation for node in nodes if node.newest for gpu in node.newest.gpus]
    known = [utilisation for utilisation in gpus if utilisation is not None]
    line = Text(plural(len(nodes), "node"), "bold")
    if known:
        idle = sum(utilisation < _IDLE_PERCENT for utilisation in known)
        line.append(
            f"  {plural(len(gpus), 'GPU')}, {sum(known) / len(known):.0f} % in use, {idle:,} idle; idlest first:"
        )
    return line


def _least_utilisation(node: NodeHistory) -> float:
    gpus = node.newest.gpus if node.newest else ()
    return min((gpu.utilisation for gpu in gpus if gpu.utilisation is not None), default=0.0)


def _node_line(node: NodeHistory, name_width: int, gpus: int, now: float) -> Text:
    newest = node.newest
    assert newest is not None
    line = Text(plain(node.name)[:name_width].ljust(name_width))
    for position in range(gpus):
        line.append("  ")
        line.append_text(_cell(newest.gpus[position]) if position < len(newest.gpus) else Text("     "))
    cpu = f"{newest.cpu:.1f}" if newest.cpu is not None else "-"
    share = newest.cpu / newest.cpus if newest.cpu is not None and newest.cpus else 0.0
    line.append(f"  {bar(share, 6)} ").append(f"{cpu}/{newest.cpus:g}".ljust(9) if newest.cpus else cpu.ljust(9))
    if newest.memory is not None:
        limit = f"/{as_bytes(newest.memory_limit)}" if newest.memory_limit else ""
        line.append(f" {as_bytes(newest.memory)}{limit}")
    if now - newest.time > _STALE_SECONDS:
        line.append(f"  {duration(now - newest.time)} ago", "dim")
    return line


def _cell(gpu: Gpu) -> Text:
    """The bar's height and the number carry the same information as the colour."""
    if gpu.utilisation is None:
        return Text("  -  ", "dim")
    style = next(style for least, style in _HEAT if gpu.utilisation >= least or least == 0)
    block = "▁▂▃▄▅▆▇█"[min(7, max(0, int(gpu.utilisation / 12.5)))]
    return Text(f"{block}{gpu.utilisation:3.0f} ", style)

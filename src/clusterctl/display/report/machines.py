"""The section of a report about the machines: what every node measured, and how its ranks went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.diagnosis.running import stragglers
from clusterctl.display.report.charts import line_chart
from clusterctl.display.report.markup import Markup, join, tag
from clusterctl.display.report.sections import section, since
from clusterctl.runs.vocabulary import number

if TYPE_CHECKING:
    from clusterctl.display.report.post_mortem import PostMortem


def machines(told: PostMortem) -> Markup:
    """GPU, CPU and memory of every node over the time, and how its ranks went."""
    figures = []
    for node in list(told.history.nodes.values())[:32]:
        for what, curve, ceiling, text in (
            ("GPUs, percent in use", node.gpu, 100.0, "{:.0f}"),
            ("CPU cores in use", node.cpu, None, "{:.1f}"),
            ("memory, GiB", node.memory, None, "{:.1f}"),
        ):
            points = curve.points()
            if not points:
                continue
            if curve is node.memory:
                points = [
                    point._replace(low=point.low / 2**30, mean=point.mean / 2**30, high=point.high / 2**30)
                    for point in points
                ]
            mean = sum(point.mean for point in points) / len(points)
            caption = tag("figcaption", f"{node.name}: {what}", tag("span", f"  mean {text.format(mean)}"))
            chart = line_chart(points, f"{node.name}: {what}", x_text=since(points[0].x), floor=0.0, ceiling=ceiling)
            figures.append(tag("figure", caption, chart))
    charts = [tag("div", join(figures), class_="charts small")] if figures else []
    return section("Nodes and ranks", *charts, _ranks(told))


def _ranks(told: PostMortem) -> Markup:
    """A line a rank: its node, its steps, the seconds of one."""
    known = sorted(told.history.ranks.items())
    if not known:
        return Markup() if told.history.nodes else tag("p", "This run has no telemetry.", class_="faint")
    busy = {rank: of_rank.busy.mean() for rank, of_rank in known}
    slow = {straggler.rank for straggler in stragglers(busy)}
    rows = []
    for rank, of_rank in known[:256]:
        points, mean = of_rank.seconds.points(), of_rank.seconds.mean()
        fastest = min((point.low for point in points), default=None)
        slowest = max((point.high for point in points), default=None)
        numbers = (number(of_rank.newest.step, 0), number(fastest), number(mean), number(slowest), number(busy[rank]))
        cells = [
            tag("td", str(rank), class_="number"),
            tag("td", of_rank.node),
            *(tag("td", text or "-", class_="number") for text in numbers),
        ]
        rows.append(tag("tr", join(cells), class_="bad" if rank in slow else None))
    names = ("rank", "node", "step", "fastest s", "mean s", "slowest s", "of its own s")
    header = tag("tr", join([tag("th", name, class_=None if name == "node" else "number") for name in names]))
    table = tag("div", tag("table", tag("thead", header), tag("tbody", join(rows))), class_="scroll")
    return join([table, tag("p", "In red: ranks that hold the others up.", class_="faint") if slow else Markup()])

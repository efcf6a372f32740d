"""Plain tables without lines: disk usage, images, hours, the runs of several clusters, partitions and nodes."""

from __future__ import annotations

import io
import os
import time
from io import StringIO
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clusterctl.launcher.api import json_output
from clusterctl.launcher.display.plain import as_bytes, duration, plain, ranges, when
from clusterctl.launcher.display.runs_table import row_of, show_runs
from clusterctl.launcher.observe.status import Listing
from clusterctl.launcher.slurm.nodes import gpus_by_type, largest_now
from clusterctl.shared.errors import HostError, SlurmError
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.values import plural, slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterctl.launcher.api.clean import CleanUp
    from clusterctl.launcher.api.several_clusters import Answered
    from clusterctl.launcher.api.usage import RunUsage, UsageReport
    from clusterctl.launcher.containers.contents import Image
    from clusterctl.launcher.observe.needs import Needs
    from clusterctl.launcher.observe.rank_events import RoleStatus
    from clusterctl.launcher.slurm import Inventory, Node
    from clusterctl.launcher.slurm.jobs import SlurmJob
    from clusterctl.launcher.slurm.nodes import Largest, Room
    from clusterctl.launcher.submission.sbatch import Estimate, SlurmRefused


Row = tuple[str, ...]


def show_columns(console: Console, titles: Row, rows: Sequence[Row], numbers: Row = ()) -> None:
    """Print the table without columns that are empty in every row; those in `numbers` are right-aligned."""
    shown = [column for column in range(len(titles)) if any(row[column] for row in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        side = "right" if titles[column] in numbers else "left"
        table.add_column(titles[column], justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(plain(row[column])) for column in shown))
    console.print(table)


# The table of Slurm jobs that clusterctl did not submit.


def show_jobs(console: Console, jobs: Iterable[SlurmJob], now: float) -> None:
    """Print one line per job: where it runs, or why it waits, and for how long."""
    rows = []
    for job in jobs:
        since = job.started if job.started is not None and not job.state.waiting else job.submitted
        until = job.ended if job.ended is not None else now
        took = "" if since is None else duration(until - since)
        place = job.reason if job.state.waiting else job.nodes
        limit = "" if job.limit is None else slurm_time(job.limit)
        rows.append((job.job_id, job.name, job.state.value.lower(), took, limit, job.partition, place))
    show_columns(console, ("JOB", "NAME", "STATE", "FOR", "LIMIT", "PARTITION", "NODES (REASON)"), rows)


# Tables of disk usage, of what can be removed, and of old runs that are kept.


_DISK_NUMBERS = ("SIZE", "COUNT")


def show_disk(console: Console, found: CleanUp) -> None:
    """Print the tables that are not empty."""
    taken = [(as_bytes(one.bytes), str(one.count), one.kind.value, os.fspath(one.path)) for one in found.taken]
    show_columns(console, ("SIZE", "COUNT", "WHAT", "WHERE"), taken, _DISK_NUMBERS)
    if found.removals:
        console.print()
        rows = [
            (
                as_bytes(one.bytes),
                "" if one.since is None else f"{duration(found.as_of - one.since)} ago",
                os.fspath(one.path),
            )
            for one in found.removals
        ]
        show_columns(console, ("SIZE", "ENDED", "TO REMOVE"), rows, _DISK_NUMBERS)
    if found.staying:
        console.print()
        show_columns(console, ("KEPT", "REASON"), found.staying)


# The table of images.


def show_images(console: Console, images: Sequence[Image], now: float) -> None:
    """Print one line per image."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, right in (("IMAGE", False), ("MIB", True), ("AGE", True), ("PYTHON", False), ("TORCH", False)):
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    table.add_column("FROM", overflow="ellipsis", no_wrap=True)
    for image in images:
        status, record = image.path.stat(), image.record
        cells = [image.name, f"{status.st_size / 2**20:.0f}"]
        if record:
            torch = record.versions.get("torch", "")
            cells += [duration(now - record.created), record.python or "", torch, record.source]
        else:
            cells += [duration(now - status.st_mtime), "", "", image.problem or "no record"]
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console.print(table)


# The table of GPU-hours and CPU-hours.


_USAGE_NUMBERS = ("RUNS", "GPU-HOURS", "GPU BUSY", "CPU-HOURS", "CPU BUSY", "REPEATED", "RESTARTS", "SPARE")


def show_usage(console: Console, found: UsageReport) -> None:
    """Print one line per user, job or week, and their total if there are several."""
    rows = []
    for row in [*found.rows, found.total] if len(found.rows) > 1 else found.rows:
        shares = (row.gpu_busy, row.cpu_busy, row.repeated or None, row.restarting or None, row.spare or None)
        gpu_busy, cpu_busy, *lost = ("" if share is None else f"{share:.0%}" for share in shares)
        gpu_hours = f"{row.gpu_hours:,.1f}" if row.gpu_hours else ""
        rows.append((row.name, f"{row.runs:,}", gpu_hours, gpu_busy, f"{row.cpu_hours:,.1f}", cpu_busy, *lost))
    show_columns(console, (found.by.upper(), *_USAGE_NUMBERS), rows, _USAGE_NUMBERS)
    for line in found.left_out:
        console.print(Text(plain(line)))


_RESOURCE_NUMBERS = ("REQUESTED", "USED", "ENOUGH")


def show_run_usage(console: Console, found: RunUsage) -> None:
    """Print one line per resource of a node: requested, used, and enough, with the setting to change."""
    rows = [row for row in resource_rows(found.needs, found.gpu_busy) if any(row[1:])]
    show_columns(console, ("PER NODE", *_RESOURCE_NUMBERS, "NEXT TIME"), rows, _RESOURCE_NUMBERS)


def resource_rows(needs: Needs, gpu_busy: float | None) -> list[Row]:
    """A row for each resource: its name, the three amounts, and what to type next time."""
    writers = {"cpus": lambda cores: f"{cores:.1f}".removesuffix(".0"), "time": duration}
    names = {"cpus": "CPUs", "gpu_memory": "GPU memory"}
    rows: list[Row] = []
    for one in needs.all:
        write = writers.get(one.name, as_bytes)
        amounts = ("" if amount is None else write(amount) for amount in (one.requested, one.used, one.enough))
        rows.append((names.get(one.name, one.name), *amounts, one.change and f"--set {one.change}"))
    if gpu_busy is not None:
        rows.append(("GPU use", "100%", f"{gpu_busy:.0%}", "", ""))
    return rows


def note_on_usage(found: RunUsage) -> str:
    """How the numbers of `show_run_usage` were measured, in a line."""
    if found.needs.memory.used is None:
        return "no memory was measured: a batch script has no telemetry of it, nor a run that has not started"
    by = "by the kernel, in the job's cgroup" if found.needs.counted else "by adding up its processes, twice a second"
    until = "" if found.status.state is State.FINISHED else "; enough is only known once the run has finished"
    return f"memory is what could not have been taken back, measured {by}{until}"


# The roles of runs.


def show_roles(console: Console, runs: Iterable[tuple[str, Iterable[RoleStatus]]]) -> bool:
    """Print a line for each role of `runs`, given with their ids, if there are any; returns whether there are."""
    rows = [
        (run, one.name, str(len(one.ranks)), " ".join(one.nodes), one.summary, str(one.restarts))
        for run, roles in runs
        for one in roles
    ]
    if rows:
        show_columns(console, ("RUN", "ROLE", "RANKS", "NODES", "STATE", "RESTARTS"), rows, ("RANKS",))
    return bool(rows)


# The runs of several clusters, one table per cluster.


def show(console: Console, clusters: Iterable[Answered], *, wide: bool) -> None:
    """Print each cluster's name and the age of its data, followed by its runs."""
    for number, one in enumerate(clusters):
        if number:
            console.print()
        if one.found is None:
            state = "no answer"
        else:
            state = "" if one.found.statuses else "no runs, "
            state += f"not responding; as of {duration(one.age)} ago" if one.problem else "up to date"
            state += f"; {one.found.more:,} older not shown" if one.found.more else ""
        console.print(Text(f"{plain(one.cluster)}: {state}", style="bold"))
        if one.found and one.found.statuses:
            rows = tuple(row_of(status, one.found.as_of) for status in one.found.statuses)
            show_runs(console, Listing(one.found.as_of, rows), wide=wide)


def if_shown(one: Answered) -> Answered:
    """`one`, or a problem in place of values that no table can show, such as a time beyond all calendars."""
    if one.found is None:
        return one
    try:
        json_output.runs(one.found)
        show(Console(file=io.StringIO()), [one], wide=True)
    except (ArithmeticError, ValueError) as error:
        message = f"{one.cluster} sent values that cannot be shown: {error}"
        return one._replace(found=None, problem=HostError(message, f"clusterctl status --cluster {one.cluster}"))
    return one


# Tables of partitions and nodes: free resources, unavailable nodes with the reason, where a job would fit.


_PANE_WIDTH = 100  # the pane truncates longer lines
_LONGEST_NAME = 256  # of a host; int() rejects numbers of thousands of digits


def show_partitions(console: Console, inventory: Inventory) -> None:
    """One line per partition: free resources, and the largest job that would fit."""
    rows = []
    for partition in inventory.partitions.values():
        nodes = inventory.nodes_of(partition)
        starting = sum(node.can_start for node in nodes)
        rows.append(
            (
                partition.name + "*" * partition.default + (" (down)" if not partition.up else ""),
                str(len(nodes)) if starting == len(nodes) else f"{starting} of {len(nodes)}",
                _gpus(nodes),
                f"{sum(node.cpus_free for node in nodes)}/{sum(node.cpus for node in nodes)}",
                largest_in_words(largest_now(partition, inventory)),
            )
        )
    show_columns(console, ("PARTITION", "NODES", "GPUS FREE", "CPUS FREE", "LARGEST JOB NOW"), rows)


def show_nodes(console: Console, nodes: Iterable[Node]) -> None:
    """One line for all nodes in the same state, named in Slurm's notation."""
    alike: dict[Row, list[str]] = {}
    for node in nodes:
        row = (
            "+".join([node.state, *sorted(node.flags - {node.state})]),
            _gpus([node]),
            f"{node.cpus_free}/{node.cpus}",
            f"{node.memory_unallocated / 1024:.0f}/{node.memory / 1024:.0f} GiB",
            node.reason,
        )
        alike.setdefault(row, []).append(node.name)
    rows = [(node_set(names), *row) for row, names in alike.items()]
    show_columns(console, ("NODES", "STATE", "GPUS FREE", "CPUS FREE", "MEMORY FREE", "REASON"), rows)


def node_lines(inventory: Inventory) -> list[str]:
    """Both tables as plain lines, for the monitor's pane."""
    console = Console(file=StringIO(), width=_PANE_WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    with console.capture() as captured:
        show_partitions(console, inventory)
        console.print()
        show_nodes(console, inventory.nodes.values())
    return captured.get().splitlines()


def show_room(console: Console, rooms: Sequence[Room]) -> None:
    """One line per partition: whether a job would fit now."""
    rows = [
        (room.partition, "yes" if room.fits_now else "no", str(room.nodes_with_room), "; ".join(room.objections))
        for room in rooms
    ]
    show_columns(console, ("PARTITION", "FITS NOW", "NODES WITH ROOM", "REASON"), rows)


def largest_in_words(largest: Largest | None) -> str:
    """3 nodes x 4 GPUs."""
    if largest is None:
        return "nothing"
    size, what = (largest.gpus_per_node, "GPU") if largest.gpus_per_node else (largest.cpus_per_node, "CPU")
    return f"{plural(largest.nodes, 'node')} x {plural(size, what)}"


def node_set(names: Sequence[str]) -> str:
    """The names in Slurm's notation: node[1-3,7],login."""
    parted = []
    for name in names:
        prefix = name.rstrip("0123456789") if len(name) < _LONGEST_NAME else name
        parted.append((prefix, len(name) - len(prefix), name[len(prefix) :]))
    found = []
    for (prefix, width), group in groupby(sorted(parted), key=lambda part: part[:2]):
        numbers = [int(digits) for *_, digits in group if digits]
        together = ",".join(ranges(numbers, width))
        found.append(prefix + (f"[{together}]" if len(numbers) > 1 else together))
    return ",".join(found)


def _gpus(nodes: Iterable[Node]) -> str:
    """2/8 a100, 0/4 h100."""
    return ", ".join(f"{free}/{total} {kind}".rstrip() for kind, (free, total) in gpus_by_type(nodes).items())


def verdict(answer: Estimate | SlurmRefused | None) -> str:
    """Slurm's answer in words."""
    if answer is None:
        return "no start estimate from Slurm (sbatch --test-only)"
    if isinstance(answer, SlurmError):
        return f"Slurm would reject it: {answer.words}\nhint: {answer.hint}"
    start = when(answer.start, time.time())
    return f"estimated start: {start}, in partition {answer.partition}"

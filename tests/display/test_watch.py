"""The table of runs, refreshed repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

from rich.console import Console

from clusterctl.launcher.display.runs_table import row_of, totals, watch_runs
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import Listing
from clusterctl.shared.errors import SlurmError

Consoles = Callable[..., tuple[Console, StringIO]]
NOW = 1_000_000.0


def listing(statuses: list[Status], *problems: SlurmError) -> Listing:
    return Listing(NOW, tuple(row_of(status, NOW) for status in statuses), problems)


def test_in_a_file_the_table_is_repeated_only_when_it_changed(statuses: list[Status], console: Consoles) -> None:
    waiting, training = listing(statuses[:1]), listing(statuses[1:2])
    out, file = console(200)
    watch_runs([waiting, waiting, training], out)
    lines = [line for line in file.getvalue().splitlines() if line]
    assert [line.split()[0] for line in lines if ": 1 " not in line] == [
        "RUN", "cora-20260102-030405-00a1", "RUN", "cora-20260102-030404-00a1",
    ]  # fmt: skip
    zone = time.strftime("%Z", time.localtime(NOW))
    now = time.strftime("%H:%M:%S", time.localtime(NOW))
    assert [line for line in lines if ": 1 " in line] == [
        f"{now} {zone}  1 run: 1 queued",
        f"{now} {zone}  1 run: 1 training",
    ]


def test_totals_add_up_gpu_hours_and_the_runs_of_sweeps(statuses: list[Status]) -> None:
    resources = replace(statuses[2].record.job.resources, nodes=2, gpus_per_node=4)
    record = replace(statuses[2].record, job=replace(statuses[2].record.job, resources=resources))
    one = replace(statuses[2], record=record)
    assert row_of(one, NOW).cells["GPU-H"] == "200"
    two = listing([one, one])
    many = replace(two, matching=two.rows * 4, more=6)
    assert totals(many).endswith("  8 runs: 8 finished  1600 GPU-hours  newest 2 shown")
    assert "newest 2 runs: 2 finished" in totals(replace(two, is_whole=False))


def test_on_a_terminal_it_fits_the_height_and_shows_problems(statuses: list[Status], console: Consoles) -> None:
    out, file = console(80, force_terminal=True, no_color=True, height=5)
    watch_runs([listing(statuses, SlurmError("squeue: \x1b[2Jdown"))], out)
    assert "and 4 more" in file.getvalue()
    assert "warning: squeue: down" in file.getvalue()

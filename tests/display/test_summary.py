"""How a run ended, in a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from clusterctl.launcher.display.live_run import show_end
from clusterctl.launcher.observe.state import Status
from clusterctl.shared.record.layout import RunDir

Consoles = Callable[..., tuple[Console, StringIO]]


def test_a_finished_run_shows_its_accuracy_test_nodes_and_two_commands(
    statuses: list[Status], console: Consoles
) -> None:
    out, file = console()
    show_end(out, statuses[2])
    assert file.getvalue().splitlines() == [
        "finished test accuracy 0.8851 on 1000 nodes, loss 0.0123, in 1d00h",
        "next: clusterctl status cora-20260101-030405-00a1",
        "      clusterctl logs cora-20260101-030405-00a1",
    ]


def test_the_location_of_an_attempts_trace_is_printed(
    statuses: list[Status], console: Consoles, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    run.attempt(0).path.mkdir(parents=True)
    run.attempt(1).profile.mkdir(parents=True)
    out, file = console()
    show_end(out, replace(statuses[2], record=replace(statuses[2].record, run=run)))
    assert (
        file.getvalue().splitlines()[1] == f"traces of all ranks, for https://ui.perfetto.dev: {run.attempt(1).profile}"
    )


def test_a_failed_run_shows_its_exit_code_and_where_to_look(statuses: list[Status], console: Consoles) -> None:
    out, file = console()
    show_end(out, statuses[3])
    first, cause, command, *_ = file.getvalue().splitlines()
    assert first == "failed exit code 137, in 8m55s"
    assert cause == "its attempts' files can no longer be read (uncertain)"
    assert command == "next: clusterctl why a-rather-long-name-20260101-030405-00a1"

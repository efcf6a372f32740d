"""The table of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from clusterctl.display.runs_table import runs_table, show_runs
from clusterctl.observe.stage import Status

GOLDEN = Path(__file__).parent / "golden"
NOW = 1_000_000.0
Consoles = Callable[..., tuple[Console, StringIO]]


@pytest.mark.parametrize("width", [80, 120, 160, 200])
def test_the_table_is_as_in_the_golden_file(
    statuses: list[Status], console: Consoles, width: int, update_golden: bool
) -> None:
    out, file = console(width)
    show_runs(out, statuses, NOW)
    golden = GOLDEN / f"table_{width}.txt"
    if update_golden:
        golden.write_text(file.getvalue())
    assert file.getvalue() == golden.read_text()


@pytest.mark.parametrize("width", [40, 80, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal_and_every_id_is_whole_where_it_fits(
    statuses: list[Status], console: Consoles, width: int
) -> None:
    out, file = console(width)
    show_runs(out, statuses, NOW)
    assert max(map(len, file.getvalue().splitlines())) <= width
    if width >= 80:
        assert all(status.record.run.id in file.getvalue() for status in statuses)


def test_wide_prints_every_column_whatever_the_terminal(statuses: list[Status], console: Consoles) -> None:
    out, file = console(80)
    show_runs(out, statuses, NOW, wide=True)
    head, _, training, *_ = file.getvalue().splitlines()
    assert head.split()[-2:] == ["NOTE", "ON"]
    assert training.endswith("node[1-2]")


def test_what_has_no_room_in_height_is_counted(statuses: list[Status]) -> None:
    assert runs_table(statuses, NOW, 80, 6).plain.count("\n") == 5
    *_, last = runs_table(statuses, NOW, 80, 4).plain.splitlines()
    assert last == "and 3 more"


def test_names_in_wide_characters_keep_the_columns_in_place(statuses: list[Status]) -> None:
    odd = replace(statuses[0], reason="図図")
    lines = runs_table([odd, statuses[3]], NOW, 200).plain.splitlines()
    assert lines[1].index("図") == lines[0].index("NOTE")


def test_what_slurm_says_cannot_steer_the_terminal(statuses: list[Status], console: Consoles) -> None:
    out, file = console(160)
    show_runs(out, [replace(statuses[0], reason="[red]x[/red]\x1b[2J\n:smile:")], NOW)
    assert "[red]x[/red]:smile:" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_no_color_is_honoured(statuses: list[Status], console: Consoles) -> None:
    coloured, file = console(force_terminal=True)
    show_runs(coloured, statuses, NOW)
    assert "\x1b[32m" in file.getvalue()
    plain, file = console(force_terminal=True, no_color=True)
    show_runs(plain, statuses, NOW)
    assert "\x1b[32m" not in file.getvalue()

"""The table of runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from clusterctl.launcher.display.runs_table import RunsTable, note, row_of, show_runs, with_column
from clusterctl.launcher.observe.attempt import AttemptEvidence, SetupFlaw
from clusterctl.launcher.observe.rank_events import Death
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import Listing, in_order
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

GOLDEN = Path(__file__).parent / "golden"
NOW = 1_000_000.0
Consoles = Callable[..., tuple[Console, StringIO]]


def listing(statuses: list[Status], now: float = NOW) -> Listing:
    return Listing(now, tuple(row_of(status, NOW) for status in statuses))


@pytest.mark.parametrize("width", [80, 120, 160, 200])
def test_the_table_matches_the_golden_file(
    statuses: list[Status], console: Consoles, width: int, update_golden: bool
) -> None:
    out, file = console(width)
    show_runs(out, listing(statuses))
    golden = GOLDEN / f"table_{width}.txt"
    if update_golden:
        golden.write_text(file.getvalue())
    assert file.getvalue() == golden.read_text()


@pytest.mark.parametrize("width", [40, 80, 120, 160, 200])
def test_no_line_is_wider_than_the_terminal_and_ids_are_whole_if_they_fit(
    statuses: list[Status], console: Consoles, width: int
) -> None:
    out, file = console(width)
    show_runs(out, listing(statuses))
    assert max(map(len, file.getvalue().splitlines())) <= width
    if width >= 80:
        assert all(status.record.run.id in file.getvalue() for status in statuses)


@pytest.mark.parametrize(
    ("column", "title"),
    [("val", "VAL"), ("gpu", "GPU"), ("ran", "RAN"), ("nodes_per_second", "NODES/S"), ("bleu", "bleu"), ("run", "RUN")],
)
def test_the_column_that_orders_the_runs_is_in_the_narrowest_terminal(
    statuses: list[Status], console: Consoles, column: str, title: str
) -> None:
    (attempt,) = statuses[1].attempts
    statuses[1] = replace(statuses[1], attempts=(replace(attempt, metrics={**attempt.metrics, "bleu": 27.5}),))
    ordered = in_order(statuses, column, NOW)
    out, file = console(60)
    show_runs(out, with_column(Listing(NOW, listing(ordered).rows, looked=tuple(ordered)), column))
    head, *rows = file.getvalue().splitlines()
    assert title in head.split()[:2]
    assert column != "bleu" or any(row.split()[:3][-2] == "27.5000" for row in rows), rows
    assert max(map(len, (head, *rows))) <= 60


def test_wide_prints_every_column_whatever_the_terminal(statuses: list[Status], console: Consoles) -> None:
    out, file = console(80)
    show_runs(out, listing(statuses), wide=True)
    head, _, training, *_ = file.getvalue().splitlines()
    assert head.split()[-2:] == ["NOTE", "ON"]
    assert training.endswith("node[1-2]")


def test_rows_are_not_laid_out_by_rich(
    statuses: list[Status], console: Consoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, file = console(120)
    made: list[None] = []
    text = Text.__init__
    monkeypatch.setattr(Text, "__init__", lambda *words, **named: made.append(None) or text(*words, **named))
    show_runs(out, listing(statuses * 20))
    assert file.getvalue().count("\n") == 20 * len(statuses) + 1
    assert not made


def test_the_row_of_an_ended_run_does_not_change_with_the_clock(statuses: list[Status]) -> None:
    ended = [status for status in statuses if status.state.ended]
    assert [row_of(status, NOW + 1000) for status in ended] == [*listing(ended).rows]
    before, after = (RunsTable(listing(ended, now), 200).plain.split() for now in (NOW, NOW + 1000))
    assert [*set(before) - set(after)] == ["10m00s"]  # the age


def test_rows_beyond_the_height_are_counted(statuses: list[Status]) -> None:
    assert RunsTable(listing(statuses), 120, 6).plain.count("\n") == 5
    *_, last = RunsTable(listing(statuses), 120, 4).plain.splitlines()
    assert last == "and 3 more"


@pytest.mark.parametrize("height", range(4, 12))
@pytest.mark.parametrize("width", range(60, 130, 10))
def test_at_any_size_every_run_is_shown_or_counted_and_no_note_is_cut_where_it_would_fit_below(
    statuses: list[Status], width: int, height: int
) -> None:
    cause = "RuntimeError: a batch is empty on rank 21"  # too long for a column beside the others at 80
    rows = tuple(
        row._replace(cells={**row.cells, "NOTE": f"{place} {cause}"}) if row.state.ended else row
        for place, row in enumerate(listing(statuses).rows)
    )
    lines = RunsTable(Listing(NOW, rows), width, height).plain.splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    shown = [place for place, row in enumerate(rows) if any(line.startswith(row.run) for line in lines)]
    left = int(lines[-1].split()[1]) if lines[-1].startswith("and ") else 0
    assert shown == [*range(len(rows) - left)]
    assert shown
    notes = [rows[place].cells["NOTE"] for place in shown if "NOTE" in rows[place].cells]
    assert all(any(note in line for line in lines) for note in notes)


LONG = "llama-sft-long-context-ablation-7b-20260102-030405-00a1"


@pytest.mark.parametrize("width", range(40, 201, 8))
def test_a_column_is_left_out_only_if_it_does_not_fit_and_no_line_is_too_wide(
    statuses: list[Status], width: int
) -> None:
    long = replace(statuses[1], record=replace(statuses[1].record, run=RunDir(Path("/runs") / LONG)))
    found = listing([*statuses, long])
    lines = RunsTable(found, width).plain.splitlines()
    assert max(map(len, lines)) <= width
    assert all(any(line.startswith(row.run[:width]) for line in lines) for row in found.rows)
    below = [line for line in lines[1:] if line.startswith("  ") and line[2:3].strip()]
    alone = [line for line in lines[1:] if line in {row.run for row in found.rows}]
    used = max(len(line) for line in lines if line not in (*below, *alone))
    cells = {column: [row.cells.get(column, "") for row in found.rows] for row in found.rows for column in row.cells}
    left_out = cells.keys() - set(lines[0].split()) - {"NOTE", "ON", "TRY"}
    for column in left_out:
        assert used + 2 + max(map(len, (column, *cells[column]))) > width, column


def test_a_long_name_displaces_no_column(statuses: list[Status]) -> None:
    long = replace(statuses[1], record=replace(statuses[1].record, run=RunDir(Path("/runs") / LONG)))
    without, beside = (RunsTable(listing(rows), 80).plain.splitlines() for rows in ([statuses[1]], [statuses[1], long]))
    assert beside[0].split() == without[0].split()
    assert beside[2:4] == [LONG, " " * len(statuses[1].record.run.id) + without[1][len(statuses[1].record.run.id) :]]


def test_rows_with_long_names_are_shown_or_counted_at_any_height(statuses: list[Status]) -> None:
    long = replace(statuses[3], record=replace(statuses[3].record, run=RunDir(Path("/runs") / LONG)))
    for height in range(5, 14):
        lines = RunsTable(listing([long] * 4), 60, height).plain.splitlines()
        assert len(lines) <= height
        left = int(lines[-1].split()[1]) if lines[-1].startswith("and ") else 0
        assert lines.count(LONG) + left == 4


def test_names_in_wide_characters_keep_the_columns_in_place(statuses: list[Status]) -> None:
    odd = replace(statuses[0], reason="図図")
    lines = RunsTable(listing([odd, statuses[3]]), 200).plain.splitlines()
    assert lines[1].index("図") == lines[0].index("NOTE")


def test_text_from_slurm_cannot_control_the_terminal(statuses: list[Status], console: Consoles) -> None:
    out, file = console(160)
    show_runs(out, listing([replace(statuses[0], reason="[red]x[/red]\x1b[2J\n:smile:")]))
    assert "[red]x[/red]:smile:" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_no_color_is_honoured(statuses: list[Status], console: Consoles) -> None:
    coloured, file = console(force_terminal=True)
    show_runs(coloured, listing(statuses))
    assert "\x1b[32m" in file.getvalue()
    plain, file = console(force_terminal=True, no_color=True)
    show_runs(plain, listing(statuses))
    assert "\x1b[32m" not in file.getvalue()


@pytest.mark.parametrize(
    ("how", "exit_code", "expected"),
    [
        ("Exited with exit code 3", 143, "exit code 3"),  # srun's own code is that of the ranks it ended
        ("Killed", 137, "killed"),
        ("Out Of Memory", 143, "out of memory"),
        (None, 2, "exit code 2"),
        (None, None, ""),
    ],
)
def test_the_note_shows_how_the_first_rank_ended(
    statuses: list[Status], how: str | None, exit_code: int | None, expected: str
) -> None:
    death = Death(2, "node1", how, 0) if how else None
    last = AttemptEvidence(number=0, exit_code=exit_code, death=death)
    assert note(replace(statuses[3], state=State.FAILED, attempts=(last,))) == expected
    for how, words in (("silent", "no progress"), ("idle-gpus", "GPUs idle")):
        hung = replace(last, hung=how)
        assert note(replace(statuses[3], state=State.FAILED, attempts=(hung,))) == words


def test_the_note_shows_since_when_all_ranks_are_idle(statuses: list[Status]) -> None:
    last = AttemptEvidence(number=0, idle_since=NOW - 480)
    since = time.strftime("%H:%M:%S %Z", time.localtime(NOW - 480))
    assert note(replace(statuses[3], state=State.TRAINING, attempts=(last,))) == f"idle since {since}, logs no steps"
    assert "idle" not in note(replace(statuses[3], state=State.FINISHED, attempts=(last,)))


def test_the_note_shows_since_when_all_gpus_are_idle(statuses: list[Status]) -> None:
    last = AttemptEvidence(number=0, gpus_idle_since=NOW - 480)
    since = time.strftime("%H:%M:%S %Z", time.localtime(NOW - 480))
    assert note(replace(statuses[3], state=State.TRAINING, attempts=(last,))) == f"GPUs idle since {since}"
    assert "idle" not in note(replace(statuses[3], state=State.FINISHED, attempts=(last,)))


@pytest.mark.parametrize(
    ("workload", "step", "expected"),
    [("command", 60, "exited after step 60/400"), ("command", 390, ""), ("reddit", 60, "")],
)
def test_a_program_that_exited_with_0_long_before_its_last_step_is_noted(
    statuses: list[Status], workload: str, step: int, expected: str
) -> None:
    """A built-in workload that ends early has a reason (`train.patience`)."""
    record = replace(statuses[3].record, job=replace(statuses[3].record.job, workload=workload))
    last = AttemptEvidence(number=0, exit_code=0, metrics={"step": step, "steps": 400})
    assert note(replace(statuses[3], record=record, state=State.FINISHED, attempts=(last,))) == expected


def test_a_setup_line_that_failed_is_in_the_note(statuses: list[Status]) -> None:
    running = next(status for status in statuses if status.state is State.TRAINING)
    assert running.attempt is not None
    job = replace(running.record.job, setup=("typo \x1b[2J",))
    flawed = replace(running.attempt, setup=(SetupFlaw(1, 127),), idle_since=None, gpus_idle_since=None)
    seen = replace(running, record=replace(running.record, job=job), attempts=(flawed,))
    assert note(seen).startswith("setup line 1: typo")
    assert "\x1b" not in note(seen)
    assert note(seen).endswith("(command not found)")
    ended = replace(seen, state=State.FAILED, attempts=(replace(flawed, setup=(), setup_ended=1, exit_code=1),))
    assert note(ended).startswith("setup line 1: typo")
    assert "setup" not in note(replace(ended, attempts=(replace(flawed, exit_code=3),)))

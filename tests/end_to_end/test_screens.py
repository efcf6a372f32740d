"""The monitor of a training run in a real terminal, and the report of an ended one in a real browser."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.made_runs import busy_files
from support.scenario import Stage
from support.screens import BROWSER, TMUX, Terminal, opened, opened_terminal


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"])
@pytest.mark.skipif(BROWSER is None, reason="no chromium; as root: tests/install.sh browser")
def test_the_monitor_shows_a_training_run_and_the_report_an_ended_one(stage: Stage) -> None:
    run = stage.submit("cora")
    stage.wait_for_state(run, "training", "evaluating")
    frame = stage.call("monitor", "--once", "--cluster", stage.cluster)
    assert frame.returncode == 0, frame.stderr
    assert run.id in frame.stdout
    stage.wait_for_state(run, "finished")
    done = stage.call("report", run.id, "--cluster", stage.cluster)
    assert done.stdout.strip() == str(run.report), done.stderr
    shown = opened(run.report)
    assert (shown.console, shown.calls) == ([], [])
    assert "finished" in shown.text("p")
    assert shown.text("figcaption").count("accuracy") >= 1


@pytest.mark.skipif(TMUX is None, reason="no tmux; as root: tests/install.sh slurm")
def test_a_terminal_resize_redraws_the_monitor_before_its_next_refresh(fabricate, tmp_path: Path) -> None:
    run = fabricate(files=busy_files())
    monitor = [sys.executable, "-m", "clusterctl", "monitor", "--every", "3600", run.id]
    environment = {"CLUSTERCTL_RUNS": str(run.path.parent), "TERM": "xterm-256color", "HOME": str(tmp_path)}
    with (
        tempfile.TemporaryDirectory() as folder,  # a socket's path must be short
        opened_terminal(Path(folder) / "tmux", (80, 24), monitor, environment) as shown,
    ):
        wait_until_whole(shown, 80, 24, seconds=60)
        for columns, lines in ((200, 60), (100, 30), (160, 45)):
            shown.resize(columns, lines)
            wait_until_whole(shown, columns, lines, seconds=15)  # for a loaded machine: it takes a third of a second


def wait_until_whole(shown: Terminal, columns: int, lines: int, seconds: float) -> None:
    """Wait until the panes fill the terminal: all corners in place, the key bindings in the last line."""
    deadline = time.monotonic() + seconds
    while not is_whole(screen := shown.lines(), columns, lines):
        assert time.monotonic() < deadline, "\n".join(screen)
        time.sleep(0.05)


def is_whole(screen: list[str], columns: int, lines: int) -> bool:
    upper, lower = screen[1], screen[lines - 2]
    corners = (upper[0], upper[-1], lower[0], lower[-1]) if upper and lower else ()
    widths = {len(line) for line in screen[1 : lines - 1]}
    return corners == ("╭", "╮", "╰", "╯") and widths == {columns} and "q quit" in screen[lines - 1]

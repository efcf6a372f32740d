"""One frame, printed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from mistake import check_plain
from rich.cells import cell_len

from clusterctl.display.monitor.arrange import PAGES
from clusterctl.display.monitor.frame import frame
from clusterctl.display.monitor.panes import View
from clusterctl.observe.overview import Overview

GOLDEN = Path(__file__).parent / "golden"
HOSTILE = "\x1b[2J\x1b]0;title\x07[red]x[/red]<script>alert(1)</script>\u202e日本\r\n"


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=lambda size: "x".join(map(str, size)))
def test_the_frame_is_as_in_the_golden_file(overview: Overview, size: tuple[int, int], update_golden: bool) -> None:
    text = frame(View(overview.look()), *size).plain + "\n"
    golden = GOLDEN / f"frame_{size[0]}x{size[1]}.txt"
    if update_golden:
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("size", [(80, 24), (60, 16), (133, 41), (200, 60)], ids=lambda size: "x".join(map(str, size)))
def test_no_line_is_wider_than_the_terminal_whatever_is_shown(overview: Overview, size, page) -> None:
    lines = frame(View(overview.look()), *size, page).plain.split("\n")
    assert len(lines) <= size[1]
    assert max(map(cell_len, lines)) <= size[0]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_program_wrote_is_shown_as_text(fabricate, overview: Overview, page) -> None:
    fabricate(
        "x-20990102-030405-00a1",
        {
            "attempts/0/host.json": {"attempt": 0, "job_id": "1", "nodes": HOSTILE, "start": 1.0},
            "attempts/0/events/rank_00000.jsonl": [
                {"time": 2.0, "event": "began", "host": HOSTILE},
                {"time": 3.0, "event": "exception", "type": HOSTILE, "message": HOSTILE},
            ],
            "attempts/0/metrics.jsonl": [{"time": 3.0, "step": 1, HOSTILE: 1.0}],
            "attempts/0/telemetry/node0.jsonl": [{"time": 4.0, "ranks": {"0": {"phase": HOSTILE}}}],
            "attempts/0/logs/rank_00000.out": HOSTILE,
        },
    )
    scene = overview.look()
    assert scene.selected.status.record.run.id.startswith("x-")
    text = frame(View(scene), 100, 30, page).plain
    check_plain(text)
    assert max(map(cell_len, text.split("\n"))) <= 100
    if page == "log":
        assert "[red]x[/red]<script>alert(1)</script>日本" in text


def test_the_slow_rank_the_idle_gpu_and_the_split_of_a_step_can_be_read(overview: Overview) -> None:
    text = frame(View(overview.look()), 200, 60).plain
    assert "rank 13 (node1): 1.9x the median" in text
    assert "sampling         300.0 ms  30%" in text
    assert "node3" in text
    assert "gin-20260101-030405-00a1  Resources" in text


def test_one_thread_may_look_while_another_one_draws(overview: Overview) -> None:
    view = View(overview.look())
    run = view.scene.selected.status.record.run
    lines = [{"time": 1e6 + step, "step": step, f"name {step % 60}": 1.0, "loss": 1.0} for step in range(301, 4000)]
    with run.attempt(1).metrics.open("a") as out:
        out.write("".join(json.dumps(line) + "\n" for line in lines))
    looking = threading.Thread(target=overview.look)
    looking.start()
    drawn = 0
    while looking.is_alive() or not drawn:
        frame(view, 200, 60)
        drawn += 1
    looking.join()
    assert view.scene.selected.history.curves["loss"].points()[-1].x > 3900


def test_without_runs_it_says_what_to_type(tmp_path: Path) -> None:
    assert "clusterctl submit cora" in frame(View(Overview(tmp_path).look()), 80, 24).plain
